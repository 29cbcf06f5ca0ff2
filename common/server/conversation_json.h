// The JSON in a conversation. Only .cpp files include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/server/call_form.h"
#include "common/server/conversation.h"

namespace staircase {

struct Conversation::Json {
  /// Each message's content is a text, or a list of {"type": "text", "text": ...}.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json options = nlohmann::ordered_json::object();  ///< the template's other variables
};

/// A content as one text, with a line for each part.
inline std::string joined_parts(const nlohmann::ordered_json& content) {
  if (content.is_string()) return content;
  std::string text;
  for (const nlohmann::ordered_json& part : content) {
    if (&part != &content.front()) text += '\n';
    text += part["text"];
  }
  return text;
}

}  // namespace staircase
