// The generation loop: one token after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "common/decoding/generation.h"
#include "common/model/gpt2.h"
#include "kv_cache.h"
#include "logprobs.h"
#include "sampling.h"
#include "stop.h"

namespace staircase {

/// What happens when the context of the model is full.
enum class Overflow {
  kSlide,      ///< the oldest token leaves the cache, and the others move up as they are: cheap, not exact
  kRecompute,  ///< the cache is filled anew with the last tokens
};

struct GenerateOptions {
  int max_new_tokens = 100;
  int min_new_tokens = 0;
  bool ignore_eos = false;
  StopOptions stop = {};
  SamplingOptions sampling = {};
  unsigned seed = 0;
  int num_return_sequences = 1;
  int max_batch_size = 32;
  std::optional<int> num_speculative_tokens = 4;  ///< γ; without a value it adapts itself
  int show_candidates = 0;
  std::optional<int> logprobs = {};  ///< for how many of the likeliest tokens to tell the log-probability
  bool echo = false;
  bool use_cache = true;
  Overflow on_overflow = Overflow::kSlide;
  std::optional<int> refill = {};  ///< with how many tokens the cache is filled anew; all that fit
  std::string drift = {};          ///< file for the plot of what sliding costs
};

/// Makes room for the `fresh` tokens at the end of `window`, the last tokens of the text, in a cache that may
/// be full. Returns the tokens to feed to the model.
inline std::span<const int> make_room(std::span<const int> fresh, std::span<const int> window,
                                      StaticKvCache& cache, int row, const GenerateOptions& options) {
  const auto needed = static_cast<int>(fresh.size());
  const int free = cache.capacity() - cache.length(row);
  if (needed <= free) return fresh;
  if (options.on_overflow == Overflow::kSlide) {
    cache.slide(row, needed - free);
    return fresh;
  }
  cache.truncate(row, 0);
  return window.last(std::min<std::size_t>(options.refill.value_or(cache.capacity()), window.size()));
}

/// Whether the text ends with `token`, and why. Gives the token the text to show for it, where stop sequences
/// are looked for.
inline std::optional<FinishReason> end_of_text(Token& token, StopFilter& filter, int eos, bool last,
                                               const GenerateOptions& options) {
  std::optional<FinishReason> reason;
  if (last) reason = FinishReason::kLength;
  if (token.id == eos && !options.ignore_eos) {
    reason = FinishReason::kEos;
    if (!options.stop.sequences.empty()) token.text = "";  // it is no text
  } else {
    token.text = filter.push(token.id);
  }
  if (filter.found()) reason = FinishReason::kStop;
  if (reason && token.text) *token.text += filter.rest();
  return reason;
}

/// A text that is growing.
struct Row {
  int number;  ///< as the caller counts; its place in the batch changes when others leave
  std::vector<int> tokens;
  std::mt19937 generator;
  StopFilter filter;
  std::optional<FinishReason> finished = {};
};

/// Logits after the last token of each row, [rows.size(), vocab_size]. rows[i] has row i of the cache; its
/// `tokens` are all that matters here.
template <typename Row>
std::span<float> next_logits(Gpt2& model, const std::vector<Row>& rows, StaticKvCache* cache,
                             const GenerateOptions& options) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  std::vector<std::span<const int>> fed;
  for (int i = 0; i < std::ssize(rows); ++i) {
    const std::vector<int>& tokens = rows[i].tokens;
    const std::span<const int> window = std::span(tokens).last(std::min(tokens.size(), context));
    // With a cache only new tokens go through the model: the prompt, and then one token at a time.
    const std::span<const int> fresh = cache == nullptr || cache->length(i) == 0 ? window : window.last(1);
    fed.push_back(cache == nullptr ? window : make_room(fresh, window, *cache, i, options));
  }
  return model.next_logits(fed, cache);
}

/// Continues all prompts at once, each with one chosen token after the other and num_return_sequences times;
/// `on_token` sees each one as it is chosen. Text i belongs to prompt i / num_return_sequences and has random
/// numbers of its own, so no text depends on the others. The cache has a row for each.
inline std::vector<Generation> generate(Gpt2& model, std::span<const std::vector<int>> prompts,
                                        const GenerateOptions& options, StaticKvCache* cache,
                                        const OnRowToken& on_token) {
  const int copies = options.num_return_sequences, vocab_size = model.config().vocab_size;
  const int eos = model.config().eos_token_id;
  std::vector<Generation> texts(prompts.size() * copies);
  std::vector<Row> rows;
  const auto add_row = [&](int number) {
    if (cache != nullptr) cache->truncate(static_cast<int>(rows.size()), 0);
    rows.push_back(
        {number, prompts[number / copies], std::mt19937(options.seed + number), StopFilter(options.stop)});
  };
  for (int p = 0; p < std::ssize(prompts); ++p) add_row(p * copies);

  for (int i = 0; i < options.max_new_tokens && !rows.empty(); ++i) {
    std::span<float> logits = next_logits(model, rows, cache, options);
    // A prompt went through the model once, for all the texts that it begins.
    std::vector<float> shared;
    if (i == 0 && copies > 1) {
      shared.assign(logits.begin(), logits.end());
      for (int text = 0; text < std::ssize(texts); ++text) {
        if (text % copies == 0) continue;
        const int first = text / copies;  // the row of the same prompt
        add_row(text);
        if (cache != nullptr) cache->copy_row(first, static_cast<int>(rows.size()) - 1);
        const std::span<const float> own = logits.subspan(first * vocab_size, vocab_size);
        shared.insert(shared.end(), own.begin(), own.end());
      }
      logits = shared;
    }
    for (int r = 0; r < std::ssize(rows); ++r) {
      Row& row = rows[r];
      const std::span<float> scores = logits.subspan(r * vocab_size, vocab_size);
      const std::vector<float> logprobs = options.logprobs ? log_softmax(scores) : std::vector<float>();
      if (i < options.min_new_tokens) scores[eos] = kMasked;
      process(scores, row.tokens, options.sampling);
      const int next = choose(scores, options.sampling, row.generator);
      row.tokens.push_back(next);
      Token token{next, likeliest(scores, options.show_candidates)};
      if (options.logprobs) token.logprobs = logprobs_of(next, logprobs, *options.logprobs);
      row.finished = end_of_text(token, row.filter, eos, i + 1 == options.max_new_tokens, options);
      on_token(row.number, token);
    }
    // A finished row leaves, and the last one takes its place: the others pay for no row that has ended.
    for (int r = static_cast<int>(rows.size()) - 1; r >= 0; --r) {
      if (!rows[r].finished) continue;
      texts[rows[r].number] = {std::move(rows[r].tokens), *rows[r].finished};
      if (const int last = static_cast<int>(rows.size()) - 1; r < last) {
        if (cache != nullptr) cache->copy_row(last, r);
        rows[r] = std::move(rows[last]);
      }
      rows.pop_back();
    }
  }
  for (Row& row : rows) texts[row.number] = {std::move(row.tokens), FinishReason::kLength};  // no new tokens
  return texts;
}

}  // namespace staircase
