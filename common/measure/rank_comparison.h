// Compares a model split over several ranks with the same model in one piece.
#pragma once

#include <functional>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// Computes the logits after `prompt` again with `size` ranks: threads, each with its share of the weights.
/// Prints how far they are from those of `model`, how much of the weights rank 0 holds, and how much it
/// received. `prepare` is called for each rank's model.
void compare_with_ranks(Model& model, int size, const std::vector<int>& prompt,
                        const std::function<void(Model& part)>& prepare);

/// The same for the logits after each of `prompts`, with the blocks shared out. Prints what each rank has and
/// receives, and how long the pass takes.
void compare_with_stages(Model& model, int size, const std::vector<std::vector<int>>& prompts,
                         const std::function<void(Model& part)>& prepare);

}  // namespace staircase
