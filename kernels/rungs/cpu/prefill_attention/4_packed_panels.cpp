// Attention as two products: a query times the keys, [head_size, positions], and its weights times the
// values, [positions, head_size]. Both matrices are packed into panels of 64 columns, once for all tokens. A
// lane then has a column of its own, so no lanes are added up, and 64 sums stay in registers down the whole
// panel.
#include "kernels/rungs/cpu/prefill_attention/exponentials.h"
#include "kernels/rungs/cpu/prefill_attention/packed_head.h"

namespace staircase::rungs::prefill_attention {
namespace {

/// y [64] = x [depth] · panel [depth, 64]
void multiply(const float* x, const float* panel, std::int64_t depth, float* y) {
  Vector sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(Floats());
  for (std::int64_t i = 0; i < depth; ++i) {
    const Vector own = hn::Set(Floats(), x[i]);
    for (int v = 0; v < kVectors; ++v)
      sums[v] = hn::MulAdd(own, hn::Load(Floats(), panel + i * kPanel + v * kLanes), sums[v]);
  }
  store(sums, kPanel, y);
}

void attend(const Prompt& p, const PackedHead& packed, std::int64_t token, std::int64_t head, float* scores,
            float* out) {
  const std::int64_t size = p.shape.head_size, seen = p.seen(token);
  for (std::int64_t key = 0; key < seen; key += kPanel)
    multiply(p.query(token, head), packed.keys(key), size, scores + key);
  const float sum = exponentials(scores, seen, scale_of(p.shape));
  for (std::int64_t f = 0; f < size; f += kPanel) {
    float means[kPanel];
    multiply(scores, packed.values(f), seen, means);
    for (std::int64_t i = 0; i < std::min(kPanel, size - f); ++i) out[f + i] = means[i] / sum;
  }
}

void run(const Prompt& p, ThreadTeam&, float* out) {
  Memory<float> scores(panels_of(p.shape.positions) * kPanel);
  for (std::int64_t kv_head = 0; kv_head < p.shape.n_kv_head; ++kv_head) {
    const PackedHead packed(p, kv_head);
    for (std::int64_t i = 0; i < p.shape.group() * p.tokens; ++i) {
      const std::int64_t head = kv_head * p.shape.group() + i / p.tokens, token = i % p.tokens;
      attend(p, packed, token, head, scores.data(), out + p.place(token, head));
    }
  }
}

}  // namespace

constexpr PrefillRung kPackedPanels{"4-packed-panels", "both products in panels, packed once for all tokens",
                                    run};

}  // namespace staircase::rungs::prefill_attention
