// A row of the batch: a text that grows in it and leaves when it is finished.
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
  int number = 0;  ///< of the text; its slot may change when others leave
  std::optional<FinishReason> finished = {};
};

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
