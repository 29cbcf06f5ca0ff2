// What a server and its schedulers add to the options of a row.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace staircase {

struct BeamOptions;

struct RowExtras {
  int adapter = -1;                                ///< index of the model's adapter, for EndedTexts; -1: none
  int priority = 0;                                ///< for a PriorityScheduler: 0 is the most urgent
  std::shared_ptr<const BeamOptions> search = {};  ///< for a TurnScheduler: the text comes from a beam search

  std::optional<std::int64_t> turn = {};  ///< set by PriorityScheduler
  double chance = 0.5;                    ///< that a draft is right, measured by DraftingScheduler
};

}  // namespace staircase
