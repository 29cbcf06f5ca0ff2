// A head of an int4 cache (KeysValues in device.h): how threads rotate it, round it to levels and read them.
#pragma once

#include "kernels/cuda/device_tensors.cuh"

namespace staircase::cuda {

/// The numbers of a group. The levels of two groups, which are 32 neighbours, take as many bytes.
constexpr int kGroupLevels = kInt4CacheGroup;

/// A byte of levels: that of number i in the lower four bits, and that of number i + 16 in the upper four.
struct Int4Byte {
  std::uint8_t levels;
};

/// Whether keys and values of that type are rotated.
template <typename Stored>
constexpr bool kIsRotated = std::is_same_v<Stored, Int4Byte>;

/// The least number and the step of a group.
struct alignas(4) LevelEnds {
  __nv_bfloat16 least, step;

  /// Returns the ends for levels from the smallest to the largest number.
  static __device__ LevelEnds between(float smallest, float largest) {
    return {narrow<__nv_bfloat16>(smallest), narrow<__nv_bfloat16>((largest - smallest) / 15.0f)};
  }
  __device__ __forceinline__ int level(float x) const {
    const float above = x - widen(least), size = widen(step);
    const float whole = size == 0.0f ? 0.0f : rintf(above / size);
    return static_cast<int>(fmaxf(fminf(whole, 15.0f), 0.0f));
  }
  __device__ __forceinline__ float number(int level) const {
    return fmaf(static_cast<float>(level), widen(step), widen(least));
  }
};

/// Returns the ends of a head's groups, which are stored after its levels.
__device__ __forceinline__ const LevelEnds* ends_of_groups(const Int4Byte* head, int size) {
  return reinterpret_cast<const LevelEnds*>(head + size / 2);
}

/// Rotates heads, the first features of rows in shared memory: rows [count, stride]. It does what
/// rotate_head in kernels/hadamard.h does, in the same order. Each of `members` threads calls it; wait()
/// waits for all of them, also at the beginning and at the end.
template <typename Wait>
__device__ __forceinline__ void rotate_heads(float* rows, int count, int stride, int size, int member,
                                             int members, const Wait& wait) {
  const int n = size & -size, pairs = size / 2;
  for (int half = 1; half < n; half *= 2) {
    const float factor = 2 * half < n ? 1.0f : 1.0f / sqrtf(static_cast<float>(n));
    wait();
    for (int p = member; p < count * pairs; p += members) {
      const int pair = p % pairs;  // of features i and i + half
      float* const first = rows + p / pairs * stride + pair + pair / half * half;
      const float a = first[0], b = first[half];
      first[0] = (a + b) * factor;
      first[half] = (a - b) * factor;
    }
  }
  wait();
}

/// Combines a number of each lane with those of the other members of its group. Of 32 neighbours, the second
/// and the fourth quarter are a group, as the other two are. So the members differ in all bits of their
/// place but that of 8.
template <typename T, typename Combine>
__device__ __forceinline__ T over_group(T value, const Combine& combine) {
  static_assert(kWarp == 2 * kGroupLevels);
  for (int distance = 1; distance < kWarp; distance *= 2) {
    if (distance != kGroupLevels / 2) {
      value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
    }
  }
  return value;
}

/// Returns the ends with the least squared error for the levels that `ends` gives the group of this lane's
/// number, by linear regression. In double precision they equal the CPU's (fitted in
/// kernels/cpu/quantize-inl.h).
__device__ __forceinline__ LevelEnds fitted(float x, LevelEnds ends) {
  const auto sum = [](auto value) { return over_group(value, [](auto a, auto b) { return a + b; }); };
  const double least = static_cast<double>(widen(ends.least)), number = static_cast<double>(x) - least;
  const int level = ends.level(x), of_levels = sum(level), squares = sum(level * level);
  const int variance = kGroupLevels * squares - of_levels * of_levels;
  const double of_numbers = sum(number), products = sum(level * number);
  if (variance == 0) return ends;  // all levels are equal, or numbers are not finite
  const double above = (squares * of_numbers - of_levels * products) / variance,
               step = (kGroupLevels * products - of_levels * of_numbers) / variance;
  return {narrow<__nv_bfloat16>(static_cast<float>(least + above)),
          narrow<__nv_bfloat16>(static_cast<float>(step))};
}

/// Rounds a rotated head to 4 bits. Every lane of the warp must call it.
__device__ __forceinline__ void store_levels(const float* head, int size, Int4Byte* to) {
  constexpr int kHalf = kWarp / 2, kQuarter = kWarp / 4;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* const groups = reinterpret_cast<LevelEnds*>(to + size / 2);
  for (int first = 0; first < size; first += kWarp) {
    const float x = head[first + lane];
    // Of 0 and -0, processors differ in which is the smaller: + 0 turns -0 into 0.
    const float smallest = over_group(x, [](float a, float b) { return fminf(a, b); }) + 0.0f,
                largest = over_group(x, [](float a, float b) { return fmaxf(a, b); }) + 0.0f;
    const LevelEnds ends = fitted(x, LevelEnds::between(smallest, largest));
    const int level = ends.level(x), upper = __shfl_down_sync(kAllLanes, level, kHalf);
    if (lane < kHalf) {
      to[first / 2 + lane] = {static_cast<std::uint8_t>(level | upper << 4)};
      if (lane % kQuarter == 0) groups[first / kHalf + lane / kQuarter] = ends;
    }
  }
}

}  // namespace staircase::cuda
