// Continues many prompts, one or more times each, in a batch of bounded size.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "common/program/output.h"
#include "generate.h"

namespace staircase {

/// Continues all prompts, each num_return_sequences times. `output` gets the texts in their order: it begins
/// all of them, gets their tokens, and finishes all at the end, with the memory that the cache used.
inline void generate_all(Model& model, const Prompts& prompts, const TextOptions& options,
                         const RunOptions& run, Output& output) {
  Prompts copies;
  for (const std::vector<int>& prompt : prompts)
    copies.insert(copies.end(), run.num_return_sequences, prompt);
  const int texts = static_cast<int>(copies.size());
  const int slots = std::min(texts, run.max_batch_size);
  std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
  if (run.use_cache) cache = std::make_unique<StaticKvCache>(model, slots);
  const std::vector<Generation> generated =
      generate(model, copies, options, slots, *cache, output.begin_texts(texts, run.num_return_sequences));
  output.finish(generated, cache->use());
}

}  // namespace staircase
