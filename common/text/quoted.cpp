#include "common/text/quoted.h"

#include <fmt/format.h>

namespace staircase {

std::string quoted(const std::string& text) {
  std::string line = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line += {'\\', c};
    } else if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ') {
      line += fmt::format("\\x{:02x}", static_cast<int>(c));
    } else {
      line += c;
    }
  }
  return line + '"';
}

}  // namespace staircase
