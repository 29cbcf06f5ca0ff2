#include "common/measure/rank_comparison.h"

#include <fmt/format.h>

#include <span>

#include "common/base/message.h"
#include "common/measure/logit_comparison.h"
#include "common/parallel/thread_ranks.h"

namespace staircase {

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
  constexpr double kKiB = 1024.0, kMiB = kKiB * kKiB;
  say(fmt::format("rank 0 of {} keeps {:.1f} MiB of weights and receives {:.1f} KiB for {} tokens", size,
                  static_cast<double>(weights) / kMiB, static_cast<double>(received) / kKiB, prompt.size()));
}

}  // namespace staircase
