// An engine without a model, for the checks of serving: a token follows from all those before it. A pass
// takes a second, or as long as a check sets, and each one is recorded. Include it after the step's files.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/decoding/engine.h"

namespace staircase {

class ToyEngine : public Engine {
 public:
  static constexpr int kVocabSize = 29, kEos = 0;

  double now = 0.0, seconds = 1.0, seconds_per_token = 0.0;
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
    const std::vector<int> drafts = std::exchange(drafts_, {});
    logits_.clear();
    int count = 0;
    for (std::size_t r = 0; r < sequences.size(); ++r) {
      if (sequences[r].empty()) throw std::logic_error("a row without a token");
      count += static_cast<int>(sequences[r].size());
      const std::size_t wanted = 1 + (drafts.empty() ? 0 : static_cast<std::size_t>(drafts.at(r)));
      for (std::size_t i = 0; i < sequences[r].size(); ++i) {
        cache_.at(r).push_back(sequences[r][i]);
        if (i + wanted < sequences[r].size()) continue;
        logits_.resize(logits_.size() + kVocabSize);
        logits_[logits_.size() - kVocabSize + static_cast<std::size_t>(next(cache_[r]))] = 1.0f;
      }
    }
    tokens.push_back(count);
    rows.push_back(static_cast<int>(sequences.size()));
    now += seconds + seconds_per_token * count;
    return std::span<const float>(logits_);
  }

  void expect(std::vector<int> drafts) override { drafts_ = std::move(drafts); }
  void keep(int r, std::span<const int> drafts, int kept) override {
    cache_.at(r).resize(cache_.at(r).size() - drafts.size() + static_cast<std::size_t>(kept));
  }

  void move_row(int from, int to) override { cache_.at(to) = cache_.at(from); }
  void clear_row(int r) override { cache_.at(r).clear(); }

  Timer timer() {
    return {[this] { return now; }, [this](double time) { now = std::max(now, time); }};
  }

 private:
  std::vector<std::vector<int>> cache_;  // the tokens of each row
  std::vector<int> drafts_;              // of each sequence of the next pass
  std::vector<float> logits_;
};

}  // namespace staircase
