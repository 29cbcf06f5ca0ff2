// The interface between a scheduler and a model with its cache. The static and the paged cache each have an
// engine, tests have a toy engine, and a simulation has one whose passes only take time. The interface is
// given: no lesson writes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/decoding/draw_from_largest.h"
#include "common/model/logits.h"
#include "row.h"

namespace staircase {

/// How many of the model's largest logits usually decide the next token of a row. 1: the largest always does.
/// 0: all may be needed. Two logits may become equal when divided by a temperature, or under top-p's softmax.
inline std::size_t logits_needed(const Row& row) {
  const RowOptions& options = row.options;
  const SamplingOptions& sampling = options.sampling;
  const bool is_greedy =
      (!sampling.do_sample && !reshapes(sampling)) || sampling.temperature < kGreedyTemperature;
  const bool penalized = sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f ||
                         sampling.repetition_penalty != 1.0f;
  const bool edited =
      options.edit_raw_logits || options.edit_final_logits || row.new_tokens < options.length.min_new_tokens;
  const bool shows_others = sampling.show_candidates > 0 || options.logprobs.count.has_value();
  if (penalized || edited || shows_others) return 0;
  if (is_greedy) return 1;
  if (!sampling.do_sample) return 0;
  if (sampling.top_k) {  // and one more, to check that it is smaller
    const int k = *sampling.top_k;
    return k > 0 && k < kMostLargest ? static_cast<std::size_t>(k) + 1 : 0;
  }
  return sampling.top_p.value_or(1.0f) < 1.0f ? kMostLargest : 0;
}

/// The next token of a row, from the logits after it. If the largest logits decide, it reads no others.
inline Token take_token(Row& row, const Logits& logits, const EndTokens& ends) {
  const std::size_t needed = logits_needed(row);
  if (needed == 0) return take_token(row, std::span<const float>(logits), ends);
  std::optional<int> chosen;
  if (needed == 1) {
    chosen = logits.argmax();
  } else if (const auto largest = logits.largest(needed)) {
    chosen = draw_from_largest(*largest, row.options.sampling, row.generator);
  }
  if (!chosen) return take_token(row, logits.read_once(), ends);
  Token token{*chosen, {}};
  row.tokens.push_back(token.id);
  row.finished = end_of_text(token, row.filter, ++row.new_tokens, ends, row.options);
  return token;
}

/// Runs a batch of texts through a model. The text in slot r of the batch uses row r of the cache, which is
/// empty when the text joins.
class Engine {
 public:
  virtual ~Engine() = default;

  /// The tokens that end a text.
  virtual const EndTokens& ends() const = 0;

  /// Makes room in row r of the cache for a text that has joined there or is about to. If memory is short,
  /// returns false and changes nothing.
  virtual bool make_room(const Row& /*row*/, int /*r*/) { return true; }

  /// Prepares row r for the text that has joined there. Returns the tokens at the text's end that the row
  /// lacks, at least one.
  virtual std::span<const int> prepare(const Row& row, int r) = 0;

  /// Feeds sequence r to row r, for all rows at once; an empty sequence leaves its row unchanged. Returns the
  /// logits after each sequence, [sequences.size(), vocab_size].
  virtual Logits forward(std::span<const std::span<const int>> sequences) = 0;

  /// Marks the last drafts[r] tokens of sequence r in the next pass as guesses. forward() then also returns
  /// the logits before each guess, [Σ (1 + drafts[r]), vocab_size], the rows of one sequence together. Call
  /// keep() afterwards for each row with drafts. Throws std::logic_error if the engine takes no drafts.
  virtual void expect(std::vector<int> drafts) {
    if (std::ranges::any_of(drafts, [](int count) { return count > 0; }))
      throw std::logic_error("this engine takes no drafts");
  }

  /// Keeps the first `kept` of the `drafts` that row r has fed; the others leave the cache.
  virtual void keep(int /*r*/, std::span<const int> /*drafts*/, int /*kept*/) {}

  /// Moves a row of the cache to the slot of a text that has left.
  virtual void move_row(int from, int to) = 0;

  /// Clears a row of the cache.
  virtual void clear_row(int r) = 0;
};

/// Runs a pass with drafts (Engine::expect). Returns the logits per sequence, [1 + drafts[r]][vocab_size]
/// each.
inline std::vector<std::vector<Logits>> forward_drafts(Engine& engine,
                                                       std::span<const std::span<const int>> sequences,
                                                       std::span<const int> drafts) {
  engine.expect({drafts.begin(), drafts.end()});
  const Logits logits = engine.forward(sequences);
  std::size_t rows = drafts.size(), row = 0;
  for (const int count : drafts) rows += static_cast<std::size_t>(count);
  const std::size_t vocab_size = logits.size() / rows;
  std::vector<std::vector<Logits>> parts(drafts.size());
  for (std::size_t r = 0; r < drafts.size(); ++r) {
    for (int i = 0; i <= drafts[r]; ++i) parts[r].push_back(logits.subspan(row++ * vocab_size, vocab_size));
  }
  return parts;
}

/// Forwards to another engine. Override functions to watch that engine or to change part of it.
class DelegatingEngine : public Engine {
 public:
  explicit DelegatingEngine(Engine& engine) : engine_(engine) {}

  const EndTokens& ends() const override { return engine_.ends(); }
  bool make_room(const Row& row, int r) override { return engine_.make_room(row, r); }
  std::span<const int> prepare(const Row& row, int r) override { return engine_.prepare(row, r); }
  Logits forward(std::span<const std::span<const int>> sequences) override {
    return engine_.forward(sequences);
  }
  void expect(std::vector<int> drafts) override { engine_.expect(std::move(drafts)); }
  void keep(int r, std::span<const int> drafts, int kept) override { engine_.keep(r, drafts, kept); }
  void move_row(int from, int to) override { engine_.move_row(from, to); }
  void clear_row(int r) override { engine_.clear_row(r); }

 private:
  Engine& engine_;
};

}  // namespace staircase
