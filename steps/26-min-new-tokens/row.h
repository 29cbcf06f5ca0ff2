// A row of the batch: a text that grows there, and leaves when it is done.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "common/decoding/generation.h"
#include "min_new_tokens.h"
#include "static_kv_cache.h"
#include "stop.h"
#include "text_options.h"

namespace staircase {

/// How the text of a row goes on.
struct RowOptions : TextOptions {
  StopOptions stop = {};
  MinLengthOptions length = {};
};

inline void add_options(OptionSink& sink, RowOptions& options) {
  add_options(sink, static_cast<TextOptions&>(options));
  add_options(sink, options.stop);
  add_options(sink, options.length);
}

struct Row {
  int number;  ///< of the text; its place in the batch changes when others leave
  std::vector<int> tokens;
  RowOptions options;
  std::mt19937 generator;
  StopFilter filter = StopFilter(options.stop);
  int new_tokens = 0;
  std::optional<FinishReason> finished = {};
};

/// Whether a text ends with `token`, its `count`-th new one, and why. Gives the token the text to show for
/// it, where stop sequences are looked for.
inline std::optional<FinishReason> end_of_text(Token& token, StopFilter& filter, int count, int eos,
                                               const RowOptions& options) {
  std::optional<FinishReason> reason = finish_reason(token.id, count, eos, options.stopping);
  if (reason != FinishReason::kEos) {
    token.text = filter.push(token.id);
  } else if (!options.stop.sequences.empty()) {
    token.text = "";  // it is no text
  }
  if (filter.found()) reason = FinishReason::kStop;
  if (reason && token.text) *token.text += filter.rest();
  return reason;
}

/// The next token of a row, chosen from the logits behind it, [vocab_size].
inline Token take_token(Row& row, std::span<float> scores, int eos) {
  const SamplingOptions& sampling = row.options.sampling;
  forbid_early_end(scores, row.new_tokens, eos, row.options.length);
  process(scores, row.tokens, sampling);
  Token token{choose(scores, sampling, row.generator), likeliest(scores, sampling.show_candidates)};
  row.tokens.push_back(token.id);
  row.finished = end_of_text(token, row.filter, ++row.new_tokens, eos, row.options);
  return token;
}

/// Finished rows leave, so that the others pay for none that has ended: the last row takes the place of each,
/// here and in the cache. `on_leave` sees them.
inline void remove_finished(std::vector<Row>& rows, StaticKvCache* cache,
                            const std::function<void(Row& row)>& on_leave) {
  for (int r = static_cast<int>(rows.size()) - 1; r >= 0; --r) {
    if (!rows[r].finished) continue;
    on_leave(rows[r]);
    if (const int last = static_cast<int>(rows.size()) - 1; r < last) {
      if (cache != nullptr) cache->copy_row(last, r);
      rows[r] = std::move(rows[last]);
    }
    rows.pop_back();
  }
}

}  // namespace staircase
