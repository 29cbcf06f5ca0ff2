// An engine without a model, for the checks of serving: a token follows from all those before it, a pass
// takes a second, and each pass is recorded. Include it after the step's files.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common/decoding/engine.h"

namespace staircase {

class ToyEngine : public Engine {
 public:
  static constexpr int kVocabSize = 29, kEos = 0;

  double now = 0.0;
  std::vector<int> tokens = {}, rows = {};  ///< of each pass

  explicit ToyEngine(int slots) : cache_(slots) {}

  /// What follows a text.
  static int next(const std::vector<int>& text) {
    unsigned hash = 1;
    for (const int token : text) hash = (hash * 31 + static_cast<unsigned>(token)) % 65521;
    return static_cast<int>(hash % kVocabSize);
  }

  /// The whole text after a prompt.
  static Generation alone(std::vector<int> text, const RowOptions& options) {
    for (int count = 1; count <= options.stopping.max_new_tokens; ++count) {
      text.push_back(next(text));
      if (text.back() == kEos && !options.stopping.ignore_eos) return {text, FinishReason::kEos};
    }
    return {text, FinishReason::kLength};
  }

  const EndTokens& ends() const override {
    static const EndTokens ends = kEos;
    return ends;
  }

  std::span<const int> prepare(const Row& row, int r) override {
    return std::span(row.tokens).subspan(cache_.at(r).size());
  }

  Logits forward(std::span<const std::span<const int>> sequences) override {
    logits_.assign(sequences.size() * kVocabSize, 0.0f);
    int count = 0;
    for (std::size_t r = 0; r < sequences.size(); ++r) {
      if (sequences[r].empty()) throw std::logic_error("a row without a token");
      cache_.at(r).insert(cache_.at(r).end(), sequences[r].begin(), sequences[r].end());
      count += static_cast<int>(sequences[r].size());
      logits_[r * kVocabSize + static_cast<std::size_t>(next(cache_[r]))] = 1.0f;
    }
    tokens.push_back(count);
    rows.push_back(static_cast<int>(sequences.size()));
    now += 1.0;
    return std::span<const float>(logits_);
  }

  void move_row(int from, int to) override { cache_.at(to) = cache_.at(from); }
  void clear_row(int r) override { cache_.at(r).clear(); }

  Timer timer() {
    return {[this] { return now; }, [this](double time) { now = std::max(now, time); }};
  }

 private:
  std::vector<std::vector<int>> cache_;  // the tokens of each row
  std::vector<float> logits_;
};

}  // namespace staircase
