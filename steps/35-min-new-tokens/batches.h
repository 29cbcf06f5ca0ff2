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
inline void generate_all(Model& model, const Prompts& prompts, const RowOptions& options,
                         const RunOptions& run, Output& output) {
  const int copies = run.num_return_sequences, texts = product(prompts.size(), copies, "texts");
  const int slots = std::min(texts, run.max_batch_size);
  std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
  if (run.use_cache) cache = std::make_unique<StaticKvCache>(model, slots);
  const std::vector<Generation> generated = generate(model, output.tokenizer(), prompts, copies, options,
                                                     slots, *cache, output.begin_texts(texts, copies));
  output.finish(generated, cache->use());
}

}  // namespace staircase
