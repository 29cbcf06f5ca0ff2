#include "common/decoding/probabilities.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "common/base/error.h"
#include "kernels/device.h"

namespace staircase {
namespace {

/// Visits the index of each value from `first` on that is `wanted`. Most values are not, so the compiler
/// checks with SIMD whether a whole block holds none.
template <typename Wanted, typename Visit>
void for_each_wanted(std::span<const float> values, std::size_t first, const Wanted& wanted,
                     const Visit& visit) {
  constexpr std::size_t kBlock = 64;
  for (; first < values.size(); first += kBlock) {
    const std::size_t last = std::min(first + kBlock, values.size());
    int count = 0;
    for (std::size_t i = first; i < last; ++i) count += wanted(values[i]);
    for (std::size_t i = first; count > 0 && i < last; ++i) {
      if (wanted(values[i])) visit(i);
    }
  }
}

}  // namespace

std::vector<float> softmax(std::span<const float> logits) {
  std::vector<float> probabilities(logits.begin(), logits.end());
  if (!softmax_in_place(probabilities)) {
    throw Error("no token can be chosen: the options leave no finite logit");
  }
  return probabilities;
}

float kth_largest(std::span<const float> values, int k) {
  // A heap of the k largest so far, the smallest of them in front. After the first few blocks, hardly any
  // value enters it.
  std::vector<float> largest(values.begin(), values.begin() + k);
  std::ranges::make_heap(largest, std::greater<>());
  for_each_wanted(
      values, k, [&](float value) { return value > largest.front(); },
      [&](std::size_t i) {
        std::ranges::pop_heap(largest, std::greater<>());
        largest.back() = values[i];
        std::ranges::push_heap(largest, std::greater<>());
      });
  return largest.front();
}

std::vector<Candidate> likely_enough(std::span<const float> probabilities, float least) {
  std::vector<Candidate> candidates;
  for_each_wanted(
      probabilities, 0, [&](float value) { return value >= least; },
      [&](std::size_t i) {
        candidates.push_back({static_cast<int>(i), probabilities[i]});
      });
  return candidates;
}

std::vector<int> highest(std::span<const float> values, std::int64_t count) {
  count = std::min<std::int64_t>(count, std::ssize(values));
  if (count <= 0) return {};
  std::vector<int> ids;
  const float least = kth_largest(values, static_cast<int>(count));
  for_each_wanted(
      values, 0, [&](float value) { return value >= least; },
      [&](std::size_t i) { ids.push_back(static_cast<int>(i)); });
  std::ranges::stable_sort(ids, std::greater<>(), [&](int id) { return values[id]; });
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

std::vector<Candidate> likeliest(std::span<const float> logits, int count) {
  if (count <= 0) return {};
  const std::vector<float> probabilities = softmax(logits);
  std::vector<Candidate> candidates;
  for (const int id : highest(probabilities, count)) {
    if (probabilities[id] > 0.0f) candidates.push_back({id, probabilities[id]});
  }
  return candidates;
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0.0f) sum += p[i] * std::log(static_cast<double>(p[i]) / std::max(q[i], 1e-30f));
  }
  return sum;
}

double uniform(std::mt19937& generator) {
  // 27 + 26 random bits: all that a double can hold.
  const std::uint32_t high = generator() >> 5;
  const std::uint32_t low = generator() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

}  // namespace staircase
