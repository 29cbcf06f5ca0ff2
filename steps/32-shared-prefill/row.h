// A row of the batch: a text that grows in it and leaves when it is finished.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/decoding/results.h"
#include "text_options.h"

namespace staircase {

struct Row {
  int number;  ///< of the text; its slot may change when others leave
  std::vector<int> tokens;
  TextOptions options;
  std::mt19937 generator;
  int new_tokens = 0;
  std::optional<FinishReason> finished = {};
};

/// The next token of a row, chosen from the logits after it, [vocab_size].
inline Token take_token(Row& row, std::span<const float> raw, const EndTokens& ends) {
  const SamplingOptions& sampling = row.options.sampling;
  std::vector<float> logits = copy_of(raw);
  process(logits, row.tokens, sampling, row.tokens.size() - row.new_tokens);
  const Token token{choose(logits, sampling, row.generator), likeliest(logits, sampling.show_candidates)};
  row.tokens.push_back(token.id);
  row.finished = finish_reason(token.id, ++row.new_tokens, ends, row.options.stopping);
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
