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

/// Finished rows leave, so the others do not pay for them. Rows from the end take their slots, none twice.
/// `move_row` does the same in the cache; `on_leave` gets those that leave, each as the last row.
inline void remove_finished(std::vector<Row>& rows, const std::function<void(int from, int to)>& move_row,
                            const std::function<void(Row& row)>& on_leave) {
  int count = static_cast<int>(rows.size());  // without those at the end that leave
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
