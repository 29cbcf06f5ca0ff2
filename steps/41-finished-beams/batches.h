// Continues many prompts, one or more times each, in a batch of bounded size, or with a search.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "beam_search.h"
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

/// Continues one prompt after another with a search; `output` gets the best text of each.
inline void search_all(Model& model, const Prompts& prompts, const RowOptions& options,
                       const BeamOptions& search, Output& output) {
  output.expect(static_cast<int>(prompts.size()));
  for (int p = 0; p < std::ssize(prompts); ++p) {
    const OnToken on_token = output.begin(p);
    std::vector<Generation> best(1);
    if (const std::vector<Beam> found = beam_search(model, output.tokenizer(), prompts[p], options, search);
        !found.empty()) {
      for (const Token& token : found[0].chosen) on_token(token);
      best[0] = {found[0].tokens, *found[0].finished, {}, found[0].score};
    }
    output.finish(best, CacheUse());
  }
}

}  // namespace staircase
