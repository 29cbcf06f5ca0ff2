// A row of the batch: a text that grows there, and leaves when it is done.
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/decoding/results.h"

namespace staircase {

struct Row {
  std::vector<int> tokens;
  std::mt19937 generator;
  int number = 0;  ///< of the text; its place in the batch changes when others leave
  std::optional<FinishReason> finished = {};
};

/// Finished rows leave, so the others do not pay for them: rows from the end take their slots, and none
/// moves twice. `move_row` does the same in the cache; `on_leave` gets those that leave, each as the last
/// row.
inline void remove_finished(std::vector<Row>& rows, const std::function<void(int from, int to)>& move_row,
                            const std::function<void(Row& row)>& on_leave) {
  const auto last_leaves = [&] {
    on_leave(rows.back());
    rows.pop_back();
  };
  for (int r = 0; r < std::ssize(rows); ++r) {
    if (!rows[r].finished) continue;
    while (rows.back().finished && std::ssize(rows) > r + 1) last_leaves();
    if (const int last = static_cast<int>(rows.size()) - 1; r < last) {
      move_row(last, r);
      std::swap(rows[r], rows[last]);
    }
    last_leaves();
  }
}

}  // namespace staircase
