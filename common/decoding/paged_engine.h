// Runs a batch of texts through a model with a paged cache.
#pragma once

#include <optional>

#include "common/decoding/model_engine.h"
#include "paged_kv_cache.h"

namespace staircase {

struct PagedOptions {
  bool prefix_caching = true;
  std::optional<int> blocks = {};  ///< in the pool; by default enough for a whole context in each slot
};

inline void add_options(OptionSink& sink, PagedOptions& options) {
  sink.add("--kv-blocks", &options.blocks, "number of cache blocks, 16 positions each", at_least(1));
  sink.add("--prefix-caching", &options.prefix_caching, "reuse cached prompt prefixes");
}

/// A text has blocks for its tokens so far, its own or shared ones. Rows do not slide, so no text may outgrow
/// its row; the newest token needs no position.
class PagedEngine : public ModelEngine {
 public:
  PagedEngine(Model& model, PagedKvCache& cache, bool prefix_caching = true)
      : ModelEngine(model, cache), cache_(cache), prefix_caching_(prefix_caching) {}

  bool make_room(const Row& row, int r) override {
    const bool joins = cache_.blocks(r) == 0;
    if (joins && prefix_caching_) cache_.share(r, row.tokens);
    if (!cache_.reserve(r, static_cast<int>(row.tokens.size()))) {
      if (joins) cache_.truncate(r, 0);
      return false;
    }
    if (joins && row.new_tokens == 0) {  // a preempted text, which may find its own blocks, does not count
      found_ += cache_.length(r);
      joined_ += static_cast<double>(row.tokens.size());
    }
    return true;
  }

  std::span<const int> prepare(const Row& row, int r) override {
    return std::span(row.tokens).subspan(cache_.length(r));
  }

  Logits forward(std::span<const std::span<const int>> sequences) override {
    const Logits logits = ModelEngine::forward(sequences);
    for (int r = 0; r < std::ssize(sequences); ++r) cache_.remember(r, sequences[r]);
    return logits;
  }

  void move_row(int from, int to) override { cache_.swap_rows(from, to); }

  double found() const { return found_; }    ///< tokens of joining texts that were in the cache
  double joined() const { return joined_; }  ///< all tokens of joining texts

 private:
  PagedKvCache& cache_;
  const bool prefix_caching_;
  double found_ = 0.0, joined_ = 0.0;
};

}  // namespace staircase
