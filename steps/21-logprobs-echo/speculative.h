// Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): a small model proposes, the large one
// decides.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/message.h"
#include "common/program/output.h"
#include "generate.h"

namespace staircase {

/// What happened, over all rounds.
struct Speculation {
  int rounds = 0;    ///< passes of the target
  int drafted = 0;   ///< tokens proposed
  int accepted = 0;  ///< of them
  int rejected = 0;  ///< the others were behind a rejected one, and nobody asked
  int tokens = 0;    ///< accepted, corrected and bonus ones
  double draft_ms = 0.0, target_ms = 0.0;
};

/// What a token is drawn from: [vocab_size]. Greedy decoding draws from a distribution with one possible
/// token.
inline std::vector<float> distribution(std::span<float> logits, std::span<const int> tokens,
                                       const SamplingOptions& options) {
  process(logits, tokens, options);
  if (options.do_sample) return softmax(logits);
  std::vector<float> certain(logits.size());
  certain[argmax(logits)] = 1.0f;
  return certain;
}

/// norm(max(0, p - q)): what the target gives to each token beyond what the draft gave.
inline std::vector<float> residual(std::span<const float> p, std::span<const float> q) {
  std::vector<float> rest(p.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += rest[i] = std::max(0.0f, p[i] - q[i]);
  if (sum == 0.0) return {p.begin(), p.end()};  // equal but for rounding
  for (float& probability : rest) probability = static_cast<float>(probability / sum);
  return rest;
}

struct Verdict {
  int accepted = 0;  ///< so many of the drafted tokens stay
  int next = 0;      ///< and this one comes behind them
};

/// Accepts each drafted token x with probability min(1, p(x) / q(x)) and ends with a token from the residual
/// in the place of the first rejected one, or from the last p when none was rejected (Leviathan et al. 2023,
/// algorithm 1). Whatever q is, the tokens are distributed as p says (appendix A.1). drafted [γ], q
/// [γ][vocab_size]: what each was drawn from, p [γ + 1][vocab_size].
inline Verdict verify(std::span<const int> drafted, std::span<const std::vector<float>> q,
                      std::span<const std::vector<float>> p, std::mt19937& generator) {
  for (int i = 0; i < std::ssize(drafted); ++i) {
    const int token = drafted[i];
    if (uniform(generator) * q[i][token] < p[i][token]) continue;
    return {i, draw(residual(p[i], q[i]), generator)};
  }
  return {static_cast<int>(drafted.size()), draw(p.back(), generator)};
}

/// The tokens that the cache does not hold yet go through the model; logits after the last `count` of them.
inline std::span<float> catch_up(Gpt2& model, std::span<const int> tokens, int count, StaticKvCache& cache) {
  return model.last_logits(tokens.subspan(cache.length(0)), count, &cache);
}

/// Continues `tokens` as `generate` does with the target alone, in fewer passes of it.
inline Generation speculate(Gpt2& target, Gpt2& draft, std::vector<int> tokens,
                            const GenerateOptions& options, Speculation& speculation,
                            const OnToken& on_token) {
  const int vocab_size = target.config().vocab_size;
  const std::size_t context = std::min(target.config().n_positions, draft.config().n_positions);
  StaticKvCache target_cache(target, 1), draft_cache(draft, 1);
  const auto finished = [&](FinishReason reason) {
    const CacheUse a = target_cache.use(), b = draft_cache.use();
    return Generation{tokens, reason, {a.bytes + b.bytes, a.allocated + b.allocated, a.copied + b.copied}};
  };
  // The prompt but for its last token, which begins the first round.
  if (const auto prefix = std::span(tokens).first(tokens.size() - 1);
      !prefix.empty() && prefix.size() < context) {
    target.next_logits(prefix, target_cache);
    draft.next_logits(prefix, draft_cache);
  }
  const int eos = target.config().eos_token_id;
  const std::size_t least = tokens.size() + options.min_new_tokens;
  // What the token behind `text` is drawn from.
  const auto next = [&](std::span<float> logits, std::span<const int> text) {
    if (text.size() < least) logits[eos] = kMasked;
    return distribution(logits, text, options.sampling);
  };
  StopFilter filter(options.stop);
  std::mt19937 generator(options.seed);
  int gamma = options.num_speculative_tokens.value_or(5);

  int left = options.max_new_tokens;
  while (left > 0 && tokens.size() < context) {
    // A round gives one token more than it accepts, and all of them must fit.
    const int round = std::min({gamma, left - 1, static_cast<int>(context - tokens.size())});
    const auto start = Clock::now();
    std::vector<int> text = tokens;
    std::vector<std::vector<float>> q, p, logprobs;
    for (int i = 0; i < round; ++i) {
      q.push_back(next(catch_up(draft, text, 1, draft_cache), text));
      text.push_back(draw(q.back(), generator));
    }
    const std::span<const int> drafted = std::span(text).subspan(tokens.size());
    const auto middle = Clock::now();
    const std::span<float> logits =
        catch_up(target, text, round + 1, target_cache);  // [round + 1, vocab_size]
    for (int i = 0; i <= round; ++i) {
      if (options.logprobs) logprobs.push_back(log_softmax(logits.subspan(i * vocab_size, vocab_size)));
      p.push_back(next(logits.subspan(i * vocab_size, vocab_size), std::span(text).first(tokens.size() + i)));
    }
    const Verdict verdict = verify(drafted, q, p, generator);
    speculation.draft_ms += std::chrono::duration<double, std::milli>(middle - start).count();
    speculation.target_ms += std::chrono::duration<double, std::milli>(Clock::now() - middle).count();
    speculation.rounds += 1;
    speculation.drafted += round;
    speculation.accepted += verdict.accepted;
    speculation.rejected += verdict.accepted < round;

    for (int i = 0; i <= verdict.accepted; ++i) {
      const Origin origin = i < verdict.accepted       ? Origin::kAccepted
                            : verdict.accepted < round ? Origin::kCorrected
                                                       : Origin::kBonus;
      tokens.push_back(i < verdict.accepted ? drafted[i] : verdict.next);
      speculation.tokens += 1;
      left -= 1;
      Token token{tokens.back(), likeliest(p[i], options.show_candidates), origin};
      if (options.logprobs) token.logprobs = logprobs_of(token.id, logprobs[i], *options.logprobs);
      const std::optional<FinishReason> reason = end_of_text(token, filter, eos, left == 0, options);
      on_token(token);
      if (reason) return finished(*reason);
    }
    // Both caches go back to what is certain; the newest token has been in neither.
    for (StaticKvCache* cache : {&target_cache, &draft_cache}) {
      cache->truncate(0, std::min(cache->length(0), static_cast<int>(tokens.size()) - 1));
    }
    // The schedule of Hugging Face's assisted generation.
    if (!options.num_speculative_tokens)
      gamma = verdict.accepted == round ? std::min(gamma + 2, 16) : std::max(gamma - 1, 1);
  }
  // Where the smaller of the two contexts ends, the target goes on alone.
  GenerateOptions alone = options;
  alone.max_new_tokens = left;
  alone.num_return_sequences = 1;
  alone.min_new_tokens = std::max<int>(0, static_cast<int>(least) - static_cast<int>(tokens.size()));
  alone.stop.held = filter.rest();
  alone.seed = generator();
  const std::vector<Generation> rest =
      generate(target, {&tokens, 1}, alone, &target_cache, [&](int, const Token& token) { on_token(token); });
  tokens = rest[0].tokens;
  return finished(rest[0].finish_reason);
}

/// Milliseconds that one token takes the target alone, in the middle of `tokens`: the median of a tenth of a
/// second, or of ten.
inline double plain_ms(Gpt2& target, std::vector<int> tokens, const GenerateOptions& options) {
  const std::size_t seen = std::min<std::size_t>(tokens.size(), target.config().n_positions);
  tokens.resize((seen + 1) / 2);
  StaticKvCache cache(target, 1);
  std::mt19937 generator(options.seed);
  std::vector<double> times;
  for (double total = 0.0; times.size() < 10 || total < 100.0; total += times.back()) {
    const auto start = Clock::now();
    draw(distribution(catch_up(target, tokens, 1, cache), tokens, options.sampling), generator);
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    cache.truncate(0, cache.length(0) - 1);
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// The speed-up to expect when each token is accepted with probability alpha and a pass of the draft costs c
/// passes of the target: (1 - α^(γ+1)) / ((1 - α)(γc + 1)) (Leviathan et al. 2023, theorem 3.8).
inline double expected_speedup(double alpha, double gamma, double c) {
  const double tokens = alpha < 1.0 ? (1.0 - std::pow(alpha, gamma + 1.0)) / (1.0 - alpha) : gamma + 1.0;
  return tokens / (gamma * c + 1.0);
}

/// Tells how well it went; `plain` is the time of one token of the target alone, in milliseconds.
inline void report(const Speculation& s, double plain, Output& output) {
  if (s.drafted == 0) return;
  const double alpha = static_cast<double>(s.accepted) / std::max(1, s.accepted + s.rejected);
  const double gamma = static_cast<double>(s.drafted) / s.rounds, c = s.draft_ms / s.drafted / plain;
  const double rate = static_cast<double>(s.accepted) / s.drafted;
  const double per_pass = static_cast<double>(s.tokens) / s.rounds;
  const double measured = s.tokens * plain / (s.draft_ms + s.target_ms);
  const double expected = expected_speedup(alpha, gamma, c);
  say(fmt::format(
      "\n{} of {} drafted tokens accepted ({:.0f} %), {:.2f} tokens per pass of the target; a draft token "
      "takes {:.2f} of the target's, a pass that verifies {:.2f}; speed-up {:.2f}, by the formula {:.2f}",
      s.accepted, s.drafted, 100.0 * rate, per_pass, c, s.target_ms / s.rounds / plain, measured, expected));
  output.add_statistic("acceptance_rate", rate);
  output.add_statistic("tokens_per_target_pass", per_pass);
  output.add_statistic("draft_cost", c);
  output.add_statistic("verification_cost", s.target_ms / s.rounds / plain);
  output.add_statistic("speedup", measured);
  output.add_statistic("expected_speedup", expected);
}

/// Continues all prompts, one text after the other.
inline void speculate_all(Gpt2& target, Gpt2& draft, std::span<const std::vector<int>> prompts,
                          GenerateOptions options, Output& output) {
  const int copies = options.num_return_sequences, texts = static_cast<int>(prompts.size()) * copies;
  Speculation speculation;
  output.expect(texts);
  std::vector<int> tokens;
  for (int text = 0; text < texts; ++text, ++options.seed) {
    const Generation generation = speculate(target, draft, prompts[text / copies], options, speculation,
                                            output.on_token(text / copies));
    output.finish(generation.finish_reason, generation.cache);
    tokens = generation.tokens;
  }
  report(speculation, plain_ms(target, tokens, options), output);
}

}  // namespace staircase
