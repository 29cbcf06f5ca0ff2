// Any number of prompts, in batches of a bounded size: the others wait.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "common/program/output.h"
#include "generate.h"

namespace staircase {

/// Continues all prompts, as many at a time as max_batch_size allows; `output` gets the texts in their order.
inline void generate_all(Gpt2& model, const Prompts& prompts, GenerateOptions options, Output& output) {
  const int copies = options.num_return_sequences;
  const std::size_t at_a_time = options.max_batch_size / copies;
  output.expect(static_cast<int>(prompts.size()) * copies);
  for (std::size_t first = 0; first < prompts.size(); first += at_a_time) {
    const auto batch = std::span(prompts).subspan(first, std::min(at_a_time, prompts.size() - first));
    std::vector<int> owners;  // the prompt of each text
    for (std::size_t i = 0; i < batch.size() * copies; ++i)
      owners.push_back(static_cast<int>(first + i / copies));
    std::optional<StaticKvCache> cache;
    if (options.use_cache) cache.emplace(model, static_cast<int>(owners.size()));
    const std::vector<Generation> texts =
        generate(model, batch, options, cache ? &*cache : nullptr, output.on_row_token(owners));
    output.finish(texts, cache ? cache->use() : CacheUse());
    options.seed += static_cast<unsigned>(owners.size());
  }
}

}  // namespace staircase
