// add_low_rank: out[r] += Σ_k scales[k] (x[r] · down[k]) up[k] over the ranks k of the row's adapter.
//
// x [rows, in], down [ranks, in], up [ranks, out], out [rows, out]. A row takes 2 · rank · (in + out)
// operations; the product itself takes 2 · in · out. With rank 8 and 768 inputs and outputs, that is a
// fiftieth. A single row reads 4 bytes for every two operations and is limited by bandwidth. If the next row
// has the same adapter, the adapter is already in the cache.
//
// A row's result does not depend on the other rows: each is computed alone, by one thread, in one order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/low_rank.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// x · y, in four independent sums: while one addition completes, three more can start.
template <typename T>
HWY_INLINE float dot(const float* HWY_RESTRICT x, const T* HWY_RESTRICT y, std::int64_t size) {
  const Floats d;
  const auto add = [&](std::int64_t i, auto sum)
                       HWY_ATTR { return hn::MulAdd(hn::LoadU(d, x + i), load_wide(y + i), sum); };
  auto a = hn::Zero(d), b = a, c = a, e = a;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    a = add(i, a), b = add(i + kLanes, b), c = add(i + 2 * kLanes, c), e = add(i + 3 * kLanes, e);
  }
  for (; i + kLanes <= size; i += kLanes) a = add(i, a);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
  for (; i < size; ++i) sum += x[i] * widen(y[i]);
  return sum;
}

/// out += factor · y.
template <typename T>
HWY_INLINE void add_scaled(float factor, const T* HWY_RESTRICT y, std::int64_t size,
                           float* HWY_RESTRICT out) {
  const Floats d;
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), load_wide(y + i), hn::LoadU(d, out + i)), d, out + i);
  }
  for (; i < size; ++i) out[i] += factor * widen(y[i]);
}

/// Adds the ranks first .. last - 1 to one row.
HWY_ATTR void add_ranks(const float* x, const LowRank& change, std::int64_t first, std::int64_t last,
                        float* out) {
  const std::int64_t in = change.down.dim(1), width = change.up.dim(1);
  with_elements(change.down.dtype(), change.down.data<void>(), [&]<typename T>(const T* down) HWY_ATTR {
    const T* const up = change.up.data<T>();
    for (std::int64_t k = first; k < last; ++k) {
      const std::int32_t* const columns = change.columns.data<std::int32_t>() + 2 * k;
      const float inside = dot(x, down + k * in, in) * change.scales.data<float>()[k];
      add_scaled(inside, up + k * width + columns[0], columns[1] - columns[0], out + columns[0]);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(add_ranks);

void CpuDevice::add_low_rank(const Tensor& x, const Tensor& adapters, const LowRank& change, Tensor& out) {
  const std::int64_t rows = x.dim(0), in = x.dim(1), width = out.dim(1), ranks = change.down.dim(0);
  const std::int64_t of_adapter = divide_up(ranks, change.firsts.dim(0) - 1),
                     few = few_rows(of_adapter * (in + width));
  parallel_ranges(team_, divide_up(rows, few), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> widened;
    for (std::int64_t r = begin * few; r < std::min(end * few, rows); ++r) {
      const std::int32_t adapter = adapters.data<std::int32_t>()[r];
      if (adapter == kNoAdapter) continue;
      const std::int32_t* const firsts = change.firsts.data<std::int32_t>() + adapter;
      const float* row = x.data<float>() + r * in;
      if (x.dtype() == DType::kBFloat16) {
        const std::uint16_t* const narrow = x.data<std::uint16_t>() + r * in;
        widened.resize(static_cast<std::size_t>(in));
        std::transform(narrow, narrow + in, widened.begin(), float32_from_bfloat16);
        row = widened.data();
      }
      HWY_DYNAMIC_DISPATCH(add_ranks)
      (row, change, firsts[0], firsts[1], out.data<float>() + r * width);
    }
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
