// Dot products use vectors. Floating-point addition depends on its order, so the compiler may not vectorize
// it by itself: a sum of 64 products stays 64 additions, each of which waits for the previous one.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rungs/cpu/attention/cache.h"
#include "kernels/rungs/cpu/attention/vectors.h"

namespace staircase::rungs::attention {
namespace {

class DotProducts final : public Attention {
 public:
  DotProducts(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam&)
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
      score = dot(query, key, size) * scale_of(shape_);
      key += size;
    }
    const float largest = *std::ranges::max_element(scores_);
    float sum = 0.0f;
    for (float& score : scores_) sum += score = std::exp(score - largest);
    std::fill_n(out, size, 0.0f);
    for (const float score : scores_) {
      add_scaled(score / sum, value, size, out);
      value += size;
    }
  }

  AttentionShape shape_;
  Cache<float> cache_;
  std::vector<float> scores_;
};

}  // namespace

constexpr AttentionRung kDotProducts =
    attention_rung<DotProducts>("3-dot-products", "16 products of a dot product at once");

}  // namespace staircase::rungs::attention
