#include "common/measure/rank_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>

#include "common/base/message.h"
#include "common/measure/logit_comparison.h"
#include "common/parallel/thread_ranks.h"

namespace staircase {
namespace {

constexpr double kKiB = 1024.0, kMiB = kKiB * kKiB;

}  // namespace

void compare_with_ranks(Model& model, int size, const std::vector<int>& prompt,
                        const std::function<void(Model& part)>& prepare) {
  const std::span<const float> whole = model.next_logits(prompt);
  std::vector<float> logits;
  std::size_t weights = 0, received = 0;
  run_as_threads(size, [&](Ranks& ranks) {
    Model part = Model::load(model.path(), make_cpu_device(1), model.dtype(), ranks);
    prepare(part);
    const std::size_t before = ranks.received_bytes();
    const std::span<const float> own = part.next_logits(prompt);
    if (ranks.rank() > 0) return;
    logits.assign(own.begin(), own.end());
    weights = part.weight_bytes();
    received = ranks.received_bytes() - before;
  });
  compare_logits(logits, whole);
  say(fmt::format("rank 0 of {} keeps {:.1f} MiB of weights and receives {:.1f} KiB for {} tokens", size,
                  static_cast<double>(weights) / kMiB, static_cast<double>(received) / kKiB, prompt.size()));
}

void compare_with_stages(Model& model, int size, const std::vector<std::vector<int>>& prompts,
                         const std::function<void(Model& part)>& prepare) {
  const std::vector<std::span<const int>> batch(prompts.begin(), prompts.end());
  const std::span<const float> whole = model.next_logits(batch);
  struct Rank {
    int blocks;
    std::size_t weights, received;
  };
  std::vector<Rank> all(static_cast<std::size_t>(size));
  std::vector<float> logits;
  double seconds = std::numeric_limits<double>::infinity();
  run_as_threads(size, [&](Ranks& ranks) {
    Model part = Model::load(model.path(), make_cpu_device(1), model.dtype(), ranks, Split::kBlocks);
    prepare(part);
    const std::size_t before = ranks.received_bytes();
    const std::span<const float> own = part.next_logits(batch);
    all[static_cast<std::size_t>(ranks.rank())] = {part.config().n_layer, part.weight_bytes(),
                                                   ranks.received_bytes() - before};
    if (ranks.rank() == 0) logits.assign(own.begin(), own.end());
    for (int turn = 0; turn < 3; ++turn) {
      const auto start = std::chrono::steady_clock::now();
      part.next_logits(batch);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      if (ranks.rank() == 0) seconds = std::min(seconds, passed.count());
    }
  });
  compare_logits(logits, whole);
  for (int rank = 0; rank < size; ++rank) {
    const auto [blocks, weights, received] = all[static_cast<std::size_t>(rank)];
    say(fmt::format("rank {} of {}: {} blocks, {:.1f} MiB of weights, {:.1f} KiB received", rank, size,
                    blocks, static_cast<double>(weights) / kMiB, static_cast<double>(received) / kKiB));
  }
  say(fmt::format("a pass of {} sequences takes {:.1f} ms", prompts.size(), 1e3 * seconds));
}

}  // namespace staircase
