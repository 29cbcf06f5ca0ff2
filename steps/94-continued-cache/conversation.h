// A conversation: each question continues the cache of the text before it.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "common/base/error.h"
#include "common/decoding/conversation_cache.h"
#include "common/program/chat_session.h"
#include "generate.h"

namespace staircase {

class Conversation {
 public:
  /// All arguments must outlive this object; the options may change between two answers.
  Conversation(Model& model, const Tokenizer& tokenizer, const ChatTemplate& chat_template,
               const TextOptions& options)
      : model_(model),
        tokenizer_(tokenizer),
        template_(chat_template),
        options_(options),
        cache_(model),
        generator_(options.sampling.seed) {}

  /// Answers the last message. The beginning that the messages share with the previous conversation does not
  /// go through the model again. Throws Error if they leave no room for an answer.
  Answer answer(const std::vector<Message>& messages, const OnToken& on_token) {
    const std::vector<int> prompt = encode_chat(tokenizer_, template_.render(messages));
    const int length = static_cast<int>(prompt.size()), room = model_.config().n_positions - length;
    if (length == 0) throw Error("the chat template turns this conversation into an empty text");
    if (room < 1) {
      throw Error("the conversation has {} tokens, and the model sees at most {}; leave room for an answer",
                  length, model_.config().n_positions);
    }
    TextOptions options = options_;
    options.stopping.max_new_tokens = std::min(options.stopping.max_new_tokens, room);
    const int cached = keep_common(prompt);
    const Generation generation =
        generate(model_, prompt, options, cache_, generator_, [&](const Token& token) {
          text_.push_back(token.id);
          on_token(token);
        });
    return {generation.finish_reason, length, cached};
  }

  /// Restarts the random numbers from the options' seed.
  void reseed() { generator_.seed(options_.sampling.seed); }

 private:
  /// Cuts the cache back to the tokens that its text and `prompt` both begin with, and returns their number.
  /// The last token of the prompt always goes through the model: its logits are needed.
  int keep_common(const std::vector<int>& prompt) {
    const int length = static_cast<int>(prompt.size());
    const auto common = static_cast<int>(std::ranges::mismatch(text_, prompt).in2 - prompt.begin());
    const int kept = std::min({common, cache_.length(0), length - 1});
    cache_.truncate(0, kept);
    text_ = prompt;
    return cache_.length(0);
  }

  Model& model_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  const TextOptions& options_;
  ConversationCache cache_;
  std::vector<int> text_;  // the tokens of the conversation; the cache holds the first ones
  std::mt19937 generator_;
};

}  // namespace staircase
