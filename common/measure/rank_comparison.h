// Compares a model that is split over several ranks with the whole model.
#pragma once

#include <functional>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Computes the logits after `prompt` again with `size` ranks: threads, each with its share of the weights.
/// Prints how far they are from `model`'s logits, how many MiB of weights rank 0 holds, and how many KiB it
/// received. Calls `prepare` with each rank's model first.
void compare_with_ranks(Model& model, int size, const std::vector<int>& prompt,
                        const std::function<void(Model& part)>& prepare);

/// Compares the logits after each of `prompts`, with the blocks split between the ranks. Prints how many
/// blocks and MiB of weights each rank holds, how many KiB it receives, and how long the pass takes.
void compare_with_stages(Model& model, int size, const std::vector<std::vector<int>>& prompts,
                         const std::function<void(Model& part)>& prepare);

}  // namespace staircase
