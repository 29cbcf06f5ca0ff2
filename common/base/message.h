// What a program tells a person besides its text: lines on standard error. One that takes no lines changes
// nothing.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace staircase {

inline void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
}

/// Something looks like a mistake, but the program goes on.
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  say("warning: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace staircase
