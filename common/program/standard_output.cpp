#include "common/program/standard_output.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/base/error.h"
#include "common/base/message.h"
#include "kernels/platform.h"

namespace staircase {

void print(const std::string& text) {
  if (quiet()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error("standard output cannot be written: {}", std::strerror(errno));
  }
}

bool obeys_escapes() {
  const char* const terminal = std::getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::string(terminal) != "dumb";
}

bool has_colours(std::FILE* stream) {
  const char* const refused = std::getenv("NO_COLOR");
  return platform::is_terminal(stream) && obeys_escapes() && (refused == nullptr || *refused == '\0');
}

}  // namespace staircase
