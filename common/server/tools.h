// The functions that a request lets the model call. Only sources include this.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/server/call_form.h"

namespace staircase {

/// What `tools`, `tool_choice` and `parallel_tool_calls` of a body say.
struct Tools {
  nlohmann::ordered_json shown =
      nlohmann::ordered_json::array();  ///< to the template; empty if there are none
  /// That may be called. Their parameters take only named arguments, unless the schema lets others in.
  std::vector<CalledFunction> functions = {};
  bool must_call = false, may_repeat = true;
};

/// Reads them from a body whose order of keys is the client's. Throws HttpError with the key and one
/// sentence. With `"tool_choice": "none"` there are no tools.
Tools read_tools(const nlohmann::ordered_json& body);

/// A function's name, which templates write as it is: 1 to 64 letters, digits, _ and -. Throws HttpError with
/// the key of any other.
std::string function_name(const nlohmann::ordered_json& function, const std::string& key);

}  // namespace staircase
