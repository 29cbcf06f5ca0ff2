// Turns a conversation into the text, and into the tokens, that a model was trained on. A conversation is
// JSON, which the installed library does not use, so this header is not installed.
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
  /// Loads the template of a model from chat_template.jinja or tokenizer_config.json in a folder, or from the
  /// metadata of a .gguf file. Returns nothing if the model has no template: then it was not trained to
  /// answer. Throws Error with one sentence for a broken file and for an unusable template.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model);

  /// Loads the template in `file`, or the model's own if `file` is empty. Throws Error if the model has none.
  static ChatTemplate load(const std::filesystem::path& model, const std::string& file);

  /// `special_tokens` maps names that the template can use, such as "eos_token", to texts. `file` is for
  /// messages.
  ChatTemplate(const std::string& source, std::map<std::string, std::string> special_tokens,
               const std::string& file);

  /// `options` is an object with the template's other variables: add_generation_prompt, tools, documents,
  /// enable_thinking and the like. Throws Error with one sentence for a fault in the template, and if the
  /// template rejects the conversation.
  Rendered render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& options,
                  const std::tm& now, const RenderLimits& limits = {}) const;

  /// Renders the conversation up to the point where the model's next answer begins, with today's date if the
  /// template writes one.
  Rendered render(const std::vector<Message>& messages) const;

  /// Whether the template understands a content that is a list of parts: [{"type": "text", "text": ...}].
  /// Other templates write the list as it is, so their texts must be joined first.
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

/// Returns the tokens of a conversation. Markers are found only in the template's own text, so "<|im_end|>"
/// in a message ends nothing. The template itself writes the begin-of-text token, if it needs one.
std::vector<int> encode_chat(const Tokenizer& tokenizer, const Rendered& rendered);

/// Returns the same text with only the flags of its special tokens, so it has the same tokens. The other
/// flags carry no meaning: most templates write "assistant" themselves where an answer begins, but later take
/// the word from the message.
Rendered marks_alone(const Tokenizer& tokenizer, Rendered rendered);

}  // namespace staircase
