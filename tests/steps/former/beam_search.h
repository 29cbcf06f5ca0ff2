// What the checks of 41 to 45 call: their search has no cache yet, or shows none of its beams.
#pragma once

#include "common/decoding/beam_search.h"

namespace staircase {

inline std::vector<Beam> beam_search(Model& model, const std::vector<int>& prompt, const RowOptions& options,
                                     const BeamOptions& search, StaticKvCache* cache = nullptr) {
  return beam_search(model, prompt, options, search, cache, [](const Beam&) {});
}

}  // namespace staircase
