// Where the grammar allows only one text, its tokens are appended without asking the model.
#pragma once

#include <string>

#include "grammar.h"
#include "token_masks.h"
#include "tools.h"

namespace staircase {

struct JumpOptions {
  bool jump_ahead = false, tools = false;
};

inline void add_options(OptionSink& sink, JumpOptions& jump, const GrammarOptions& grammar,
                        const RowOptions& row) {
  sink.add("--jump-ahead", &jump.jump_ahead,
           "append tokens that the grammar forces, without running the model");
  sink.add("--tools", &jump.tools, "append the results of calls such as [calc(3*4) =");
  sink.refuse_if([&] { return jump.tools && !jump.jump_ahead; }, "--tools needs --jump-ahead");
  sink.refuse_if([&] { return jump.jump_ahead && grammar.file.empty(); }, "--jump-ahead needs --grammar");
  sink.refuse_if([&] { return jump.jump_ahead && (row.logprobs.count || row.sampling.show_candidates > 0); },
                 "--jump-ahead appends tokens for which there are no logits, so leave out --logprobs and "
                 "--show-candidates");
}

/// The bytes that must follow from these states, at most 1,000: as long as only one byte can follow.
template <typename Allowed>
std::string forced_text(const Allowed& allowed, typename Allowed::States states) {
  std::string text;
  while (!allowed.accepts(states) && text.size() < 1000) {
    std::string leading_on;
    for (int byte = 0; byte < 256; ++byte)
      if (const char one = static_cast<char>(byte); !allowed.after(states, {&one, 1}).empty())
        leading_on += one;
    if (leading_on.size() != 1) break;
    text += leading_on;
    states = allowed.after(states, leading_on);
  }
  return text;
}

/// The tokens of a forced text except the last one: the model might have written its bytes in one token with
/// those that come after them.
inline std::vector<int> sure_tokens(const Tokenizer& tokenizer, const std::string& forced) {
  std::vector<int> tokens = tokenizer.encode(forced);
  if (!tokens.empty()) tokens.pop_back();
  return tokens;
}

/// Appends a token without choosing it from logits.
inline Token append_token(Row& row, int id, const EndTokens& ends) {
  Token token{.id = id};
  row.tokens.push_back(id);
  row.finished = end_of_text(token, row.filter, ++row.new_tokens, ends, row.options);
  return token;
}

/// Continues one prompt, with `options` that mask as `masks` do. `passes` counts the model's passes, prefill
/// included. Beyond the context a pass reads only the newest token, so no tokens are appended there. With
/// `tools`, calls get their results, which the grammar must allow and the context must hold; otherwise throws
/// Error.
template <typename Allowed>
Generation generate_ahead(Model& model, const std::shared_ptr<TokenMasks<Allowed>>& masks,
                          const std::vector<int>& prompt, const RowOptions& options, KvCache& cache,
                          int& passes, const OnToken& on_token, bool tools = false) {
  const Tokenizer& tokenizer = masks->tokenizer;
  Row row{0, prompt, options, std::mt19937(options.sampling.seed), StopFilter(options.stop, tokenizer)};
  auto states = masks->allowed.start();
  std::string text = tokenizer.decode(prompt);
  const auto add = [&](const Token& token) {
    states = masks->allowed.after(states, tokenizer.bytes(token.id));
    text += tokenizer.bytes(token.id);
    on_token(token);
  };
  if (options.stopping.max_new_tokens == 0) return {prompt, FinishReason::kLength};
  while (!row.finished) {
    const std::string result = tools ? result_at_end(text) : "";
    if (masks->allowed.after(states, result).empty())
      throw Error("the grammar does not allow the result{} of a call", result);
    if (!result.empty() && std::ssize(row.tokens) + std::ssize(result) > model.config().n_positions)
      throw Error("the context has no room for the result{} of a call", result);
    const std::size_t before = row.tokens.size();
    for (const int token : result.empty() ? sure_tokens(tokenizer, forced_text(masks->allowed, states))
                                          : tokenizer.encode(result))
      if (!row.finished && std::ssize(row.tokens) < model.config().n_positions)
        add(append_token(row, token, masks->ends));
    if (row.finished) break;
    if (row.tokens.size() > before) continue;  // a call may end there
    const auto fed = tokens_to_feed(row.tokens, model.config().n_positions, cache, 0, options.overflow);
    add(take_token(row, model.next_logits(fed, cache), masks->ends));
    ++passes;
  }
  return {row.tokens, *row.finished};
}

}  // namespace staircase
