// A softmax of scores that come in blocks, for many queries. Rungs 6 to 9 use it.
#pragma once

#include <cmath>

#include "kernels/rungs/cpu/prefill_attention/exponentials.h"

namespace staircase::rungs::prefill_attention {

/// The keys of a block: with their values 128 KB, which stay in the second cache.
constexpr std::int64_t kKeys = 4 * kPanel;

/// The state of a query after some of its keys: the largest score so far, and the sum of weights relative to
/// it.
struct SoFar {
  float largest = kHidden, sum = 0.0f;
};

/// The scores of the next `total` keys, of which the query sees the first `count`, become weights relative to
/// the largest score so far. If that grows, the sum and the means [width] so far shrink.
inline void weigh(float* scores, std::int64_t count, std::int64_t total, float scale, SoFar& so_far,
                  float* means, std::int64_t width) {
  const Floats d;
  count = std::clamp<std::int64_t>(count, 0, total);
  const std::int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + count, scores + padded, kHidden);
  Vector most = hn::Set(d, so_far.largest), sums = hn::Zero(d);
  for (std::int64_t i = 0; i < padded; i += kLanes) most = hn::Max(most, hn::Load(d, scores + i));
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  if (largest > so_far.largest) {
    const float shrink = std::exp(scale * (so_far.largest - largest));
    for (std::int64_t i = 0; i < width; ++i) means[i] *= shrink;
    so_far = {largest, so_far.sum * shrink};
  }
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const Vector below = hn::Sub(hn::Load(d, scores + i), hn::Set(d, largest));
    const Vector weights = hn::Exp(d, hn::Mul(below, hn::Set(d, scale)));
    sums = hn::Add(sums, weights);
    hn::Store(weights, d, scores + i);
  }
  if (padded < total) std::fill(scores + padded, scores + total, 0.0f);
  so_far.sum += hn::GetLane(hn::SumOfLanes(d, sums));
}

}  // namespace staircase::rungs::prefill_attention
