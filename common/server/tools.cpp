#include "common/server/tools.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "common/base/json_options.h"
#include "common/base/quoted.h"
#include "common/server/http.h"

namespace staircase {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

[[noreturn]] void refuse_at(const std::string& key, const ordered_json& value, const std::string& right) {
  throw HttpError(400, fmt::format("{} is {}, but it must be {}", key, shown(json(value)), right), key);
}

/// The member with this name, or nullptr if it is missing or null.
const ordered_json* member(const ordered_json& object, const std::string& name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// Rejects the members of an object that have a value and are not in `known`.
void require_known(const std::string& key, const ordered_json& object, const std::set<std::string>& known) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || known.contains(name)) continue;
    const std::string place = key + "." + name;
    throw HttpError(400, place + " is not implemented: leave it out", place, "unsupported_parameter");
  }
}

/// The object `function` in a tool or in a choice.
const ordered_json& function_of(const ordered_json& object, const std::string& key,
                                const std::set<std::string>& known) {
  static constexpr const char* kRight =
      R"(an object such as {"type": "function", "function": {"name": ...}})";
  if (!object.is_object()) refuse_at(key, object, kRight);
  const ordered_json* const type = member(object, "type");
  if (type == nullptr || *type != "function")
    refuse_at(key + ".type", type == nullptr ? ordered_json() : *type, "function");
  require_known(key, object, {"type", "function"});
  const ordered_json* const function = member(object, "function");
  if (function == nullptr || !function->is_object()) refuse_at(key, object, kRight);
  require_known(key + ".function", *function, known);
  return *function;
}

/// The parameters for a grammar. Other arguments than those that a function names are excluded, unless the
/// schema admits them or has a keyword that may name some.
ordered_json closed(ordered_json parameters) {
  static const std::set<std::string> plain{"type",  "properties", "required",    "title",
                                           "$defs", "$schema",    "definitions", "description"};
  const auto properties = parameters.find("properties");
  const auto is_named = [&](const ordered_json& name) {
    return name.is_string() && properties->contains(name.get_ref<const std::string&>());
  };
  if (properties == parameters.end() || !properties->is_object()) return parameters;
  for (const auto& [key, value] : parameters.items())
    if (!plain.contains(key)) return parameters;
  const ordered_json required = parameters.value("required", ordered_json::array());
  if (required.is_array() && std::ranges::all_of(required, is_named))
    parameters["additionalProperties"] = false;
  return parameters;
}

void add_tool(const ordered_json& tool, const std::string& key, Tools& tools) {
  ordered_json function = function_of(tool, key, {"name", "description", "parameters", "strict"});
  const std::string inner = key + ".function";
  const std::string name = function_name(function, inner);
  if (std::ranges::find(tools.functions, name, &CalledFunction::name) != tools.functions.end())
    throw HttpError(400, fmt::format("{}.name is {}, which another tool already has", inner, quote(name)),
                    inner + ".name");
  const ordered_json *const description = member(function, "description"),
                            *const parameters = member(function, "parameters"),
                            *const strict = member(function, "strict");
  if (description != nullptr && !description->is_string())
    refuse_at(inner + ".description", *description, "a text");
  if (strict != nullptr && !strict->is_boolean()) refuse_at(inner + ".strict", *strict, "true or false");
  if (parameters != nullptr && (!parameters->is_object() || parameters->value("type", json()) != "object"))
    refuse_at(inner + ".parameters", *parameters, R"(a JSON Schema with "type": "object")");
  tools.functions.push_back({name, parameters == nullptr
                                       ? R"({"type": "object", "additionalProperties": false})"
                                       : closed(*parameters).dump()});
  // The model gets neither keys of this interface nor empty ones.
  function.erase("strict");
  for (const char* optional : {"description", "parameters"})
    if (member(function, optional) == nullptr) function.erase(optional);
  tools.shown.push_back({{"type", "function"}, {"function", std::move(function)}});
}

}  // namespace

std::string function_name(const ordered_json& function, const std::string& key) {
  const ordered_json* const name = member(function, "name");
  const auto is_plain = [](unsigned char byte) { return std::isalnum(byte) || byte == '_' || byte == '-'; };
  const std::string* const text = name == nullptr ? nullptr : name->get_ptr<const std::string*>();
  if (text == nullptr || text->empty() || text->size() > 64 || !std::ranges::all_of(*text, is_plain))
    refuse_at(key + ".name", name == nullptr ? ordered_json() : *name, "1 to 64 of a-z, A-Z, 0-9, _ and -");
  return *text;
}

Tools read_tools(const ordered_json& body) {
  Tools tools;
  const ordered_json *const list = member(body, "tools"), *const choice = member(body, "tool_choice"),
                            *const parallel = member(body, "parallel_tool_calls");
  if (list != nullptr) {
    if (!list->is_array()) refuse_at("tools", *list, "a list of functions");
    for (std::size_t i = 0; i < list->size(); ++i) add_tool((*list)[i], fmt::format("tools[{}]", i), tools);
  }
  if (parallel != nullptr) {
    if (!parallel->is_boolean()) refuse_at("parallel_tool_calls", *parallel, "true or false");
    tools.may_repeat = *parallel;
  }
  if (choice == nullptr) return tools;
  static constexpr const char* kRight =
      R"(none, auto, required or {"type": "function", "function": {"name": ...}})";
  if (choice->is_string() && *choice != "none" && *choice != "auto" && *choice != "required")
    refuse_at("tool_choice", *choice, kRight);
  if (!choice->is_string() && !choice->is_object()) refuse_at("tool_choice", *choice, kRight);
  if (*choice == "none") return {};
  if (tools.functions.empty())
    throw HttpError(400, "tool_choice needs tools, and there are none", "tool_choice");
  if (*choice == "auto") return tools;
  tools.must_call = true;
  if (*choice == "required") return tools;
  const std::string name =
      function_name(function_of(*choice, "tool_choice", {"name"}), "tool_choice.function");
  if (std::erase_if(tools.functions, [&](const CalledFunction& one) { return one.name != name; });
      tools.functions.empty())
    throw HttpError(
        400, fmt::format("tool_choice names the function {}, which is not among the tools", quote(name)),
        "tool_choice");
  tools.may_repeat = false;
  return tools;
}

}  // namespace staircase
