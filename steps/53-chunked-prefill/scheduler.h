// Continuous batching (Yu et al. 2022, section 3.2): texts join and leave between two passes of the model.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "row.h"

namespace staircase {

struct PrefillOptions {
  std::optional<int> chunk = {};  ///< so many tokens of prompts in a pass, at most; without it whole prompts
};

inline void add_options(OptionSink& sink, PrefillOptions& options) {
  sink.add("--prefill-chunk", &options.chunk, "maximum prompt tokens per forward pass", at_least(1));
}

/// What takes the texts of a batch through a model: the one in place r has row r of the cache.
struct Engine {
  int eos;  ///< the end-of-text token
  /// The tokens at the end of the text in place r that are not in the cache yet.
  std::function<std::span<const int>(const Row& row, int r)> tokens_to_feed;
  /// A pass of the model: logits behind each sequence, [sequences.size(), vocab_size].
  std::function<std::span<float>(std::span<const std::span<const int>> sequences)> forward;
  std::function<void(int from, int to)> move_row;  ///< in the cache, to where another row has been
  std::function<void(int r)> clear_row;            ///< nothing is left of row r in the cache
};

/// With a cache that has an empty row for each place.
inline Engine make_engine(Model& model, StaticKvCache& cache) {
  const auto feed = [&](const Row& row, int r) {
    const std::span<const int> text = row.tokens;
    if (row.new_tokens > 0) return tokens_to_feed(text, cache.capacity(), &cache, r, row.options.overflow);
    // Of a prompt, or of its end that fits into the context, a part may be there already.
    return text.last(std::min<std::size_t>(text.size(), cache.capacity())).subspan(cache.length(r));
  };
  const auto forward = [&](auto sequences) { return model.next_logits(sequences, &cache); };
  const auto move_row = [&](int from, int to) { cache.copy_row(from, to); };
  const auto clear_row = [&](int r) { cache.truncate(r, 0); };
  return {model.config().eos_token_id, feed, forward, move_row, clear_row};
}

/// Texts that wait and texts that grow.
class Scheduler {
 public:
  using OnFinished = std::function<void(int number, Generation text)>;

  /// At most `places` texts grow at a time. `on_token` sees each token as it is chosen, `on_finished` each
  /// text as it ends. They may submit, but neither cancel nor pass.
  Scheduler(Engine engine, int places, const PrefillOptions& prefill, OnRowToken on_token,
            OnFinished on_finished)
      : engine_(std::move(engine)),
        places_(places),
        chunk_(prefill.chunk.value_or(std::numeric_limits<int>::max())),
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
    free_places();
  }

  /// Whether no text waits or grows.
  bool idle() const { return waiting_.empty() && rows_.empty(); }

  /// One pass of the model over all rows: a token for each, or a part of its prompt. The prompts share the
  /// tokens of a chunk, first come, first served (Agrawal et al. 2023, section 4); as long as some of them
  /// are left, texts that wait take the free places. So at most one prompt is half in the cache.
  void pass() {
    int budget = chunk_;
    std::vector<std::span<const int>> fed;
    for (int r = 0; r < std::ssize(rows_); ++r) fed.push_back(part(r, budget));
    // Rows that move to other memory take their tokens along: what is fed stays where it is.
    for (; budget > 0 && !waiting_.empty() && std::ssize(rows_) < places_; waiting_.pop_front()) {
      rows_.push_back(std::move(waiting_.front()));
      fed.push_back(part(static_cast<int>(rows_.size()) - 1, budget));
    }
    if (rows_.empty()) return;
    const std::span<float> logits = engine_.forward(fed);  // [rows_.size(), vocab_size]
    const std::size_t vocab_size = logits.size() / rows_.size();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      if (std::to_address(fed[r].end()) != std::to_address(row.tokens.end())) continue;  // more comes later
      on_token_(row.number, take_token(row, logits.subspan(r * vocab_size, vocab_size), engine_.eos));
      if (row.finished) on_finished_(row.number, {std::move(row.tokens), *row.finished});
    }
    free_places();
  }

 private:
  /// What row r feeds in a pass that has `budget` tokens left for prompts.
  std::span<const int> part(int r, int& budget) const {
    const std::span<const int> tokens = engine_.tokens_to_feed(rows_[r], r);
    if (rows_[r].new_tokens > 0) return tokens;
    const int count = std::min(static_cast<int>(tokens.size()), budget);
    budget -= count;
    return tokens.first(count);
  }

  /// Finished rows leave, here and in the cache.
  void free_places() {
    // Those that leave stand at the end when they do.
    remove_finished(rows_, engine_.move_row,
                    [&](Row&) { engine_.clear_row(static_cast<int>(rows_.size()) - 1); });
  }

  Engine engine_;
  int places_, chunk_;
  OnRowToken on_token_;
  OnFinished on_finished_;
  std::deque<Row> waiting_;
  std::vector<Row> rows_;  // rows_[r] has row r of the cache
};

}  // namespace staircase
