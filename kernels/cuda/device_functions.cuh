// Functions that several kernels share: vector loads, the 16-bit formats, and sums over a warp or a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/launch.h"

#ifndef __CUDACC__
#include <ptx_instructions.h>  // the emulation's
#endif

/// The dynamic shared memory of a block; its launch sets the size.
extern __shared__ float4 dynamic_shared_memory[];

namespace staircase::cuda {

// ── Overlapping kernels ──
//
// Between the end of one kernel and the start of the next, memory is idle for about a microsecond. From
// compute capability 9.0 on, a kernel may begin while the previous one still runs, on multiprocessors that
// are free (CUDA Programming Guide, section "Programmatic Dependent Launch"). It can then already request its
// weights, as CUTLASS's example 63 does. If the GPU or its driver lacks this ability, the functions below do
// nothing.
//
// To keep results correct, every thread of every kernel waits before it touches memory that a kernel writes.
// Then a kernel ends only after all earlier ones. Kernels also write the weights, biases and norms, but
// `load` waits for that, so load_parameters may read them at once. Never point a `const __restrict__` at
// memory that a kernel writes. It promises that nothing writes this memory while the kernel runs, and a
// kernel that waits is already running.

/// Lets the next kernel begin, once every block has called this.
__device__ __forceinline__ void let_next_begin() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Waits until the previous kernel has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// A kernel calls this first if it has nothing to do before it waits.
__device__ __forceinline__ void begin_after_previous() {
  let_next_begin();
  wait_for_previous();
}

// ── Memory ──

/// kCount neighbouring elements, loaded and stored together. One instruction moves at most 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vector {
  T values[kCount];
};

/// Loads kCount neighbouring elements. `from` must be aligned to the size of the vector.
template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

/// Loads kCount neighbouring floats that no kernel writes once the model is loaded. That need not wait for
/// the previous kernel, and the read-only cache may hold them (CUDA C++ Programming Guide, "Read-Only Data
/// Cache Load Function").
template <int kCount>
__device__ __forceinline__ Vector<float, kCount> load_parameters(const float* from) {
  constexpr int kAtOnce = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
  using Bits = std::conditional_t<kAtOnce == 4, float4, std::conditional_t<kAtOnce == 2, float2, float>>;
  Vector<float, kCount> result;
  for (int i = 0; i < kCount; i += kAtOnce) {
    *reinterpret_cast<Bits*>(result.values + i) = __ldg(reinterpret_cast<const Bits*>(from + i));
  }
  return result;
}

#ifdef __CUDACC__
/// Loads 16 bytes that no kernel writes once the model is loaded, without filling the L1 cache. It is named
/// after its instruction in the PTX ISA. The compiler does not move it, so it may precede wait_for_previous.
__device__ __forceinline__ void ld_global_nc_no_allocate(unsigned (&to)[4], const void* from) {
#if __CUDA_ARCH__ >= 700
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
#else
  const uint4 words = __ldg(static_cast<const uint4*>(from));
  to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
#endif
}
#endif

/// Whether kernels may begin before the previous one has ended, and memory can be prefetched in bulk.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kBeginsEarly = true;
#else
constexpr bool kBeginsEarly = false;
#endif

#ifdef __CUDACC__
/// Prefetches `bytes` bytes into the L2 cache, without waiting. The address and the size must be multiples of
/// 16. No value is read, so this need not wait for the previous kernel, whatever that kernel writes.
__device__ __forceinline__ void prefetch_in_bulk(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

/// Loads a number that the previous kernel may be writing: the result is the old number or the new one. Use
/// it only for a guess that cannot affect any result. It bypasses the L1 cache, which would keep the old
/// number.
__device__ __forceinline__ int load_guess(const std::int32_t* from) {
  int number;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(number) : "l"(from));
  return number;
}
#endif

/// (word & mask) | bits in one instruction. If both are constants, the compiler would emit two.
__device__ __forceinline__ unsigned and_or(unsigned word, unsigned mask, unsigned bits) {
#ifdef __CUDA_ARCH__
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
#else
  return (word & mask) | bits;
#endif
}

/// Prefetches `count` neighbouring elements into the L2 cache, without waiting. All lanes of a warp must call
/// this together.
template <typename T>
__device__ __forceinline__ void prefetch([[maybe_unused]] const T* first, [[maybe_unused]] int count) {
#ifdef __CUDA_ARCH__
  constexpr int kLine = 128 / sizeof(T);
  for (int i = static_cast<int>(threadIdx.x) % kWarp * kLine; i < count; i += kWarp * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(first + i));
  }
#endif
}

__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ float widen(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float widen(std::int8_t x) {
  return static_cast<float>(x);
}

/// Rounds to the nearest value, ties to even.
template <typename Stored>
__device__ __forceinline__ Stored narrow(float x) {
  if constexpr (std::is_same_v<Stored, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<Stored, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// ── Sums ──

// Lanes exchange values with partners at distance 16, 8, 4, 2 and 1 (or from kLanes / 2 on, in groups of
// kLanes). Then every lane has the result.
template <int kLanes = kWarp>
__device__ __forceinline__ float warp_sum(float value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

template <int kLanes = kWarp>
__device__ __forceinline__ float warp_max(float value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

/// The sum over all threads of a block, returned to each of them. Every thread of the block must call it.
template <int kThreads>
__device__ float block_sum(float value) {
  __shared__ float warps[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();  // no thread reads the last call's sums any more
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < kThreads / kWarp; ++w) sum += warps[w];
  return sum;
}

template <int kThreads>
__device__ float block_max(float value) {
  __shared__ float warps[kThreads / kWarp];
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float largest = warps[0];
  for (int w = 1; w < kThreads / kWarp; ++w) largest = fmaxf(largest, warps[w]);
  return largest;
}

/// A number of a row, and its index in the row.
struct Found {
  float value;
  int index;
};

/// The one with the larger value or, if both are equal, with the lower index.
__device__ __forceinline__ Found larger(Found a, Found b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

/// The `larger` of all lanes of a warp, returned to every lane.
__device__ __forceinline__ Found warp_largest(Found own) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    own = larger(own, {__shfl_xor_sync(kAllLanes, own.value, distance),
                       __shfl_xor_sync(kAllLanes, own.index, distance)});
  }
  return own;
}

}  // namespace staircase::cuda
