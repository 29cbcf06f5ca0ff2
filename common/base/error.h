// Errors for people: one sentence that names the fault and the remedy.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace staircase {

/// Something failed: a broken file, a missing device. The program ends with exit status 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// The program was called wrongly: an impossible option or combination. Exit status 2.
struct UsageError : Error {
  using Error::Error;
};

}  // namespace staircase
