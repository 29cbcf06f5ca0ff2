// One pass instead of three: 64 scores at a time become weights relative to the largest score so far, and
// their values are added immediately. If a later score is larger, the sums shrink. The list of all scores is
// gone, so a sequence of any length needs only the memory of one block.
#include "kernels/rungs/cpu/attention/cache.h"
#include "kernels/rungs/cpu/attention/online_softmax.h"

namespace staircase::rungs::attention {
namespace {

class Online final : public Attention {
 public:
  Online(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam&)
      : shape_(shape), cache_(shape, keys, values) {}

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
      score(query, cache_.keys(kv_head) + first * size, count, size, scale_of(shape_), scores);
      softmax.add(scores, cache_.values(kv_head) + first * size, count);
    }
    softmax.finish(out);
  }

  AttentionShape shape_;
  Cache<float> cache_;
};

}  // namespace

constexpr AttentionRung kOnlineSoftmax =
    attention_rung<Online>("5-online-softmax", "scores, softmax and values in one pass");

}  // namespace staircase::rungs::attention
