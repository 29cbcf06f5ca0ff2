// The exponentials of a softmax in vectors. Rung 3 and all later ones use them.
#pragma once

#include <hwy/contrib/math/math-inl.h>

#include <limits>

#include "kernels/rungs/cpu/attention/vectors.h"

namespace staircase::rungs::prefill_attention {

constexpr float kHidden = -std::numeric_limits<float>::infinity();  // the score of a later position

/// The first `count` scores become exp(scale · (score - the largest of them)), and their sum is returned. The
/// rest of the last vector becomes 0.
inline float exponentials(float* scores, std::int64_t count, float scale) {
  const Floats d;
  const std::int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + count, scores + padded, kHidden);
  Vector most = hn::Load(d, scores), sums = hn::Zero(d);
  for (std::int64_t i = kLanes; i < padded; i += kLanes) most = hn::Max(most, hn::Load(d, scores + i));
  most = hn::MaxOfLanes(d, most);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const Vector below = hn::Mul(hn::Sub(hn::Load(d, scores + i), most), hn::Set(d, scale));
    const Vector weights = hn::Exp(d, below);
    sums = hn::Add(sums, weights);
    hn::Store(weights, d, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sums));
}

}  // namespace staircase::rungs::prefill_attention
