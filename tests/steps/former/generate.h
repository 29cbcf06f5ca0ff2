// The function that the checks of 31 and 32 call: no text has row options yet, and in 31 each prompt has one
// text.
#pragma once

#include "common/decoding/generate.h"
#include "tests/step.h"

namespace staircase {

inline std::vector<Generation> generate(Model& model, const Prompts& prompts, int copies,
                                        const TextOptions& options, int slots, KvCache& cache,
                                        const OnRowToken& on_token) {
  return generate(model, tales_tokenizer(), prompts, copies, RowOptions{options}, slots, cache, on_token);
}

inline std::vector<Generation> generate(Model& model, const Prompts& prompts, const TextOptions& options,
                                        int slots, KvCache& cache, const OnRowToken& on_token) {
  return generate(model, prompts, 1, options, slots, cache, on_token);
}

}  // namespace staircase
