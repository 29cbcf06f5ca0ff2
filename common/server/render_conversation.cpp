// Separate from the other functions of Conversation: programs without templates need not link with them.
#include "common/server/conversation_json.h"
#include "kernels/platform.h"

namespace staircase {

namespace {

using nlohmann::ordered_json;

ordered_json with_joined_parts(ordered_json messages) {
  for (ordered_json& message : messages) message["content"] = joined_parts(message["content"]);
  return messages;
}

}  // namespace

Rendered Conversation::rendered_by(const ChatTemplate& chat_template) const {
  // These limits stop a template within a quarter of a second, because other chats wait for it.
  static constexpr RenderLimits kLimits{.steps = 2'000'000, .bytes = 64 << 20, .output = 8 << 20};
  if (chat_template.reads_parts())
    return chat_template.render(json_->messages, json_->options, platform::local_time(), kLimits);
  return chat_template.render(with_joined_parts(json_->messages), json_->options, platform::local_time(),
                              kLimits);
}

}  // namespace staircase
