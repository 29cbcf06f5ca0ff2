// A model shared by several ranks beside the same model in one piece.
#pragma once

#include <functional>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Computes the logits after `prompt` once more, by `size` ranks: threads, each with its share of the
/// weights. Prints how far the logits are from those of `model`, what rank 0 has of the weights, and what it
/// has received. `prepare` is called for the model of each rank.
void compare_with_ranks(Model& model, int size, const std::vector<int>& prompt,
                        const std::function<void(Model& part)>& prepare);

/// The same for the logits after each of `prompts`, with the blocks shared out. Prints what each rank has and
/// receives, and how long the pass takes.
void compare_with_stages(Model& model, int size, const std::vector<std::vector<int>>& prompts,
                         const std::function<void(Model& part)>& prepare);

}  // namespace staircase
