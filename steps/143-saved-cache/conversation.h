// A conversation: each question continues the cache of the text before it.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "common/base/error.h"
#include "common/decoding/conversation_cache.h"
#include "common/program/chat_session.h"
#include "common/program/session_file.h"
#include "dropped_turns.h"
#include "generate.h"
#include "known_tokens.h"

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
    const DroppedTurns before = turns_;
    const auto [rendered, prompt] = fitting(messages);
    const int length = static_cast<int>(prompt.size()), room = model_.config().n_positions - length;
    if (length == 0) throw Error("the chat template turns this conversation into an empty text");
    if (room < 1) {
      turns_ = before;
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
    remember(rendered, prompt, generation);
    return {generation.finish_reason, length, cached, turns_.report()};
  }

  /// Saves everything that the next answer depends on.
  void save(const SessionFile& file, const std::vector<Message>& messages) {
    SessionWriter writer = file.write({.messages = messages,
                                       .dropped = turns_.dropped(),
                                       .known = known_.texts(),
                                       .tokens = text_,
                                       .cached = cache_.length(0),
                                       .held = cache_.held(),
                                       .seed = options_.sampling.seed,
                                       .generator = generator_});
    for (int l = 0; l < model_.config().n_layer; ++l) writer.put(model_.device(), cache_.layer(l));
    writer.finish();
  }

  /// Continues as if the program that saved this had never ended. Returns the messages. Another seed starts
  /// its own random numbers.
  std::vector<Message> restore(SessionReader& saved) {
    const Session& session = saved.session();
    turns_ = DroppedTurns(session.dropped);
    for (const auto& [rendered, tokens] : session.known) known_.remember(tokenizer_, rendered, tokens, {});
    text_ = session.tokens;
    cache_.append(0, session.held);
    cache_.truncate(0, session.cached);
    for (int l = 0; l < model_.config().n_layer; ++l) saved.get(model_.device(), cache_.layer(l));
    if (session.seed == options_.sampling.seed) generator_ = session.generator;
    return session.messages;
  }

  /// Restarts the random numbers from the options' seed.
  void reseed() { generator_.seed(options_.sampling.seed); }

 private:
  struct Prompt {
    Rendered rendered;
    std::vector<int> tokens;
  };

  Prompt encoded(const std::vector<Message>& messages) const {
    Rendered rendered = template_.render(messages);
    std::vector<int> tokens = known_.encode(tokenizer_, rendered);
    return {std::move(rendered), std::move(tokens)};
  }

  /// The newest messages that leave room for an answer. Once they no longer all fit, fills only half of the
  /// context: after a new beginning the cache is of no use, so this must be rare.
  Prompt fitting(const std::vector<Message>& messages) {
    const int context = model_.config().n_positions;
    const int answer = std::min(options_.stopping.max_new_tokens, context / 4);
    std::vector<Message> seen = turns_.rest(messages);
    Prompt prompt = encoded(seen);
    if (std::ssize(prompt.tokens) + answer <= context) return prompt;
    while (std::ssize(prompt.tokens) + answer > context / 2 && turns_.drop_oldest(seen))
      prompt = encoded(seen);
    return prompt;
  }

  void remember(const Rendered& rendered, const std::vector<int>& prompt, const Generation& generation) {
    std::span<const int> answer = std::span(generation.tokens).subspan(prompt.size());
    if (generation.finish_reason == FinishReason::kEos) answer = answer.first(answer.size() - 1);
    known_.remember(tokenizer_, rendered, prompt, answer);
  }

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
  KnownTokens known_;
  DroppedTurns turns_;
};

}  // namespace staircase
