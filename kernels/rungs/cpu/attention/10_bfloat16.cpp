// Keys and values are bfloat16 numbers: half of the bytes, the same loops.
#include "kernels/rungs/cpu/attention/cache.h"
#include "kernels/rungs/cpu/attention/online_softmax.h"

namespace staircase::rungs::attention {
namespace {

class BFloat16 final : public Attention {
 public:
  BFloat16(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam& team)
      : shape_(shape), cache_(shape, keys, values, bfloat16_from_float32), team_(team) {}

  void run(const float* queries, float* out) override {
    const std::int64_t blocks = (shape_.positions + kBlock - 1) / kBlock, size = shape_.head_size;
    const std::vector<OnlineSoftmax> heads(static_cast<std::size_t>(shape_.n_head), OnlineSoftmax(size));
    std::vector<std::vector<OnlineSoftmax>> parts(static_cast<std::size_t>(team_.size()), heads);
    team_.run([&](int thread) {
      const IndexRange own = share_of(shape_.n_kv_head * blocks, team_.size(), thread);
      for (std::int64_t i = own.first; i < own.last; ++i)
        attend(queries, i / blocks, i % blocks * kBlock, parts[static_cast<std::size_t>(thread)]);
    });
    for (std::size_t h = 0; h < heads.size(); ++h) {
      OnlineSoftmax whole = heads[h];
      for (const std::vector<OnlineSoftmax>& part : parts) whole.add(part[h]);
      whole.finish(out + static_cast<std::int64_t>(h) * size);
    }
  }

  std::int64_t cache_bytes() const override { return cache_.bytes(); }

 private:
  /// Adds the block that begins at position `first` to the heads of a group.
  void attend(const float* queries, std::int64_t kv_head, std::int64_t first,
              std::vector<OnlineSoftmax>& heads) const {
    const std::int64_t size = shape_.head_size, count = std::min(kBlock, shape_.positions - first);
    float scores[kBlock];
    for (std::int64_t h = kv_head * shape_.group(); h < (kv_head + 1) * shape_.group(); ++h) {
      score_panel(queries + h * size, cache_.keys(kv_head, first / kBlock), count, size, scale_of(shape_),
                  scores);
      heads[static_cast<std::size_t>(h)].add(scores, cache_.values(kv_head) + first * size, count);
    }
  }

  AttentionShape shape_;
  PackedCache<std::uint16_t> cache_;
  ThreadTeam& team_;
};

}  // namespace

constexpr AttentionRung kBFloat16 = attention_rung<BFloat16>("10-bfloat16", "half of the bytes");

}  // namespace staircase::rungs::attention
