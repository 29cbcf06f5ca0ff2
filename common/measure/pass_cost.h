// The cost of a model's pass: a formula of four numbers, fitted to measured passes.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/decoding/engine.h"
#include "common/measure/workload.h"
#include "common/model/config.h"
#include "common/model/kv_cache.h"

namespace staircase {

/// The tokens that each row of a batch feeds to the model in one pass.
using Fed = std::span<const std::span<const int>>;

/// What a pass computed, and how long it took.
struct MeasuredPass {
  int rows = 0;            ///< rows that feed at least one token
  int tokens = 0;          ///< tokens that the rows feed
  double positions = 0.0;  ///< positions that these tokens attend to: each to its own and to all earlier ones
                           ///< of its row
  double seconds = 0.0;
};

/// Describes a pass that feeds `fed[r]` to row r of the cache. Its time is 0: the caller sets it.
MeasuredPass describe(Fed fed, const KvCache& cache);

/// The seconds that a pass takes: a constant for reading the weights, plus a cost per row, per token and per
/// position.
struct PassCost {
  double pass = 0.0, row = 0.0, token = 0.0, position = 0.0;

  double seconds(const MeasuredPass& of) const {
    return pass + row * of.rows + token * of.tokens + position * of.positions;
  }
};

/// The cost that fits `passes` best, by least squares; no part is negative. Each square is weighted by 1 /
/// seconds, so neither the longest passes nor the many short ones dominate. `passes` must not be empty, and
/// every time must be above 0.
PassCost fit(const std::vector<MeasuredPass>& passes);

/// Fits the cost to the passes that `measure` returns for seed 1. Prints how well it predicts the passes of
/// seed 2, and warns if their total is off by more than 10 %. Each pass is measured four times, and its
/// shortest time counts: other work on the machine can only add to it.
PassCost fit(const std::function<std::vector<MeasuredPass>(unsigned seed)>& measure);

/// The cost of passes that `fleet.ranks` ranks share by tensor parallelism (step 98). Each rank computes its
/// part of `alone` and waits for its link: two sums per block, one sum for the embedding, and the logits of
/// the other ranks' tokens. (Large sums cost less with three ranks or more: see `Ranks::all_reduce`.)
PassCost shared(const PassCost& alone, const FleetOptions& fleet, const ModelConfig& config);

/// Fits the cost for one rank, then applies `shared` to it.
inline PassCost fit_shared(const FleetOptions& fleet, const ModelConfig& config,
                           const std::function<std::vector<MeasuredPass>(unsigned seed)>& measure) {
  return shared(fit(measure), fleet, config);
}

/// An engine that appends its passes over the rows of `cache` to `passes`. A pass lasts until the next one
/// begins, so it includes the work done with its logits. The last pass is left out.
class TimedEngine : public DelegatingEngine {
 public:
  TimedEngine(Engine& engine, const KvCache& cache, std::vector<MeasuredPass>& passes)
      : DelegatingEngine(engine), cache_(cache), passes_(passes) {}

  Logits forward(Fed fed) override;

 private:
  const KvCache& cache_;
  std::vector<MeasuredPass>& passes_;
  std::optional<MeasuredPass> last_ = {};
  std::chrono::steady_clock::time_point start_ = {};
};

}  // namespace staircase
