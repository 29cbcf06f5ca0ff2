// Exponentials also use vectors. exp is a polynomial of about 10 steps, and std::exp computes one at a time.
// The largest score is found by comparing 16 at a time. The division comes last: once per feature, not once
// per position.
#include <hwy/contrib/math/math-inl.h>

#include <vector>

#include "kernels/rungs/cpu/attention/cache.h"
#include "kernels/rungs/cpu/attention/vectors.h"

namespace staircase::rungs::attention {
namespace {

class Exponentials final : public Attention {
 public:
  Exponentials(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam&)
      : shape_(shape), cache_(shape, keys, values), scores_(whole_vectors(shape.positions)) {}

  void run(const float* queries, float* out) override {
    for (std::int64_t h = 0; h < shape_.n_head; ++h) {
      attend(queries + h * shape_.head_size, h / shape_.group(), out + h * shape_.head_size);
    }
  }

  std::int64_t cache_bytes() const override { return cache_.bytes(); }

 private:
  static std::int64_t whole_vectors(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

  void attend(const float* query, std::int64_t kv_head, float* out) {
    const Floats d;
    const std::int64_t size = shape_.head_size, padded = whole_vectors(shape_.positions);
    float* const scores = scores_.data();
    for (std::int64_t p = 0; p < shape_.positions; ++p)
      scores[p] = dot(query, cache_.keys(kv_head) + p * size, size) * scale_of(shape_);
    std::fill(scores + shape_.positions, scores + padded, -std::numeric_limits<float>::infinity());
    Vector most = hn::Load(d, scores), sums = hn::Zero(d);
    for (std::int64_t p = kLanes; p < padded; p += kLanes) most = hn::Max(most, hn::Load(d, scores + p));
    most = hn::MaxOfLanes(d, most);
    for (std::int64_t p = 0; p < padded; p += kLanes) {
      const Vector weights = hn::Exp(d, hn::Sub(hn::Load(d, scores + p), most));
      sums = hn::Add(sums, weights);
      hn::Store(weights, d, scores + p);
    }
    std::fill_n(out, size, 0.0f);
    for (std::int64_t p = 0; p < shape_.positions; ++p)
      add_scaled(scores[p], cache_.values(kv_head) + p * size, size, out);
    const float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (std::int64_t f = 0; f < size; ++f) out[f] /= sum;
  }

  AttentionShape shape_;
  Cache<float> cache_;
  Memory<float> scores_;
};

}  // namespace

constexpr AttentionRung kExponentials =
    attention_rung<Exponentials>("4-exponentials", "16 exponentials at once, one division a feature");

}  // namespace staircase::rungs::attention
