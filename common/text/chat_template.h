// From a conversation to the text, and to the tokens, on which a model was trained. A conversation is JSON,
// of which the installed library knows nothing, so this is not installed.
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
  /// That of a model: chat_template.jinja or tokenizer_config.json in a folder, or the metadata of a .gguf
  /// file. Nothing if it has none: then it was not trained to answer. Throws Error with one sentence for a
  /// broken file, and for a template that cannot be used.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model);

  /// The template in `file`, or that of the model where `file` is empty. Throws Error if there is none.
  static ChatTemplate load(const std::filesystem::path& model, const std::string& file);

  /// `special_tokens` are those that the template can name, as "eos_token"; `file` is for messages.
  ChatTemplate(const std::string& source, std::map<std::string, std::string> special_tokens,
               const std::string& file);

  /// `options` is an object with the template's other variables: add_generation_prompt, tools, documents,
  /// enable_thinking and the like. Throws Error with one sentence, for what the template refuses as well.
  Rendered render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& options,
                  const std::tm& now, const RenderLimits& limits = {}) const;

  /// The conversation up to the place where the model's next answer begins, with today's date where the
  /// template writes one.
  Rendered render(const std::vector<Message>& messages) const;

  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  std::string file_;
  std::map<std::string, std::string> special_tokens_;
  JinjaTemplate template_;
};

/// The tokens of a conversation. Special tokens are found in the template's own text alone, so a message
/// that holds "<|im_end|>" ends nothing. The template writes the begin-of-text token too, if there is to be
/// one.
std::vector<int> encode_chat(const Tokenizer& tokenizer, const Rendered& rendered);

/// The same text with the flags of its special tokens alone, and so with the same tokens. The other flags say
/// nothing: most templates write "assistant" themselves where an answer begins, and take it from the message
/// when it has become one.
Rendered marks_alone(const Tokenizer& tokenizer, Rendered rendered);

}  // namespace staircase
