// A conversation: the model reads all of it for each answer.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/program/chat_session.h"
#include "generate.h"

namespace staircase {

/// Answers the last message. Throws Error if the messages leave no room for an answer.
inline Answer answer(Model& model, const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                     TextOptions options, std::mt19937& generator, const std::vector<Message>& messages,
                     const OnToken& on_token) {
  const std::vector<int> prompt = encode_chat(tokenizer, chat_template.render(messages));
  const int length = static_cast<int>(prompt.size()), room = model.config().n_positions - length;
  if (length == 0) throw Error("the chat template turns this conversation into an empty text");
  if (room < 1) {
    throw Error("the conversation has {} tokens, and the model sees at most {}; leave room for an answer",
                length, model.config().n_positions);
  }
  options.stopping.max_new_tokens = std::min(options.stopping.max_new_tokens, room);
  StaticKvCache cache(model);
  const Generation generation = generate(model, prompt, options, cache, generator, on_token);
  return {generation.finish_reason, length};
}

}  // namespace staircase
