// Warnings go to standard error: one sentence, and the program goes on.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace staircase {

template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stderr, "warning: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace staircase
