// A shared model whose rank 0 alone decides what to compute: the other ranks take part in its passes.
#pragma once

#include <functional>

#include "common/model/model.h"
#include "common/parallel/ranks.h"

namespace staircase {

/// Does `work` on rank 0. The other ranks compute their share of each pass in it, and return after it: they
/// need neither the text nor the options, and decide nothing. A cache in `work` must leave keys and values
/// where the passes put them, as a paged one does. Throws Error on all ranks if they have not the same
/// context. If `work` throws, the others wait for the program to end them (Ranks::abort).
void lead_passes(Model& model, Ranks& ranks, const std::function<void()>& work);

}  // namespace staircase
