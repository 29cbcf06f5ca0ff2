// Continuous batching (Yu et al. 2022, section 3.2): texts join and leave between two passes of the model.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "row.h"

namespace staircase {

/// Texts that wait and texts that grow.
class Scheduler {
 public:
  using OnFinished = std::function<void(int number, Generation text)>;

  /// At most `places` texts grow at a time; the cache has a row for each. `on_token` sees each token as it is
  /// chosen, `on_finished` each text as it ends. They may submit, but neither cancel nor pass.
  Scheduler(Model& model, StaticKvCache& cache, int places, OnRowToken on_token, OnFinished on_finished)
      : model_(model),
        cache_(cache),
        places_(places),
        on_token_(std::move(on_token)),
        on_finished_(std::move(on_finished)) {}

  /// A prompt waits until there is a place for it: first come, first served. The number is the caller's name
  /// for the text, and no other that waits or grows may have it.
  void submit(int number, std::vector<int> prompt, const RowOptions& options) {
    if (options.stopping.max_new_tokens == 0) return on_finished_(number, {std::move(prompt)});
    waiting_.push_back({number, std::move(prompt), options, std::mt19937(options.sampling.seed)});
  }

  /// Forgets a text, whether it waits or grows: nothing more is heard of it.
  void cancel(int number) {
    std::erase_if(waiting_, [&](const Row& row) { return row.number == number; });
    for (Row& row : rows_) {
      if (row.number == number) row.finished = FinishReason::kLength;
    }
    remove_finished(
        rows_, [&](int from, int to) { cache_.copy_row(from, to); }, [](Row&) {});
  }

  /// Whether no text waits or grows.
  bool idle() const { return waiting_.empty() && rows_.empty(); }

  /// Texts that wait take the free places; then all rows go through the model once, for a token each.
  void pass() {
    for (; !waiting_.empty() && std::ssize(rows_) < places_; waiting_.pop_front()) {
      cache_.truncate(static_cast<int>(rows_.size()), 0);
      rows_.push_back(std::move(waiting_.front()));
    }
    if (rows_.empty()) return;
    std::vector<std::span<const int>> fed;
    for (int r = 0; r < std::ssize(rows_); ++r) {
      const Row& row = rows_[r];
      fed.push_back(tokens_to_feed(row.tokens, cache_.capacity(), &cache_, r, row.options.overflow));
    }
    const std::span<float> logits = model_.next_logits(fed, &cache_);  // [rows_.size(), vocab_size]
    const std::size_t vocab_size = model_.config().vocab_size, eos = model_.config().eos_token_id;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      on_token_(row.number, take_token(row, logits.subspan(r * vocab_size, vocab_size), eos));
      if (row.finished) on_finished_(row.number, {std::move(row.tokens), *row.finished});
    }
    remove_finished(
        rows_, [&](int from, int to) { cache_.copy_row(from, to); }, [](Row&) {});
  }

 private:
  Model& model_;
  StaticKvCache& cache_;
  int places_;
  OnRowToken on_token_;
  OnFinished on_finished_;
  std::deque<Row> waiting_;
  std::vector<Row> rows_;  // rows_[r] has row r of the cache
};

}  // namespace staircase
