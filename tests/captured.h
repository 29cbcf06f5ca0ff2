// What is written to standard output or standard error, by this program and by those that it starts.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <streambuf>
#include <string>

#include "tests/temporary_folder.h"

namespace staircase {

/// Writes to a file descriptor at once.
class Unbuffered : public std::streambuf {
 public:
  explicit Unbuffered(int descriptor) : descriptor_(descriptor) {}

 protected:
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? traits_type::not_eof(c) : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    return write(descriptor_, text, static_cast<std::size_t>(size));
  }

 private:
  int descriptor_;
};

/// Redirects `stream` to a file until the end of the scope. The messages of a failed check are not
/// redirected: doctest prints them with std::cout, which nothing under test uses.
class Captured {
 public:
  explicit Captured(std::FILE* stream, const std::string& file = "")
      : stream_(stream), file_(file.empty() ? (folder_.path() / "out").string() : file) {
    const int to = open(file_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    REQUIRE(to >= 0);
    std::fflush(stream_);
    dup2(to, fileno(stream_));
    close(to);
    if (stream_ == stdout) before_ = std::cout.rdbuf(&uncaptured_);
  }
  ~Captured() {
    if (stream_ == stdout) std::cout.rdbuf(before_);
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
  int saved_ = fcntl(fileno(stream_), F_DUPFD_CLOEXEC, 0);
  Unbuffered uncaptured_{saved_};
  std::streambuf* before_ = nullptr;  ///< of std::cout
};

}  // namespace staircase
