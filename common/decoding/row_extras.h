// What a server and its schedulers add to the options of a row.
#pragma once

#include <cstdint>
#include <optional>

namespace staircase {

struct RowExtras {
  int adapter = -1;  ///< among those of the model, for EndedTexts; -1: none
  int priority = 0;  ///< for a PriorityScheduler: 0 is the most urgent

  std::optional<std::int64_t> turn = {};  ///< PriorityScheduler sets it
  double chance = 0.5;                    ///< that a draft is right: DraftingScheduler measures it
};

}  // namespace staircase
