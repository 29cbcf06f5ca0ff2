// The two loops over the features of a head, with the vectors of this processor.
#pragma once

#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::attention {

inline Vector load(const float* numbers) {
  return hn::LoadU(Floats(), numbers);
}
/// Loads bfloat16 numbers, which are the upper halves of floats.
inline Vector load(const std::uint16_t* numbers) {
  const auto halves = hn::LoadU(hn::Rebind<std::uint16_t, Floats>(), numbers);
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(hn::Rebind<std::uint32_t, Floats>(), halves)));
}

/// Returns the sum of query[f] key[f], from kLanes partial sums.
template <typename T>
float dot(const float* query, const T* key, std::int64_t size) {
  Vector sums = hn::Zero(Floats());
  for (std::int64_t f = 0; f < size; f += kLanes) sums = hn::MulAdd(load(query + f), load(key + f), sums);
  return hn::GetLane(hn::SumOfLanes(Floats(), sums));
}

/// out[f] += factor * value[f]
template <typename T>
void add_scaled(float factor, const T* value, std::int64_t size, float* out) {
  const Floats d;
  for (std::int64_t f = 0; f < size; f += kLanes)
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), load(value + f), load(out + f)), d, out + f);
}

}  // namespace staircase::rungs::attention
