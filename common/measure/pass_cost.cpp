#include "common/measure/pass_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/message.h"
#include "common/measure/measurement.h"

namespace staircase {

MeasuredPass describe(Fed fed, const KvCache& cache) {
  MeasuredPass pass;
  for (std::size_t r = 0; r < fed.size(); ++r) {
    const auto count = static_cast<int>(fed[r].size());
    pass.rows += count > 0;
    pass.tokens += count;
    pass.positions += count * (cache.length(static_cast<int>(r)) + (count + 1) / 2.0);
  }
  return pass;
}

PassCost fit(const std::vector<MeasuredPass>& passes) {
  std::vector<std::vector<double>> parts;
  std::vector<double> wanted;
  for (const auto& [rows, tokens, positions, seconds] : passes) {
    const double root = std::sqrt(seconds);
    parts.push_back({1.0 / root, rows / root, tokens / root, positions / root});
    wanted.push_back(root);
  }
  const std::vector<double> cost = non_negative_least_squares(parts, wanted);
  return {cost[0], cost[1], cost[2], cost[3]};
}

PassCost fit(const std::function<std::vector<MeasuredPass>(unsigned seed)>& measure) {
  std::vector<MeasuredPass> passes, others;
  for (int turn = 0; turn < 4; ++turn) {
    for (unsigned seed = 1; seed <= 2; ++seed) {
      std::vector<MeasuredPass>& least = seed == 1 ? passes : others;
      const std::vector<MeasuredPass> measured = measure(seed);
      if (turn == 0) least = measured;
      for (std::size_t i = 0; i < least.size(); ++i)
        least[i].seconds = std::min(least[i].seconds, measured.at(i).seconds);
    }
  }
  const PassCost cost = fit(passes);
  double expected = 0.0, measured = 0.0;
  std::vector<double> errors;
  for (const MeasuredPass& pass : others) {
    expected += cost.seconds(pass);
    measured += pass.seconds;
    errors.push_back(std::abs(cost.seconds(pass) / pass.seconds - 1.0));
  }
  say(
      fmt::format("a pass takes {:.3g} ms plus {:.3g} ms a row, {:.3g} ms a token and {:.3g} ms a "
                  "position; fitted to {} passes",
                  1e3 * cost.pass, 1e3 * cost.row, 1e3 * cost.token, 1e3 * cost.position, passes.size()));
  say(fmt::format(
      "{} other passes took {:.3f} s, and {:.3f} s by the formula: {:+.1f} %; half of them differ by less "
      "than {:.1f} %",
      others.size(), measured, expected, 100.0 * (expected / measured - 1.0), 100.0 * quantile(errors, 0.5)));
  if (std::abs(expected / measured - 1.0) > 0.1)
    warn("the formula is off by more than 10 %; on an idle machine it may be closer");
  return cost;
}

PassCost shared(const PassCost& alone, const FleetOptions& fleet, const ModelConfig& config) {
  if (fleet.ranks == 1) return alone;
  const double ranks = fleet.ranks, width = config.n_embd, sums = 2.0 * config.n_layer;
  const double number = (ranks - 1) * sizeof(float) * 8 / (1e9 * fleet.link_gbit);  // from each other rank
  // Only the last token of each row leaves the last block, so the last two sums count rows, not tokens.
  const PassCost cost{alone.pass / ranks + (sums + 2) * 1e-6 * fleet.link_us,
                      alone.row / ranks + number * (2 * width + std::ceil(config.vocab_size / ranks) + 1),
                      alone.token / ranks + number * width * (sums - 1), alone.position / ranks};
  say(
      fmt::format("on {} ranks a pass takes {:.3g} ms, and {:.3g} ms a row, {:.3g} ms a token, {:.3g} ms a "
                  "position; computed, not measured",
                  fleet.ranks, 1e3 * cost.pass, 1e3 * cost.row, 1e3 * cost.token, 1e3 * cost.position));
  return cost;
}

Logits TimedEngine::forward(Fed fed) {
  const auto now = std::chrono::steady_clock::now();
  if (last_) {
    last_->seconds = std::chrono::duration<double>(now - start_).count();
    passes_.push_back(*last_);
  }
  last_ = describe(fed, cache_);
  start_ = now;
  return DelegatingEngine::forward(fed);
}

}  // namespace staircase
