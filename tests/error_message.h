// What an error says, so that a test can look for the file and the fault in it.
#pragma once

#include <string>

#include "common/base/error.h"

namespace staircase {

/// The message of the Error that `action` throws, or "" if it throws none. Other exceptions pass through.
template <typename Action>
std::string error_message(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Whether a message is one line that holds all of `parts`.
template <typename... Parts>
bool says(const std::string& message, const Parts&... parts) {
  return message.find('\n') == message.npos && ((message.find(parts) != message.npos) && ...);
}

}  // namespace staircase
