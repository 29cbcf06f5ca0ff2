// Dot products, exponentials and sums in vectors, sixteen numbers at a time with AVX-512. The compiler may
// not do so by itself: a sum of floats depends on its order, and std::exp is a function for one number.
#include "kernels/rungs/cpu/prefill_attention/exponentials.h"
#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"

namespace staircase::rungs::prefill_attention {
namespace {

void attend(const Prompt& p, std::int64_t token, std::int64_t head, float* scores, float* out) {
  const std::int64_t size = p.shape.head_size, seen = p.seen(token);
  const float* const keys = p.keys + p.cache(head);
  const float* const values = p.values + p.cache(head);
  for (std::int64_t i = 0; i < seen; ++i)
    scores[i] = attention::dot(p.query(token, head), keys + i * size, size);
  const float sum = exponentials(scores, seen, scale_of(p.shape));
  std::fill_n(out, size, 0.0f);
  for (std::int64_t i = 0; i < seen; ++i)
    attention::add_scaled(scores[i] / sum, values + i * size, size, out);
}

void run(const Prompt& p, ThreadTeam&, float* out) {
  Memory<float> scores(panels_of(p.shape.positions) * kPanel);
  for (std::int64_t head = 0; head < p.shape.n_head; ++head) {
    for (std::int64_t token = 0; token < p.tokens; ++token)
      attend(p, token, head, scores.data(), out + p.place(token, head));
  }
}

}  // namespace

constexpr PrefillRung kSimd{"3-vectors", "16 features and 16 exponentials at once", run};

}  // namespace staircase::rungs::prefill_attention
