// Separate from the other functions of Conversation: programs without templates need not link with them.
#include "common/server/conversation_json.h"
#include "kernels/platform.h"

namespace staircase {

namespace {

using nlohmann::ordered_json;

/// The parts of each content as one text, a line each.
ordered_json with_joined_parts(ordered_json messages) {
  for (ordered_json& message : messages) {
    ordered_json& content = message["content"];
    if (!content.is_array()) continue;
    std::string text;
    for (const ordered_json& part : content) {
      if (&part != &content.front()) text += '\n';
      text += part["text"];
    }
    content = text;
  }
  return messages;
}

}  // namespace

Rendered Conversation::rendered_by(const ChatTemplate& chat_template) const {
  // A template that exceeds these limits ends in a quarter of a second: others wait for it.
  static constexpr RenderLimits kLimits{.steps = 2'000'000, .bytes = 64 << 20, .output = 8 << 20};
  if (chat_template.reads_parts())
    return chat_template.render(json_->messages, json_->options, platform::local_time(), kLimits);
  return chat_template.render(with_joined_parts(json_->messages), json_->options, platform::local_time(),
                              kLimits);
}

}  // namespace staircase
