// A row of the batch: a text that grows in it and leaves when it is finished.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/decoding/results.h"
#include "common/decoding/row_extras.h"
#include "stop_sequences.h"
#include "text_options.h"

namespace staircase {

/// How the text of a row continues.
struct RowOptions : TextOptions {
  StopOptions stop = {};
  /// Functions that a program adds before and after the other options. `text` holds the tokens chosen so far.
  std::function<void(std::span<float> logits, std::span<const int> text)> edit_raw_logits = {};
  std::function<void(std::span<float> logits)> edit_final_logits = {};
  RowExtras extras = {};  ///< set by a server and its schedulers
};

inline void add_options(OptionSink& sink, RowOptions& options) {
  add_options(sink, static_cast<TextOptions&>(options));
  add_options(sink, options.stop);
}

struct Row {
  int number;  ///< of the text; its slot may change when others leave
  std::vector<int> tokens;
  RowOptions options;
  std::mt19937 generator;
  StopFilter filter;
  int new_tokens = 0;
  std::optional<FinishReason> finished = {};
};

/// Whether a text ends with `token`, its `count`-th new one, and why. With stop sequences, also sets the text
/// to show for the token.
inline std::optional<FinishReason> end_of_text(Token& token, StopFilter& filter, int count,
                                               const EndTokens& ends, const RowOptions& options) {
  std::optional<FinishReason> reason = finish_reason(token.id, count, ends, options.stopping);
  if (options.stop.sequences.empty()) return reason;
  token.text = reason == FinishReason::kEos ? "" : filter.push(token.id);  // the end-of-text token is not
                                                                           // text
  if (filter.found()) reason = FinishReason::kStop;
  if (reason) *token.text += filter.rest();
  return reason;
}

/// The next token of a row, chosen from the logits after it, [vocab_size].
inline Token take_token(Row& row, std::span<const float> raw, const EndTokens& ends) {
  const SamplingOptions& sampling = row.options.sampling;
  std::vector<float> logits = copy_of(raw);
  if (row.options.edit_raw_logits)
    row.options.edit_raw_logits(logits, std::span(row.tokens).last(row.new_tokens));
  process(logits, row.tokens, sampling, row.tokens.size() - row.new_tokens);
  if (row.options.edit_final_logits) row.options.edit_final_logits(logits);
  Token token{choose(logits, sampling, row.generator), likeliest(logits, sampling.show_candidates)};
  row.tokens.push_back(token.id);
  row.finished = end_of_text(token, row.filter, ++row.new_tokens, ends, row.options);
  return token;
}

/// Removes finished rows, so a pass no longer computes them. Rows from the end fill their slots, and none
/// moves twice. `move_row` does the same in the cache; `on_leave` gets each removed row as the last one.
inline void remove_finished(std::vector<Row>& rows, const std::function<void(int from, int to)>& move_row,
                            const std::function<void(Row& row)>& on_leave) {
  int count = static_cast<int>(rows.size());  // without the finished rows at the end
  for (int r = 0; r < count; ++r) {
    if (!rows[r].finished) continue;
    do --count;
    while (count > r && rows[count].finished);
    if (count > r) {
      move_row(count, r);
      std::swap(rows[r], rows[count]);
    }
  }
  for (; std::ssize(rows) > count; rows.pop_back()) on_leave(rows.back());
}

}  // namespace staircase
