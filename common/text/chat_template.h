// From a conversation to the text, and to the tokens, that a model was trained on. A conversation is JSON,
// which the installed library does not use, so this is not installed.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/text/jinja.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// One turn of a conversation. The role is "system", "user" or "assistant".
struct Message {
  std::string role, content;

  bool operator==(const Message&) const = default;
};

class ChatTemplate {
 public:
  /// The template of a model: chat_template.jinja or tokenizer_config.json in a folder, or the metadata of a
  /// .gguf file. Nothing if it has none: then it was not trained to answer. Throws Error with one sentence
  /// for a broken file and for an unusable template.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model);

  /// The template in `file`, or the model's if `file` is empty. Throws Error if there is none.
  static ChatTemplate load(const std::filesystem::path& model, const std::string& file);

  /// `special_tokens` are those that the template can name, such as "eos_token"; `file` is for messages.
  ChatTemplate(const std::string& source, std::map<std::string, std::string> special_tokens,
               const std::string& file);

  /// `options` is an object with the template's other variables: add_generation_prompt, tools, documents,
  /// enable_thinking and the like. Throws Error with one sentence, also if the template rejects the
  /// conversation.
  Rendered render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& options,
                  const std::tm& now, const RenderLimits& limits = {}) const;

  /// The conversation up to the point where the model's next answer begins, with today's date if the template
  /// writes one.
  Rendered render(const std::vector<Message>& messages) const;

  /// Whether the template reads a content that is a list of parts itself: [{"type": "text", "text": ...}].
  /// Others write the list as it is, so they need its texts joined.
  bool reads_parts() const { return reads_parts_; }

  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

  const std::string& source() const { return source_; }

 private:
  bool writes_parts_as_text() const;

  std::string source_, file_;
  std::map<std::string, std::string> special_tokens_;
  JinjaTemplate template_;
  bool reads_parts_;
};

/// The tokens of a conversation. Markers are found only in the template's own text, so "<|im_end|>" in a
/// message ends nothing. The template also writes the begin-of-text token, if any.
std::vector<int> encode_chat(const Tokenizer& tokenizer, const Rendered& rendered);

/// The same text with the flags of its special tokens only, and so with the same tokens. The other flags
/// carry no meaning: most templates write "assistant" themselves where an answer begins, and take it from the
/// message afterwards.
Rendered marks_alone(const Tokenizer& tokenizer, Rendered rendered);

}  // namespace staircase
