// A softmax of scores that arrive in blocks (Milakov and Gimelshein 2018, section 3), and the mean of the
// values with these weights. Rungs 5 to 10 use it.
#pragma once

#include <hwy/contrib/math/math-inl.h>

#include <limits>
#include <vector>

#include "kernels/rungs/cpu/attention/vectors.h"

namespace staircase::rungs::attention {

/// The positions of a block. Their scores and 64 keys of 64 floats, 16 KB, stay in the L1 cache.
constexpr std::int64_t kBlock = kPanel;

class OnlineSoftmax {
 public:
  explicit OnlineSoftmax(std::int64_t head_size) : out_(static_cast<std::size_t>(head_size)) {}

  /// Adds `count` positions. `scores` [kBlock] holds their scores first, then -infinity. `values` is [count,
  /// head_size]. Overwrites the scores.
  template <typename T>
  void add(float* scores, const T* values, std::int64_t count) {
    const Floats d;
    const std::int64_t size = std::ssize(out_);
    Vector most = hn::LoadU(d, scores), sums = hn::Zero(d);
    for (std::int64_t p = kLanes; p < kBlock; p += kLanes) most = hn::Max(most, hn::LoadU(d, scores + p));
    raise(hn::GetLane(hn::MaxOfLanes(d, most)));
    for (std::int64_t p = 0; p < kBlock; p += kLanes) {
      const Vector weights = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + p), hn::Set(d, largest_)));
      sums = hn::Add(sums, weights);
      hn::StoreU(weights, d, scores + p);
    }
    sum_ += hn::GetLane(hn::SumOfLanes(d, sums));
    std::int64_t f = 0;
    for (; f + kPanel <= size; f += kPanel) add_values<kVectors>(scores, values, count, f);
    for (; f < size; f += kLanes) add_values<1>(scores, values, count, f);
  }

  /// Adds all positions of another OnlineSoftmax.
  void add(OnlineSoftmax other) {
    raise(other.largest_);
    other.raise(largest_);
    sum_ += other.sum_;
    add_scaled(1.0f, other.out_.data(), std::ssize(out_), out_.data());
  }

  /// Writes the weighted mean to out [head_size].
  void finish(float* out) const {
    for (const float value : out_) *out++ = value / sum_;
  }

 private:
  /// Adds the values' features from `f` on, with their sums in registers. Reading columns is fast, because
  /// the block is in the cache.
  template <int kTogether, typename T>
  void add_values(const float* weights, const T* values, std::int64_t count, std::int64_t f) {
    const Floats d;
    const std::int64_t size = std::ssize(out_);
    Vector sums[kTogether];
    for (int v = 0; v < kTogether; ++v) sums[v] = load(out_.data() + f + v * kLanes);
    for (std::int64_t p = 0; p < count; ++p) {
      for (int v = 0; v < kTogether; ++v)
        sums[v] = hn::MulAdd(hn::Set(d, weights[p]), load(values + p * size + f + v * kLanes), sums[v]);
    }
    for (int v = 0; v < kTogether; ++v) hn::StoreU(sums[v], d, out_.data() + f + v * kLanes);
  }

  /// All weights are relative to the largest score so far. If `score` is larger, shrinks them.
  void raise(float score) {
    if (score <= largest_) return;
    const float factor = std::exp(largest_ - score);
    largest_ = score;
    sum_ *= factor;
    for (float& value : out_) value *= factor;
  }

  float largest_ = -std::numeric_limits<float>::infinity(), sum_ = 0.0f;
  std::vector<float> out_;
};

/// Computes the scores of a query [size] with a panel of keys [size, kBlock], of which `count` exist, as the
/// matrix-vector ladder multiplies a row by a panel.
template <typename T>
void score_panel(const float* query, const T* panel, std::int64_t count, std::int64_t size, float scale,
                 float* scores) {
  Vector sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(Floats());
  for (std::int64_t f = 0; f < size; ++f) {
    const Vector feature = hn::Set(Floats(), query[f] * scale);
    for (int v = 0; v < kVectors; ++v)
      sums[v] = hn::MulAdd(feature, load(panel + f * kBlock + v * kLanes), sums[v]);
  }
  store(sums, kBlock, scores);
  std::fill(scores + count, scores + kBlock, -std::numeric_limits<float>::infinity());
}

/// Computes the scores of a query with keys [count, size]; `count` is at most kBlock.
template <typename T>
void score(const float* query, const T* keys, std::int64_t count, std::int64_t size, float scale,
           float* scores) {
  for (std::int64_t p = 0; p < count; ++p) scores[p] = dot(query, keys + p * size, size) * scale;
  std::fill(scores + count, scores + kBlock, -std::numeric_limits<float>::infinity());
}

}  // namespace staircase::rungs::attention
