// Function calls for models whose template has no form of calls.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/server/conversation_json.h"

namespace staircase {

namespace {

using nlohmann::ordered_json;

std::string instructions(const ordered_json& tools, const CallForm& form) {
  std::string text = "You can call functions. These are the functions, in JSON:\n";
  for (const ordered_json& tool : tools) text += tool.dump() + '\n';
  return text + fmt::format(
                    "To call one, answer with its name and its arguments in this form:\n{}NAME{}{{}}{}\n"
                    "A message with <tool_response> then brings the result.",
                    form.begin, form.middle, form.end);
}

std::string text_of(const ordered_json& calls, const CallForm& form) {
  std::string text;
  for (const ordered_json& call : calls) {
    const ordered_json& function = call["function"];
    text += (text.empty() ? form.begin : form.between) + function["name"].get<std::string>() + form.middle +
            function["arguments"].dump();
  }
  return text + form.end;
}

/// Adds the other text before or after the content, with a blank line between them.
void join(ordered_json& content, const std::string& other, bool other_is_first = false) {
  const std::string own = joined_parts(content), blank = own.empty() ? "" : "\n\n";
  content = other_is_first ? other + blank + own : own + blank + other;
}

}  // namespace

void Conversation::write_calls(const CallForm& form) {
  ordered_json messages = ordered_json::array();
  bool has_results = false;  // in the last message, a user's: most templates reject two in a row
  for (ordered_json& message : json_->messages) {
    const bool is_result = message["role"] == "tool", is_user = message["role"] == "user";
    const std::string result =
        is_result ? fmt::format("<tool_response>\n{}\n</tool_response>", joined_parts(message["content"]))
                  : "";
    if (const auto calls = message.find("tool_calls"); calls != message.end()) {
      join(message["content"], text_of(*calls, form));
      message.erase("tool_calls");
    }
    if (has_results && (is_result || is_user)) {
      join(messages.back()["content"], is_result ? result : joined_parts(message["content"]));
    } else {
      messages.push_back(is_result ? ordered_json{{"role", "user"}, {"content", result}}
                                   : std::move(message));
    }
    has_results = is_result;
  }
  if (const auto tools = json_->options.find("tools"); tools != json_->options.end()) {
    const std::string text = instructions(*tools, form);
    const auto first = [&](const char* role) {
      return std::ranges::find_if(messages, [&](const ordered_json& one) { return one["role"] == role; });
    };
    if (const auto system = first("system"); system != messages.end()) {
      join((*system)["content"], text);
    } else if (const auto user = first("user"); user != messages.end()) {  // some reject a system message
      join((*user)["content"], text, true);
    } else {
      messages.insert(messages.begin(), ordered_json{{"role", "system"}, {"content", text}});
    }
    json_->options.erase("tools");
  }
  json_->messages = std::move(messages);
}

}  // namespace staircase
