// The message of an error, so a test can look for the file and the fault in it.
#pragma once

#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>

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

/// What a check of a message shows when it fails.
struct Said {
  std::string message, fault = "";  ///< no fault: the message is as it should be

  explicit operator bool() const { return fault.empty(); }
  friend std::ostream& operator<<(std::ostream& out, const Said& said) {
    return out << '"' << said.message << '"' << said.fault;
  }
};

/// Whether a message is one line that holds all of `parts`.
template <typename... Parts>
Said says(const std::string& message, const Parts&... parts) {
  if (message.find('\n') != message.npos) return {message, " has more than one line"};
  for (const std::string& part : {std::string(parts)...}) {
    if (message.find(part) == message.npos) return {message, " lacks \"" + part + '"'};
  }
  return {message};
}

/// Whether a text contains a part, or begins or ends with it. All show the text when they fail.
inline Said contains(std::string_view text, std::string_view part) {
  return {std::string(text), text.find(part) != text.npos ? "" : " lacks \"" + std::string(part) + '"'};
}

inline Said begins_with(std::string_view text, std::string_view part) {
  return {std::string(text),
          text.starts_with(part) ? "" : " does not begin with \"" + std::string(part) + '"'};
}

inline Said ends_with(std::string_view text, std::string_view part) {
  return {std::string(text), text.ends_with(part) ? "" : " does not end with \"" + std::string(part) + '"'};
}

}  // namespace staircase
