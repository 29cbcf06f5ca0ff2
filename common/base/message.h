// Messages for a person, besides the text: lines on standard error. If it takes no lines, nothing else
// changes.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "common/base/quoted.h"

namespace staircase {

/// Whether this process suppresses its messages and its text.
inline bool& quiet() {
  static bool is_quiet = false;
  return is_quiet;
}

/// One line or several; control characters in them are escaped.
inline void say(const std::string& lines) {
  if (quiet()) return;
  std::fputs((printable(lines, true) + "\n").c_str(), stderr);
}

/// Why something was not done: one line, whatever the message holds.
inline void say_error(const std::string& message) {
  say("error: " + printable(message));
}

/// Something looks like a mistake, but the program goes on.
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  say("warning: " + printable(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace staircase
