// Values are read in the order of memory: one position adds its share to all features, then the next position
// follows. Every byte of a cache line is used.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rungs/cpu/attention/cache.h"

namespace staircase::rungs::attention {
namespace {

class LoopOrder final : public Attention {
 public:
  LoopOrder(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam&)
      : shape_(shape), cache_(shape, keys, values), scores_(static_cast<std::size_t>(shape.positions)) {}

  void run(const float* queries, float* out) override {
    for (std::int64_t h = 0; h < shape_.n_head; ++h) {
      attend(queries + h * shape_.head_size, h / shape_.group(), out + h * shape_.head_size);
    }
  }

  std::int64_t cache_bytes() const override { return cache_.bytes(); }

 private:
  void attend(const float* query, std::int64_t kv_head, float* out) {
    const std::int64_t size = shape_.head_size;
    const float* key = cache_.keys(kv_head);
    const float* value = cache_.values(kv_head);
    for (float& score : scores_) {
      score = 0.0f;
      for (std::int64_t f = 0; f < size; ++f) score += query[f] * key[f];
      score *= scale_of(shape_);
      key += size;
    }
    const float largest = *std::ranges::max_element(scores_);
    float sum = 0.0f;
    for (float& score : scores_) sum += score = std::exp(score - largest);
    std::fill_n(out, size, 0.0f);
    for (const float score : scores_) {
      for (std::int64_t f = 0; f < size; ++f) out[f] += score / sum * value[f];
      value += size;
    }
  }

  AttentionShape shape_;
  Cache<float> cache_;
  std::vector<float> scores_;
};

}  // namespace

constexpr AttentionRung kLoopOrder =
    attention_rung<LoopOrder>("2-loop-order", "all features of a position, then the next position");

}  // namespace staircase::rungs::attention
