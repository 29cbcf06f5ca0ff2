// Who proposes tokens for a target to verify.
#pragma once

#include "common/model/gpt2.h"
#include "sampling.h"
#include "static_kv_cache.h"

namespace staircase {

/// What a token is drawn from, [vocab_size]. In greedy decoding the likeliest token has all the probability.
inline std::vector<float> distribution(std::span<float> logits, std::span<const int> tokens,
                                       const SamplingOptions& options) {
  process(logits, tokens, options);
  if (options.do_sample) return softmax(logits);
  std::vector<float> certain(logits.size());
  certain[argmax(logits)] = 1.0f;
  return certain;
}

class Drafter {
 public:
  virtual ~Drafter() = default;

  /// Appends up to `count` proposed tokens to `text` and returns what each was drawn from,
  /// [tokens][vocab_size]. Any text may come after any other.
  virtual std::vector<std::vector<float>> propose(std::vector<int>& text, int count,
                                                  const SamplingOptions& options,
                                                  std::mt19937& generator) = 0;

  /// How long a text can be, proposed tokens included.
  virtual int context() const { return std::numeric_limits<int>::max(); }

  virtual CacheUse use() const { return {}; }
};

/// A smaller model with the same vocabulary.
class DraftModel : public Drafter {
 public:
  explicit DraftModel(Gpt2& model) : model_(model), cache_(model) {}

  std::vector<std::vector<float>> propose(std::vector<int>& text, int count, const SamplingOptions& options,
                                          std::mt19937& generator) override {
    // The cache keeps what this text has in common with the last one: it forgets what was rejected.
    const auto common = std::ranges::mismatch(last_, text).in1 - last_.begin();
    cache_.truncate(0, std::min(cache_.length(0), static_cast<int>(common)));
    std::vector<std::vector<float>> q;
    while (std::ssize(q) < count) {
      const std::span<const int> unseen = std::span(text).subspan(cache_.length(0));
      q.push_back(distribution(model_.next_logits(unseen, cache_), text, options));
      text.push_back(draw(q.back(), generator));
    }
    last_ = text;
    return q;
  }

  int context() const override { return model_.config().n_positions; }

  CacheUse use() const override { return cache_.use(); }

 private:
  Gpt2& model_;
  StaticKvCache cache_;
  std::vector<int> last_;  // the tokens in the cache, and the newest one
};

}  // namespace staircase
