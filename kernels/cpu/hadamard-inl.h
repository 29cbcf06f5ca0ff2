// The rotation of kernels/hadamard.h in vectors. This file is included once for each SIMD target (see
// Highway's foreach_target.h).
#if defined(STAIRCASE_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STAIRCASE_HADAMARD_INL_H_
#undef STAIRCASE_HADAMARD_INL_H_
#else
#define STAIRCASE_HADAMARD_INL_H_
#endif

#include "kernels/cpu/tile-inl.h"
#include "kernels/hadamard.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// Does what rotate_head does, with the same bits.
HWY_INLINE void rotate_in_vectors(float* x, std::int64_t head_size) {
#if HWY_TARGET == HWY_SCALAR  // the scalar target has one lane
  rotate_head(x, head_size);
#else
  static_assert(head_multiple(DType::kInt4) % (2 * kLanes) == 0, "n is a multiple of two vectors");
  const Floats d;
  const std::int64_t n = head_size & -head_size;
  // In each of the first rounds the partners are neighbours: sums go to the first vector, differences to the
  // second. So the next partners become neighbours, and after the last round all are back in their places.
  for (std::int64_t first = 0; first < head_size; first += 2 * kLanes) {
    auto low = hn::LoadU(d, x + first), high = hn::LoadU(d, x + first + kLanes);
#pragma GCC unroll 5
    for (int half = 1; half <= kLanes; half *= 2) {
      const auto a = hn::ConcatEven(d, high, low), b = hn::ConcatOdd(d, high, low);
      low = hn::Add(a, b);
      high = hn::Sub(a, b);
    }
    hn::StoreU(low, d, x + first);
    hn::StoreU(high, d, x + first + kLanes);
  }
  for (std::int64_t half = 2 * kLanes; half < n; half *= 2) {
    for (std::int64_t first = 0; first < head_size; first += 2 * half) {
      for (std::int64_t i = first; i < first + half; i += kLanes) {
        const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + half);
        hn::StoreU(hn::Add(a, b), d, x + i);
        hn::StoreU(hn::Sub(a, b), d, x + i + half);
      }
    }
  }
  const auto factor = hn::Set(d, 1.0f / std::sqrt(static_cast<float>(n)));
  for (std::int64_t i = 0; i < head_size; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factor), d, x + i);
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#endif  // include guard, once for each target
