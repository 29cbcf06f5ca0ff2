// k_largest: the k largest numbers of each row, in order, and the logarithm of the sum of all exponentials.
// From these 8 k + 4 bytes per row of logits, the host can sample a token.
//
// x [rows, width]. A radix select (Alabi et al. 2012, "Fast k-Selection Algorithms for Graphics Processing
// Units"): each number and its index become one key, and the block counts the keys by their first bits. The
// counts give the first bits of the k-th largest key. If few enough keys have these bits or larger ones, they
// are collected and sorted; otherwise the keys with the same first bits are counted by their next bits.
// Usually the row is read three times, once from memory and then from the L2 cache.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kSelectThreads = 1024;
constexpr int kDigitBits = 10, kBins = 1 << kDigitBits, kKeyBits = 64;
/// The maximum number of keys to sort.
constexpr int kMostSorted = 2 * kMostLargest;

using Key = unsigned long long;

/// Makes a key from a number and its index. The larger of two keys has the larger number or, if both are
/// equal, the lower index.
__device__ __forceinline__ Key key_of(float number, int index) {
  const union {
    float value;
    unsigned bits;
  } own = {number + 0.0f};  // -0 becomes 0
  const unsigned ordered = own.bits >> 31 != 0 ? ~own.bits : own.bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | ~static_cast<unsigned>(index);
}

__device__ __forceinline__ int index_of(Key key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}

/// A sum of exponentials, as sum · exp(largest). It is NaN if a number was not finite.
struct Exponentials {
  float largest, sum;
};

__device__ __forceinline__ void add(Exponentials& all, float number) {
  if (!(fabsf(number) < INFINITY)) {
    all.sum = NAN;
  } else if (number > all.largest) {
    all = {number, all.sum * expf(all.largest - number) + 1.0f};
  } else {
    all.sum += expf(number - all.largest);
  }
}

__device__ __forceinline__ Exponentials warp_total(Exponentials own) {
  const float largest = warp_max(own.largest);
  // Threads without numbers have a sum of 0.
  return {largest, warp_sum(own.sum == 0.0f ? 0.0f : own.sum * expf(own.largest - largest))};
}

/// A bin of keys, and how many keys are in the bins above it.
struct Place {
  int bin, above;
};

/// Finds the bin of the k-th largest key. A warp searches 32 runs of bins, then the bins of one run.
__device__ __forceinline__ Place place_of(const unsigned* bins, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int top = kBins, above = 0;
  for (int run = kBins / kWarp; run > 0; run /= kWarp) {
    const int first = top - (lane + 1) * run;
    int own = 0;
    for (int i = 0; i < run; ++i)
      own += static_cast<int>(bins[first + (i + lane) % run]);  // each lane reads another bank
    int reached = own;                                          // with the keys of the lanes before
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, reached, static_cast<unsigned>(distance));
      if (lane >= distance) reached += other;
    }
    const int before = kWarp - __popc(__ballot_sync(kAllLanes, above + reached >= k));
    above += __shfl_sync(kAllLanes, reached - own, before);
    top -= before * run;
  }
  return {top - 1, above};
}

/// Sorts keys in falling order with a bitonic sorter (Batcher 1968). `count` is a power of two.
__device__ __forceinline__ void sort(Key* keys, int count) {
  for (int run = 2; run <= count; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < count / 2; i += kSelectThreads) {
        const int low = 2 * i - i % distance, high = low + distance;
        const Key a = keys[low], b = keys[high];
        const bool falls = (low & run) == 0;
        if (falls ? a < b : b < a) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

/// One block per row.
__global__ __launch_bounds__(kSelectThreads) void select_largest(const float* x, int width, int k,
                                                                 std::int32_t* out) {
  __shared__ unsigned bins[kBins];
  __shared__ Key keys[kMostSorted];
  __shared__ Exponentials warps[kSelectThreads / kWarp];
  __shared__ Place found;
  __shared__ unsigned count;
  begin_after_previous();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const float* const row = x + static_cast<std::int64_t>(blockIdx.x) * width;

  // The first `known` bits of the k-th largest key, and how many keys have larger first bits.
  Key least = 0;
  int known = 0, above = 0, candidates = width;
  Exponentials own{-INFINITY, 0.0f};
  while (known == 0 || candidates > kMostSorted) {
    const int bits = min(kDigitBits, kKeyBits - known), rest = kKeyBits - known - bits;
    for (int i = thread; i < kBins; i += kSelectThreads) bins[i] = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = thread; i < width; i += kSelectThreads) {
      const float number = row[i];
      const Key key = key_of(number, i);
      if (known == 0) add(own, number);
      if (known == 0 || (key ^ least) >> (kKeyBits - known) == 0) {
        atomicAdd(&bins[static_cast<unsigned>(key >> rest) % (1u << bits)], 1u);
      }
    }
    __syncthreads();
    if (thread < kWarp) {
      const Place place = place_of(bins, k - above);
      if (lane == 0) found = place;
    }
    __syncthreads();
    least |= static_cast<Key>(found.bin) << rest;
    above += found.above;
    candidates = above + static_cast<int>(bins[found.bin]);
    known += bits;
    __syncthreads();
  }

  own = warp_total(own);
  if (lane == 0) warps[thread / kWarp] = own;
  if (thread == 0) count = 0;
  int sorted = 1;
  while (sorted < candidates) sorted *= 2;
  for (int i = candidates + thread; i < sorted; i += kSelectThreads) keys[i] = 0;
  __syncthreads();
#pragma unroll 8
  for (int i = thread; i < width; i += kSelectThreads) {
    const Key key = key_of(row[i], i);
    if (key >= least) keys[atomicAdd(&count, 1u)] = key;
  }
  __syncthreads();
  sort(keys, sorted);

  std::int32_t* const tokens = out + static_cast<std::int64_t>(blockIdx.x) * (2 * k + 1);
  float* const values = reinterpret_cast<float*>(tokens + k);
  for (int i = thread; i < k; i += kSelectThreads) {
    tokens[i] = index_of(keys[i]);
    values[i] = row[index_of(keys[i])];
  }
  if (thread >= kWarp) return;
  const Exponentials all = warp_total(warps[lane]);
  if (lane > 0) return;
  values[k] = all.largest + logf(all.sum);
  if (!(all.sum > 0.0f)) tokens[0] = -1;
}

}  // namespace cuda

void CudaDevice::k_largest(const Tensor& x, std::int64_t k, Tensor& out) {
  if (listed(Operation::kKLargest, x, k, out)) return;
  cuda::launch("k_largest was started", stream(), cuda::blocks(x.dim(0)), cuda::kSelectThreads, 0,
               cuda::select_largest, x.data<float>(), static_cast<int>(x.dim(1)), static_cast<int>(k),
               out.data<std::int32_t>());
}

}  // namespace staircase
