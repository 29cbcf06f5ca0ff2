#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "common/base/quoted.h"
#include "common/server/conversation_json.h"
#include "common/server/request_body.h"
#include "common/server/tools.h"

namespace staircase {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// Keys of a message that are not implemented but would change the answer, with the value that changes
/// nothing.
const std::map<std::string, json>& refused_in_message() {
  static const std::map<std::string, json> keys{{"tool_calls", json::array()},
                                                {"tool_call_id", ""},
                                                {"function_call", nullptr},
                                                {"audio", nullptr},
                                                {"refusal", ""},
                                                {"images", json::array()},
                                                {"prefix", false}};
  return keys;
}

HttpError refused(const std::string& key, const std::string& message) {
  return {400, message, key};
}

/// A message's content (one text or a list of parts), with only the keys that a template may read.
ordered_json content_of(const ordered_json& content, const std::string& key) {
  if (content.is_string()) return content;
  static constexpr const char* kRight = "a text or a list of text parts";
  if (!content.is_array() || content.empty()) {
    throw refused(key, fmt::format("{} is {}, but it must be {}", key,
                                   content.is_array() ? "an empty list" : shown(json(content)), kRight));
  }
  ordered_json parts = ordered_json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    const ordered_json& part = content[i];
    const std::string place = fmt::format("{}[{}]", key, i);
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      throw refused(
          place, fmt::format("{} has no type; it must be {}", place, R"({"type": "text", "text": "..."})"));
    }
    const std::string type = part["type"];
    if (type != "text") {
      throw HttpError(400,
                      fmt::format("{} is of type {}, which is not implemented: this model reads only text",
                                  place, quote(type)),
                      place, "unsupported_parameter");
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      throw refused(place + ".text", fmt::format("{}.text must be a text", place));
    }
    parts.push_back({{"type", "text"}, {"text", part["text"]}});
  }
  return parts;
}

/// The calls of earlier messages.
struct Calls {
  static constexpr std::ptrdiff_t kMaxKeys = 20000, kMaxDepth = 100;

  /// The calls of the latest message with calls that still lack a result: from the call's id to the
  /// function's name.
  std::map<std::string, std::string> open = {};
  std::ptrdiff_t colons = 0;  // colons in all arguments, at least as many as there are keys
};

/// A call of an earlier answer. Templates read its arguments as an object, not as text.
ordered_json call_of(const ordered_json& call, const std::string& key, Calls& calls) {
  const auto text = [&](const ordered_json& object, const char* name) {
    return object.is_object() && object.contains(name) && object[name].is_string()
               ? object[name].get<std::string>()
               : std::string();
  };
  const std::string id = text(call, "id");
  if (id.empty() || text(call, "type") != "function" || !call.contains("function")) {
    throw refused(key, fmt::format("{} is {}, but it must have an id, the type function and a function", key,
                                   shown(json(call))));
  }
  const ordered_json& function = call["function"];
  const std::string inner = key + ".function", arguments = text(function, "arguments");
  const std::string name = function_name(function.is_object() ? function : ordered_json(), inner);
  const std::string place = inner + ".arguments";
  // Reading a key takes time for each key before it.
  calls.colons += std::ranges::count(arguments, ':');
  if (calls.colons > Calls::kMaxKeys)
    throw refused(place, fmt::format("the arguments of all calls have more than {} keys", Calls::kMaxKeys));
  ordered_json values =
      reject_errors(place, [&] { return parse_ordered_json(arguments, place, Calls::kMaxDepth); });
  if (!values.is_object())
    throw refused(place,
                  fmt::format("{} holds {}, but it must be a JSON object", place, shown(json(values))));
  if (!calls.open.emplace(id, name).second)
    throw refused(key + ".id", fmt::format("{}.id is {}, which another call already has", key, quote(id)));
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(values)}}}};
}

/// The calls of an assistant's message, or null.
ordered_json calls_of(const ordered_json& message, const std::string& key, Calls& calls) {
  const auto found = message.find("tool_calls");
  if (found == message.end() || found->is_null() || *found == ordered_json::array()) return nullptr;
  const std::string place = key + ".tool_calls";
  if (!found->is_array())
    throw refused(place, fmt::format("{} is {}, but it must be a list", place, shown(json(*found))));
  calls.open.clear();
  ordered_json all = ordered_json::array();
  for (std::size_t i = 0; i < found->size(); ++i)
    all.push_back(call_of((*found)[i], fmt::format("{}[{}]", place, i), calls));
  return all;
}

/// A message for the template, with only the keys that it may read.
ordered_json message_of(const ordered_json& message, const std::string& key, Calls& calls) {
  static const std::set<std::string> roles{"system", "developer", "user", "assistant", "tool"};
  if (!message.is_object()) {
    throw refused(key, fmt::format("{} is {}, but it must be an object", key, shown(json(message))));
  }
  const auto text = [&](const char* name) -> std::optional<std::string> {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) return {};
    if (found->is_string()) return found->get<std::string>();
    const std::string place = fmt::format("{}.{}", key, name);
    throw refused(place, fmt::format("{} is {}, but it must be a text", place, shown(json(*found))));
  };
  const auto role = text("role");
  if (!role) throw refused(key + ".role", fmt::format("{} has no role", key));
  if (!roles.contains(*role)) {
    throw refused(key + ".role",
                  fmt::format("{}.role is {}, but it must be one of system, developer, user, assistant, tool",
                              key, quote(*role)));
  }
  json others = message;
  if (*role == "assistant") others.erase("tool_calls");
  if (*role == "tool") others.erase("tool_call_id");
  refuse_keys(others, refused_in_message(), key + ".");
  const ordered_json made = *role == "assistant" ? calls_of(message, key, calls) : ordered_json();
  const bool is_silent = !made.is_null() && message.value("content", ordered_json()).is_null();
  const auto content = message.find("content");
  if (content == message.end() && !is_silent)
    throw refused(key + ".content", fmt::format("{} has no content", key));
  // "developer" is the newer name of this role, but templates do not know it.
  ordered_json result{{"role", *role == "developer" ? "system" : *role},
                      {"content", is_silent ? "" : content_of(*content, key + ".content")}};
  if (!made.is_null()) result["tool_calls"] = made;
  if (*role == "tool") {
    const std::string id = text("tool_call_id").value_or("");
    const auto call = calls.open.find(id);
    if (call == calls.open.end()) {
      throw refused(
          key + ".tool_call_id",
          fmt::format("{}.tool_call_id is {}, but no call before it with this id waits for a result", key,
                      quote(id)));
    }
    result["tool_call_id"] = id;
    result["name"] = call->second;  // some templates read it
    calls.open.erase(call);
  }
  for (const char* name : {"name", "reasoning_content", "reasoning", "thinking"}) {
    if (const auto value = text(name)) result[name] = *value;
  }
  return result;
}

}  // namespace

Conversation::Conversation(std::string_view body) : json_(std::make_unique<Json>()) {
  // Parsed again, because a template may depend on the order of keys.
  const ordered_json values = ordered_json::parse(body);
  const auto messages = values.find("messages");
  if (messages == values.end() || messages->is_null()) {
    throw refused("messages", "the body has no messages");
  }
  if (!messages->is_array()) {
    throw refused("messages", fmt::format("messages is {}, but it must be a list", shown(json(*messages))));
  }
  if (messages->empty()) {
    throw refused("messages", "messages is empty, but it must have at least one message");
  }
  Calls calls;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    json_->messages.push_back(message_of((*messages)[i], fmt::format("messages[{}]", i), calls));
  }
  ordered_json& options = json_->options;
  if (const auto kwargs = values.find("chat_template_kwargs"); kwargs != values.end() && !kwargs->is_null()) {
    if (!kwargs->is_object()) {
      throw refused(
          "chat_template_kwargs",
          fmt::format("chat_template_kwargs is {}, but it must be an object", shown(json(*kwargs))));
    }
    for (const auto& [name, value] : kwargs->items()) {
      const bool is_nothing = value.is_null() || value == ordered_json::array();
      if (name == "messages" || name == "add_generation_prompt" || (name == "tools" && !is_nothing)) {
        throw refused("chat_template_kwargs",
                      fmt::format("chat_template_kwargs has the key {}, which belongs to the body", name));
      }
      if ((name == "documents" || name == "functions") && !is_nothing) {
        throw HttpError(400, fmt::format("chat_template_kwargs.{} is not implemented: leave it out", name),
                        "chat_template_kwargs", "unsupported_parameter");
      }
    }
    options = *kwargs;
  }
  if (ordered_json tools = read_tools(values).shown; !tools.empty()) options["tools"] = std::move(tools);
  options["add_generation_prompt"] = true;
  if (const auto opens = values.find("add_generation_prompt"); opens != values.end() && !opens->is_null()) {
    if (!opens->is_boolean()) {
      throw refused("add_generation_prompt",
                    fmt::format("add_generation_prompt is {}, but it must be true or "
                                "false",
                                shown(json(*opens))));
    }
    options["add_generation_prompt"] = *opens;
  }
}

Conversation::~Conversation() = default;

std::size_t Conversation::bytes() const {
  std::size_t sum = 0;
  for (const ordered_json& message : json_->messages) {
    const ordered_json& content = message["content"];
    if (content.is_string()) sum += content.get_ref<const std::string&>().size();
    if (!content.is_array()) continue;
    for (const ordered_json& part : content) sum += part["text"].get_ref<const std::string&>().size() + 1;
  }
  return sum;
}

bool Conversation::has_calls() const {
  return !json_->options.value("tools", ordered_json::array()).empty() ||
         std::ranges::any_of(json_->messages, [](const ordered_json& message) {
           return message.contains("tool_calls") || message["role"] == "tool";
         });
}

}  // namespace staircase
