// Masks every token after which the text can no longer become an allowed one.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/tokenizer.h"
#include "row.h"

namespace staircase {

/// Rejects options and models that conflict with an option that decides where a text ends.
inline void require_an_end(OptionSink& sink, const std::string& name, const RowOptions& row,
                           const std::function<bool()>& is_on) {
  sink.refuse_if([=, &row] { return is_on() && (row.stopping.ignore_eos || row.length.min_new_tokens > 0); },
                 name + " decides where a text ends, so leave out --ignore-eos and --min-new-tokens");
  sink.model_rule([=](const ModelConfig& config) {
    if (is_on() && config.end_tokens.empty())
      throw UsageError("{} needs a model with an end-of-text token, and this one has none", name);
  });
}

/// Keeps the logits, [vocab_size], of tokens that continue `text`, the new tokens so far, towards one of the
/// `allowed` texts; masks the others. Keeps end-of-text tokens if `text` is itself an allowed text.
template <typename Allowed>
void keep_allowed(std::span<float> logits, std::span<const int> text, const Allowed& allowed,
                  const Tokenizer& tokenizer, const EndTokens& ends) {
  auto states = allowed.start();
  for (const int token : text) states = allowed.after(states, tokenizer.bytes(token));
  const std::vector<float> raw = copy_of(logits);
  for (int token = 0; token < std::ssize(logits); ++token) {
    const std::string_view bytes = tokenizer.bytes(token);
    if (bytes.empty() || allowed.after(states, bytes).empty()) logits[token] = kMasked;
  }
  for (const int marker : tokenizer.special_tokens()) logits[marker] = kMasked;  // its name is not text
  for (const int end : ends) logits[end] = allowed.accepts(states) ? raw[end] : kMasked;
  if (std::ranges::count(logits, kMasked) == std::ssize(logits))
    throw Error("no token continues {} to an allowed text", in_json(tokenizer.decode(text)));
}

}  // namespace staircase
