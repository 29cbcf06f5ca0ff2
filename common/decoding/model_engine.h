// Engines that run a model, with a cache row for each slot of the batch.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/decoding/engine.h"
#include "common/model/model.h"
#include "overflow.h"
#include "static_kv_cache.h"

namespace staircase {

/// The part of an engine that does not depend on the kind of cache.
class ModelEngine : public Engine {
 public:
  ModelEngine(Model& model, KvCache& cache) : model_(model), cache_(cache) {}

  const EndTokens& ends() const override { return model_.config().end_tokens; }
  Logits forward(std::span<const std::span<const int>> sequences) override {
    drafts_ = std::exchange(expected_, {});
    return compute(sequences, cache_);
  }
  void expect(std::vector<int> drafts) override { expected_ = std::move(drafts); }
  void keep(int r, std::span<const int> drafts, int kept) override {
    const int rejected = static_cast<int>(drafts.size()) - kept;
    if (rejected > 0) cache_.truncate(r, cache_.length(r) - rejected);
  }
  void clear_row(int r) override { cache_.truncate(r, 0); }

 protected:
  /// Adds the sequences to the cache and returns the logits after each. A simulation overrides this.
  virtual Logits compute(std::span<const std::span<const int>> sequences, KvCache& cache) {
    if (drafts_.empty()) return model_.lazy_logits(sequences, cache);
    std::vector<int> counts = drafts_;
    for (int& count : counts) ++count;
    return model_.lazy_logits(sequences, counts, cache);
  }

  /// The tokens of sequence r that are not guesses.
  std::span<const int> certain(std::span<const int> sequence, int r) const {
    return drafts_.empty() ? sequence
                           : sequence.first(sequence.size() - static_cast<std::size_t>(drafts_[r]));
  }

 private:
  Model& model_;
  KvCache& cache_;
  std::vector<int> expected_, drafts_;  // guesses per sequence, in the next pass and in this one
};

/// Each row has room for the whole context. A text that outgrows it continues as its overflow options choose.
class StaticEngine : public ModelEngine {
 public:
  StaticEngine(Model& model, StaticKvCache& cache) : ModelEngine(model, cache), cache_(cache) {}

  std::span<const int> prepare(const Row& row, int r) override {
    const std::span<const int> text = row.tokens;
    if (row.new_tokens > 0) return tokens_to_feed(text, cache_.capacity(), cache_, r, row.options.overflow);
    // Part of the prompt, or of its end that fits into the context, may already be cached.
    return text.last(std::min<std::size_t>(text.size(), cache_.capacity())).subspan(cache_.length(r));
  }
  void move_row(int from, int to) override { cache_.copy_row(from, to); }

 private:
  StaticKvCache& cache_;
};

}  // namespace staircase
