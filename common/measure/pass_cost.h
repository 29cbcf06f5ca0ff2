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

/// The tokens of each row of a batch that go through the model in one pass.
using Fed = std::span<const std::span<const int>>;

/// What a pass computed, and how long it took.
struct MeasuredPass {
  int rows = 0;            ///< that feed something
  int tokens = 0;          ///< that they feed
  double positions = 0.0;  ///< positions that these tokens attend to: each to those before it in its row, and
                           ///< to itself
  double seconds = 0.0;
};

/// A pass that feeds `fed[r]` to row r of the cache; its time is 0 for now.
MeasuredPass describe(Fed fed, const KvCache& cache);

/// The seconds of a pass: a part for reading the weights, and a part per row, token and position.
struct PassCost {
  double pass = 0.0, row = 0.0, token = 0.0, position = 0.0;

  double seconds(const MeasuredPass& of) const {
    return pass + row * of.rows + token * of.tokens + position * of.positions;
  }
};

/// The cost that fits `passes` best, by least squares; no part is negative. Each square has the weight 1 /
/// seconds, so neither the longest passes nor the many short ones decide alone. `passes` must not be empty,
/// and each must have taken time.
PassCost fit(const std::vector<MeasuredPass>& passes);

/// The cost of the passes that `measure` finds with seed 1. Prints how well it predicts those with seed 2,
/// and warns if it is off by more than 10 %. Each pass is measured four times, and its shortest time counts:
/// other work on the machine can only add to it.
PassCost fit(const std::function<std::vector<MeasuredPass>(unsigned seed)>& measure);

/// The cost of passes that `fleet.ranks` ranks share by tensor parallelism (step 98). Each computes its part
/// of `alone`, and waits for the calls and bytes of its link: two sums per block and one of the embedding,
/// and the logits of the others' tokens. (Large sums of three ranks or more cost less: `Ranks::all_reduce`.)
PassCost shared(const PassCost& alone, const FleetOptions& fleet, const ModelConfig& config);

/// `shared` of what `fit` finds for one rank.
inline PassCost fit_shared(const FleetOptions& fleet, const ModelConfig& config,
                           const std::function<std::vector<MeasuredPass>(unsigned seed)>& measure) {
  return shared(fit(measure), fleet, config);
}

/// An engine that adds its passes to `passes`, for the rows of `cache`. Each lasts until the next begins: the
/// work done with the logits belongs to it. The last one is left out.
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
