// What is written to standard output or standard error, by this program and by those that it starts.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/temporary_folder.h"

namespace staircase {

/// `stream` goes to a file until the end of the scope.
class Captured {
 public:
  explicit Captured(std::FILE* stream, const std::string& file = "")
      : stream_(stream), file_(file.empty() ? (folder_.path() / "out").string() : file) {
    std::fflush(stream_);
    saved_ = fcntl(fileno(stream_), F_DUPFD_CLOEXEC, 0);
    const int to = open(file_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    REQUIRE(to >= 0);
    dup2(to, fileno(stream_));
    close(to);
  }
  ~Captured() {
    std::fflush(stream_);
    std::clearerr(stream_);
    dup2(saved_, fileno(stream_));
    close(saved_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  /// All that has been written so far, without a flush.
  std::string text() const {
    std::ifstream file(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  TemporaryFolder folder_;
  std::FILE* stream_;
  std::filesystem::path file_;
  int saved_ = -1;
};

}  // namespace staircase
