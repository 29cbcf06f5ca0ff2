// k_largest: the k largest numbers of each row, in order, and the logarithm of the sum of all exponentials.
//
// Reads 4 bytes per value three times, the first time from memory: to check that all are finite, to find the
// largest, and to sum the exponentials. An exponential takes about 20 operations, which is the limit. After
// the first few thousand values, few enter the k largest.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/k_largest.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Σ exp(x[i] - largest). A long sum in float32 loses small terms, so short float32 sums are added in double.
HWY_ATTR double sum_of_exponentials(const float* x, std::int64_t count, float largest) {
  constexpr std::int64_t kShort = 64;  // vectors
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = count / lanes * lanes;
  double sum = 0.0;
  for (std::int64_t first = 0; first < whole; first += kShort * lanes) {
    auto sums = hn::Zero(d);
    for (std::int64_t i = first; i < std::min(first + kShort * lanes, whole); i += lanes) {
      sums = hn::Add(sums, hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, largest))));
    }
    sum += hn::GetLane(hn::SumOfLanes(d, sums));
  }
  for (std::int64_t i = whole; i < count; ++i) sum += std::exp(x[i] - largest);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(sum_of_exponentials);

namespace {

struct Found {
  float value;
  std::int32_t index;
};

bool comes_first(const Found& a, const Found& b) {
  return a.value != b.value ? a.value > b.value : a.index < b.index;
}

/// Returns the k largest, in order.
std::vector<Found> largest_of(std::span<const float> row, std::size_t k) {
  // A heap with the smallest of the k largest in front, which a larger value replaces.
  std::vector<Found> heap;
  heap.reserve(k);
  for (std::size_t i = 0; i < k; ++i) heap.push_back({row[i], static_cast<std::int32_t>(i)});
  std::ranges::make_heap(heap, comes_first);
  constexpr std::size_t kBlock = 64;
  for (std::size_t first = k; first < row.size(); first += kBlock) {
    const std::size_t last = std::min(first + kBlock, row.size());
    // The compiler vectorizes this count, and most blocks have no larger value.
    int larger = 0;
    for (std::size_t i = first; i < last; ++i) larger += row[i] > heap.front().value;
    for (std::size_t i = first; larger > 0 && i < last; ++i) {
      if (row[i] <= heap.front().value) continue;
      std::ranges::pop_heap(heap, comes_first);
      heap.back() = {row[i], static_cast<std::int32_t>(i)};
      std::ranges::push_heap(heap, comes_first);
    }
  }
  std::ranges::sort_heap(heap, comes_first);
  return heap;
}

}  // namespace

void CpuDevice::k_largest(const Tensor& x, std::int64_t k, Tensor& out) {
  const std::int64_t width = x.dim(1);
  each_few_rows(x, [&](IndexRange rows) {
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      const std::span row(x.data<float>() + r * width, static_cast<std::size_t>(width));
      std::int32_t* const indices = out.data<std::int32_t>() + r * (2 * k + 1);
      std::int32_t* const values = indices + k;
      if (!all_finite(row)) {
        indices[0] = -1;
        continue;
      }
      const std::vector<Found> found = largest_of(row, static_cast<std::size_t>(k));
      for (std::int64_t i = 0; i < k; ++i) {
        indices[i] = found[static_cast<std::size_t>(i)].index;
        values[i] = std::bit_cast<std::int32_t>(found[static_cast<std::size_t>(i)].value);
      }
      const double sum = HWY_DYNAMIC_DISPATCH(sum_of_exponentials)(row.data(), width, found.front().value);
      values[k] = std::bit_cast<std::int32_t>(found.front().value + static_cast<float>(std::log(sum)));
    }
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
