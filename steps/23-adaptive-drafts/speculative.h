// Speculative decoding (Leviathan et al. 2023): a small model proposes, the large one decides.
#pragma once

#include "common/decoding/drafter.h"
#include "common/model/model.h"
#include "text_options.h"

namespace staircase {

struct SpeculationOptions {
  std::optional<int> num_speculative_tokens = 4;  ///< γ; if unset, it adapts
};

inline void add_options(OptionSink& sink, SpeculationOptions& options) {
  sink.add("--num-speculative-tokens", NumberOrAuto{&options.num_speculative_tokens},
           "number of tokens that the draft model proposes at a time", between(1, 16));
}

struct Round {
  int drafted = 0, accepted = 0;
  double draft_ms = 0.0, target_ms = 0.0;  ///< time spent drafting and verifying
};

/// Statistics over all rounds.
struct Speculation {
  int rounds = 0;                 ///< passes of the target
  int drafted = 0, accepted = 0;  ///< tokens proposed, and those accepted
  /// Rounds of typical cost: not the first one, which includes the prefill, and none past the end of the
  /// context, where nothing can be proposed.
  std::vector<Round> typical = {};
};

/// The distribution of a token, [vocab_size]. In greedy decoding, one token has all the probability.
inline std::vector<float> distribution(std::span<float> logits, std::span<const int> tokens,
                                       const SamplingOptions& options) {
  process(logits, tokens, options);
  if (options.do_sample) return softmax(logits);
  std::vector<float> certain(logits.size());
  certain[argmax(logits)] = 1.0f;
  return certain;
}

/// A smaller model with the same vocabulary.
class DraftModel : public Drafter {
 public:
  explicit DraftModel(Model& model) : model_(model), cache_(model) {}
  CacheUse use() const override { return cache_.use(); }

  Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                        std::mt19937& generator) override {
    // The cache keeps the prefix that this text shares with the last one, and drops the rejected tokens.
    const auto common = std::ranges::mismatch(last_, text).in1 - last_.begin();
    const int length = static_cast<int>(text.size());
    cache_.truncate(0, std::min({cache_.length(0), static_cast<int>(common), length - 1}));
    Distributions q;
    while (std::ssize(q) < std::min(count, cache_.capacity() - length)) {
      auto logits = copy_of(model_.next_logits(std::span(text).subspan(cache_.length(0)), cache_));
      q.push_back(distribution(logits, text, options));
      text.push_back(draw(q.back(), generator));
    }
    last_ = text;
    return q;
  }

 private:
  Model& model_;
  StaticKvCache cache_;
  std::vector<int> last_;  // the tokens in the cache, and possibly more
};

/// norm(max(0, p - q)): the probability that the target gives each token beyond the draft's.
inline std::vector<float> residual(std::span<const float> p, std::span<const float> q) {
  std::vector<float> rest(p.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += rest[i] = std::max(0.0f, p[i] - q[i]);
  if (sum == 0.0) return {p.begin(), p.end()};  // equal up to rounding
  for (float& probability : rest) probability = static_cast<float>(probability / sum);
  return rest;
}

struct Verdict {
  int accepted = 0;  ///< how many of the drafted tokens are kept
  int next = 0;      ///< the token after them
};

/// Accepts each drafted token x with probability min(1, p(x) / q(x)). After a rejection the last token comes
/// from the residual, otherwise from the last p (Leviathan et al. 2023, algorithm 1). For any q, the tokens
/// have the distribution p (appendix A.1). drafted [γ], q [γ][vocab_size]: what each was drawn from, p [γ +
/// 1][vocab_size].
inline Verdict verify(std::span<const int> drafted, std::span<const std::vector<float>> q,
                      std::span<const std::vector<float>> p, std::mt19937& generator) {
  for (int i = 0; i < std::ssize(drafted); ++i) {
    if (uniform(generator) * q[i][drafted[i]] < p[i][drafted[i]]) continue;
    return {i, draw(residual(p[i], q[i]), generator)};
  }
  return {static_cast<int>(drafted.size()), draw(p.back(), generator)};
}

inline double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// γ of the next round, by the schedule of Hugging Face's assisted generation: two more if all drafted tokens
/// were accepted, otherwise one less.
inline int next_gamma(int gamma, int drafted, int accepted) {
  return accepted == drafted ? std::min(gamma + 2, 16) : std::max(gamma - 1, 1);
}

/// Continues `tokens` as the target alone would, in fewer passes; `counts` reports what happened. If γ is
/// unset, it adapts.
inline Generation speculate(Model& target, Drafter& draft, std::vector<int> tokens,
                            const TextOptions& options, std::optional<int> gamma, Speculation& counts,
                            const OnToken& on_token) {
  const ModelConfig& config = target.config();
  const int vocab_size = config.vocab_size, max_new_tokens = options.stopping.max_new_tokens;
  StaticKvCache target_cache(target);
  std::mt19937 generator(options.sampling.seed);
  int adaptive = 5;
  for (int count = 0; count < max_new_tokens;) {
    // A round yields one token more than it accepts; all must fit, so a full context leaves none to draft.
    const int length = static_cast<int>(tokens.size());
    const int most = std::max(
        0, std::min({gamma.value_or(adaptive), max_new_tokens - count - 1, config.n_positions - length}));
    const auto start = Clock::now();
    const Distributions q = draft.propose(tokens, most, options.sampling, generator);
    const int round = static_cast<int>(q.size());
    const auto middle = Clock::now();
    Distributions p;
    const auto fed = tokens_to_feed(tokens, config.n_positions, target_cache, 0, options.overflow);
    std::vector<float> logits = copy_of(target.last_logits(fed, round + 1, target_cache));
    const auto row = [&](std::size_t i) { return std::span(logits).subspan(i * vocab_size, vocab_size); };
    for (int i = 0; i <= round; ++i)  // logits [round + 1, vocab_size]
      p.push_back(distribution(row(i), std::span(tokens).first(length + i), options.sampling));
    const auto [accepted, next] = verify(std::span(tokens).subspan(length), q, p, generator);
    counts.rounds += 1;
    counts.drafted += round;
    counts.accepted += accepted;
    if (count > 0 && length < config.n_positions)
      counts.typical.push_back(
          {round, accepted, milliseconds(start, middle), milliseconds(middle, Clock::now())});
    if (round > 0) adaptive = next_gamma(adaptive, round, accepted);
    tokens.resize(length + accepted);
    tokens.push_back(next);
    for (int i = 0; i <= accepted; ++i) {
      const int token = tokens[length + i];
      on_token({token, likeliest(row(i), options.sampling.show_candidates), origin_of(i, accepted, round)});
      if (const auto reason = finish_reason(token, ++count, config.end_tokens, options.stopping)) {
        tokens.resize(length + i + 1);
        return {tokens, *reason, target_cache.use() + draft.use()};
      }
    }
    // Drop the rejected tokens; the newest token has never been in a cache.
    if (round > 0) target_cache.truncate(0, length + accepted);
  }
  return {tokens, FinishReason::kLength};
}

}  // namespace staircase
