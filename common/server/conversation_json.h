// The JSON in a conversation. Only sources include this.
#pragma once

#include <nlohmann/json.hpp>

#include "common/server/conversation.h"

namespace staircase {

struct Conversation::Json {
  /// Their contents are texts, or lists of {"type": "text", "text": ...}.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json options = nlohmann::ordered_json::object();  ///< the template's other variables
};

}  // namespace staircase
