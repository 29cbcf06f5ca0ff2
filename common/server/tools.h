// The functions that a request lets the model call. Only .cpp files include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/server/call_form.h"

namespace staircase {

/// The values of `tools`, `tool_choice` and `parallel_tool_calls` in a body.
struct Tools {
  nlohmann::ordered_json shown = nlohmann::ordered_json::array();  ///< to the template; empty without tools
  /// The functions that may be called. They take only named arguments, unless the schema admits others.
  std::vector<CalledFunction> functions = {};
  bool must_call = false, may_repeat = true;
};

/// Reads the tools from a body that keeps the client's order of keys. Throws HttpError with the key and one
/// sentence. With `"tool_choice": "none"` there are no tools.
Tools read_tools(const nlohmann::ordered_json& body);

/// A function's name, which templates write as it is: 1 to 64 letters, digits, _ and -. Throws HttpError with
/// the key for any other name.
std::string function_name(const nlohmann::ordered_json& function, const std::string& key);

}  // namespace staircase
