// Continues many prompts, one or more times each, in a batch of bounded size, or with a search.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "beam_search.h"
#include "beam_tree.h"
#include "common/base/message.h"
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

/// Continues one prompt after another with a search; `output` gets the best texts of each.
inline void search_all(Model& model, const Prompts& prompts, const RowOptions& options, const RunOptions& run,
                       const BeamOptions& search, const TreeOptions& drawn, Output& output) {
  const int wanted = run.num_return_sequences;
  output.expect(product(prompts.size(), wanted, "texts"));
  for (int p = 0; p < std::ssize(prompts); ++p) {
    std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
    if (run.use_cache) cache = std::make_unique<StaticKvCache>(model, search.num_beams);
    const OnRowToken on_token = output.begin_texts_of(p, wanted);
    std::vector<Generation> texts(wanted);
    BeamTree tree;
    const std::vector<Beam> found = beam_search(model, output.tokenizer(), prompts[p], options, search,
                                                *cache, [&](const Beam& b) { tree.add(b); });
    for (int i = 0; i < std::min<int>(wanted, std::ssize(found)); ++i) {
      for (const Token& token : found[i].chosen) on_token(i, token);
      texts[i] = {found[i].tokens, *found[i].finished, {}, found[i].score};
    }
    output.finish(texts, cache->use());
    if (drawn.show_beams) say(fmt::format("\n{}", tree.text(output.tokenizer())));
  }
}

}  // namespace staircase
