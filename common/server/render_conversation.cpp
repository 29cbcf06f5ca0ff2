// Beside the other functions of Conversation: programs without templates need not link with them.
#include <ctime>

#include "common/server/conversation_json.h"

namespace staircase {

Rendered Conversation::rendered_by(const ChatTemplate& chat_template) const {
  // A template that does more than these ends in a quarter of a second: others wait for it.
  static constexpr RenderLimits kLimits{.steps = 2'000'000, .bytes = 64 << 20, .output = 8 << 20};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return chat_template.render(json_->messages, json_->options, local, kLimits);
}

}  // namespace staircase
