#include "common/program/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/base/error.h"
#include "common/base/message.h"

namespace staircase {

void print(const std::string& text) {
  if (quiet()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error("standard output takes no more text: {}", std::strerror(errno));
  }
}

}  // namespace staircase
