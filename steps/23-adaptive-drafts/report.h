// Prints what speculation cost and gained, next to the formula.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/base/message.h"
#include "common/program/output.h"
#include "speculative.h"

namespace staircase {

/// Milliseconds that the target alone takes for a token, in the middle of `tokens`: the median of at least
/// ten runs that take at least a tenth of a second together.
inline double plain_ms(Model& target, std::span<const int> tokens, const SamplingOptions& options) {
  const std::size_t seen = std::min<std::size_t>(tokens.size(), target.config().n_positions);
  const std::span<const int> text = tokens.first((seen + 1) / 2);
  StaticKvCache cache(target);
  std::mt19937 generator(options.seed);
  std::vector<double> times;
  for (double total = 0.0; times.size() < 10 || total < 100.0; total += times.back()) {
    const auto start = Clock::now();
    std::vector<float> logits = copy_of(target.next_logits(text.subspan(cache.length(0)), cache));
    draw(distribution(logits, text, options), generator);
    times.push_back(milliseconds(start, Clock::now()));
    cache.truncate(0, cache.length(0) - 1);
  }
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

/// The expected speed-up if each token is accepted with probability alpha and a pass of the draft costs c
/// passes of the target. It is (1 - α^(γ+1)) / ((1 - α)(γc + 1)) (Leviathan et al. 2023, theorem 3.8).
inline double expected_speedup(double alpha, double gamma, double c) {
  const double tokens = alpha < 1.0 ? (1.0 - std::pow(alpha, gamma + 1.0)) / (1.0 - alpha) : gamma + 1.0;
  return tokens / (gamma * c + 1.0);
}

/// Prints the report; `plain` is the target's time for one token without drafts, in milliseconds.
inline void report(const Speculation& counts, double plain, Output& output) {
  if (counts.drafted == 0) return say("\nno token was drafted");
  const double rate = 1.0 * counts.accepted / counts.drafted;
  const double per_pass = 1.0 + 1.0 * counts.accepted / counts.rounds;
  say(fmt::format("\n{} of {} drafted tokens accepted ({:.0f} %), {:.2f} tokens per pass of the target",
                  counts.accepted, counts.drafted, 100.0 * rate, per_pass));
  output.add_statistic("acceptance_rate", rate);
  output.add_statistic("tokens_per_target_pass", per_pass);

  Round sum;
  double rejected = 0.0;  // tokens; the others, after a rejected one, were never verified
  for (const Round& round : counts.typical) {
    sum.drafted += round.drafted;
    sum.accepted += round.accepted;
    sum.draft_ms += round.draft_ms;
    sum.target_ms += round.target_ms;
    rejected += round.accepted < round.drafted;
  }
  if (sum.drafted == 0) return;  // the text ended in its first round
  const double rounds = static_cast<double>(counts.typical.size());
  const double draft = sum.draft_ms / sum.drafted / plain, verification = sum.target_ms / rounds / plain;
  const double measured = (sum.accepted + rounds) * plain / (sum.draft_ms + sum.target_ms);
  const double expected =
      expected_speedup(sum.accepted / (sum.accepted + rejected), sum.drafted / rounds, draft);
  say(
      fmt::format("a draft token takes {:.2f} of the target's, a pass that verifies {:.2f}; speed-up {:.2f}, "
                  "by the formula {:.2f}",
                  draft, verification, measured, expected));
  output.add_statistic("draft_cost", draft);
  output.add_statistic("verification_cost", verification);
  output.add_statistic("speedup", measured);
  output.add_statistic("expected_speedup", expected);
}

}  // namespace staircase
