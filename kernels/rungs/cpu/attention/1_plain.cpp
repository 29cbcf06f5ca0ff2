// The definition: compute the scores, their softmax, and for each feature the weighted mean of all values.
//
// The last loop goes down a column of the values, in steps of head_size numbers. Of each cache line of 64
// bytes it uses only 4.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rungs/cpu/attention/cache.h"

namespace staircase::rungs::attention {
namespace {

class Plain final : public Attention {
 public:
  Plain(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam&)
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
    const float* const values = cache_.values(kv_head);
    for (float& score : scores_) {
      score = 0.0f;
      for (std::int64_t f = 0; f < size; ++f) score += query[f] * key[f];
      score *= scale_of(shape_);
      key += size;
    }
    const float largest = *std::ranges::max_element(scores_);
    float sum = 0.0f;
    for (float& score : scores_) sum += score = std::exp(score - largest);
    for (std::int64_t f = 0; f < size; ++f) {
      out[f] = 0.0f;
      for (std::int64_t p = 0; p < shape_.positions; ++p) {
        out[f] += scores_[static_cast<std::size_t>(p)] / sum * values[p * size + f];
      }
    }
  }

  AttentionShape shape_;
  Cache<float> cache_;
  std::vector<float> scores_;
};

}  // namespace

constexpr AttentionRung kPlain =
    attention_rung<Plain>("1-plain", "the definition: one feature after another");

}  // namespace staircase::rungs::attention
