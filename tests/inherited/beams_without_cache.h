// The function that the checks of 41 call: their search has no cache yet.
#pragma once

#include "beam_search.h"

namespace staircase {

inline std::vector<Beam> beam_search(Model& model, const Tokenizer& tokenizer, const std::vector<int>& prompt,
                                     const RowOptions& options, const BeamOptions& search) {
  NoCache no_cache;
  return beam_search(model, tokenizer, prompt, options, search, no_cache);
}

}  // namespace staircase
