// Messages for a person: lines on standard error, separate from the generated text. If standard error accepts
// no lines, the program runs on without them.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "common/base/quoted.h"

namespace staircase {

/// Whether this process prints nothing, neither messages nor generated text. Callers may set it.
inline bool& quiet() {
  static bool is_quiet = false;
  return is_quiet;
}

/// Prints one line or several; control characters in them are escaped.
inline void say(const std::string& lines) {
  if (quiet()) return;
  std::fputs((printable(lines, true) + "\n").c_str(), stderr);
}

/// Prints why something failed, always as one line: line breaks in the message are escaped.
inline void say_error(const std::string& message) {
  say("error: " + printable(message));
}

/// Prints a warning: something looks like a mistake, but the program continues.
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  say("warning: " + printable(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace staircase
