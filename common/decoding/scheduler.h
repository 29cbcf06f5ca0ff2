// Continuous batching (Yu et al. 2022, section 3.2): texts join and leave between two passes of the model.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/decoding/engine.h"
#include "row.h"

namespace staircase {

struct PrefillOptions {
  std::optional<int> chunk = {};  ///< maximum prompt tokens per pass; if unset, whole prompts
};

inline void add_options(OptionSink& sink, PrefillOptions& options) {
  sink.add("--prefill-chunk", &options.chunk, "maximum prompt tokens per forward pass", at_least(1));
}

/// The tokens that a row feeds in one pass.
struct Feed {
  std::span<const int> tokens = {};  ///< at least one
  bool completes = false;            ///< whether the cache then has the whole text, so a new token follows
};

/// Runs waiting and growing texts through an engine, pass by pass.
class Scheduler {
 public:
  using OnFinished = std::function<void(int number, Generation text)>;

  /// At most `slots` texts grow at a time. `on_token` gets each token as it is chosen, `on_finished` each
  /// text as it ends. They may call submit, but neither cancel nor pass.
  Scheduler(Engine& engine, const Tokenizer& tokenizer, int slots, const PrefillOptions& prefill,
            OnRowToken on_token, OnFinished on_finished)
      : engine_(engine),
        tokenizer_(tokenizer),
        slots_(slots),
        chunk_(prefill.chunk.value_or(std::numeric_limits<int>::max())),
        on_token_(std::move(on_token)),
        on_finished_(std::move(on_finished)) {}

  /// Queues a prompt until it gets a slot and room in the cache: first come, first served. The number
  /// identifies the text to the caller, and no other waiting or growing text may have it.
  void submit(int number, std::vector<int> prompt, const RowOptions& options) {
    if (options.stopping.max_new_tokens == 0) return on_finished_(number, {std::move(prompt)});
    waiting_.push_back({number, std::move(prompt), options, std::mt19937(options.sampling.seed),
                        StopFilter(options.stop, tokenizer_)});
  }

  /// Drops a waiting or growing text: no callback gets it again.
  void cancel(int number) {
    std::erase_if(waiting_, [&](const Row& row) { return row.number == number; });
    for (Row& row : rows_)
      if (row.number == number) row.finished = FinishReason::kLength;
    free_slots();
  }

  /// Whether no text waits or grows.
  bool idle() const { return waiting_.empty() && rows_.empty(); }

  /// Runs one pass of the model: each row gets a token or feeds a part of its prompt. The prompts share a
  /// chunk, first come, first served (Agrawal et al. 2023, section 4). So at most one prompt is partly in the
  /// cache.
  virtual void pass() {
    int budget = chunk_;
    std::vector<Feed> feeds;
    for (int r = 0; r < std::ssize(rows_); ++r) feeds.push_back(feed(r, budget));
    // Rows that move to other memory take their tokens along, so the fed tokens keep their addresses.
    while (budget > 0 && !waiting_.empty() && std::ssize(rows_) < slots_) {
      if (!engine_.make_room(waiting_.front(), static_cast<int>(rows_.size()))) break;
      rows_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      feeds.push_back(feed(static_cast<int>(rows_.size()) - 1, budget));
    }
    if (rows_.empty()) return;
    grow(feeds);
    free_slots();
  }

 protected:
  /// Computes a pass, and takes a token for each row whose text it completes.
  virtual void grow(std::span<const Feed> feeds) {
    std::vector<std::span<const int>> fed;
    for (const Feed& feed : feeds) fed.push_back(feed.tokens);
    const Logits logits = engine_.forward(fed);  // [rows_.size(), vocab_size]
    const std::size_t vocab_size = logits.size() / rows_.size();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (!feeds[r].completes) continue;
      Row& row = rows_[r];
      on_token_(row.number, take_token(row, logits.subspan(r * vocab_size, vocab_size), engine_.ends()));
      if (row.finished) on_finished_(row.number, {std::move(row.tokens), *row.finished});
    }
  }

  /// Removes finished rows here and in the cache, each from the last slot.
  virtual void free_slots() {
    remove_finished(
        rows_, [&](int from, int to) { engine_.move_row(from, to); },
        [&](Row&) { engine_.clear_row(static_cast<int>(rows_.size()) - 1); });
  }

  /// The tokens that row r feeds in a pass with `budget` tokens left for prompts.
  virtual Feed feed(int r, int& budget) {
    const std::span<const int> missing = engine_.prepare(rows_[r], r);
    if (rows_[r].new_tokens > 0) return {missing, true};
    const int count = std::min(static_cast<int>(missing.size()), budget);
    budget -= count;
    return {missing.first(count), count == std::ssize(missing)};
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  int slots_, chunk_;
  OnRowToken on_token_;
  OnFinished on_finished_;
  std::deque<Row> waiting_;
  std::vector<Row> rows_;  // rows_[r] uses row r of the cache
};

}  // namespace staircase
