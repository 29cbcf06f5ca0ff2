#include "common/program/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/base/error.h"

namespace staircase {

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error("standard output takes no more text: {}", std::strerror(errno));
  }
}

}  // namespace staircase
