// Keys are packed in panels: the keys of 64 positions lie together feature by feature, like the columns of a
// matrix in the other ladders. A dot product must add up a vector's lanes, which takes about eight
// instructions. With panels each lane has its own position, so no lanes are added up.
#include "kernels/rungs/cpu/attention/cache.h"
#include "kernels/rungs/cpu/attention/online_softmax.h"

namespace staircase::rungs::attention {
namespace {

class PackedKeys final : public Attention {
 public:
  PackedKeys(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam&)
      : shape_(shape), cache_(shape, keys, values, [](float key) { return key; }) {}

  void run(const float* queries, float* out) override {
    for (std::int64_t h = 0; h < shape_.n_head; ++h) {
      attend(queries + h * shape_.head_size, h / shape_.group(), out + h * shape_.head_size);
    }
  }

  std::int64_t cache_bytes() const override { return cache_.bytes(); }

 private:
  void attend(const float* query, std::int64_t kv_head, float* out) const {
    const std::int64_t size = shape_.head_size;
    OnlineSoftmax softmax(size);
    float scores[kBlock];
    for (std::int64_t first = 0; first < shape_.positions; first += kBlock) {
      const std::int64_t count = std::min(kBlock, shape_.positions - first);
      score_panel(query, cache_.keys(kv_head, first / kBlock), count, size, scale_of(shape_), scores);
      softmax.add(scores, cache_.values(kv_head) + first * size, count);
    }
    softmax.finish(out);
  }

  AttentionShape shape_;
  PackedCache<float> cache_;
};

}  // namespace

constexpr AttentionRung kPackedKeys =
    attention_rung<PackedKeys>("6-packed-keys", "a lane for each position: no lanes to add up");

}  // namespace staircase::rungs::attention
