// What several kernels share on the device: vector loads, the 16-bit formats, sums over a warp or a block,
// and where a token of a batch belongs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/device.h"

/// The dynamic shared memory of a block, as many bytes as its launch asked for.
extern __shared__ float4 dynamic_shared_memory[];

namespace staircase::cuda {

// ── One kernel behind the other ──
//
// The end of a kernel and the start of the next cost about a microsecond, in which memory rests. From compute
// capability 9.0 on, a kernel may begin while the one before still runs, in the places that it leaves (CUDA
// Programming Guide, section "Programmatic Dependent Launch"); there it can ask for its weights, as CUTLASS's
// example 63 does. Where the GPU or its driver cannot do that, these functions do nothing.
//
// So that nothing else changes, every thread of every kernel waits before it touches what a kernel writes.
// Then a kernel ends after all that came before it. Weights, biases and norms are written by kernels too, but
// before `load` returns (it waits for the GPU): load_parameters may read them at once. Nor may such memory be
// read through `const __restrict__`: that promises that it is not written while the kernel runs, and the
// kernel runs while it waits.

/// The next kernel may begin once every block has called it.
__device__ __forceinline__ void let_next_begin() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Waits until the kernel before has ended, and what it wrote can be seen.
__device__ __forceinline__ void wait_for_previous() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// The first line of a kernel that has nothing to do before.
__device__ __forceinline__ void take_turn() {
  let_next_begin();
  wait_for_previous();
}

// ── Memory ──

/// kCount neighbouring elements, loaded and stored at once: up to 16 bytes, the most that one instruction
/// moves.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vector {
  T values[kCount];
};

/// `from` must be aligned to the size of the vector.
template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

// The emulation's race check sees the reads of functions that are compiled with it.
#if defined(__SANITIZE_THREAD__)
#define STAIRCASE_UNWATCHED __attribute__((noinline, no_sanitize("thread")))
#else
#define STAIRCASE_UNWATCHED __forceinline__
#endif

/// The same for what no kernel has written since it was loaded, which need not wait for the kernel before.
template <int kCount, typename T>
__device__ STAIRCASE_UNWATCHED Vector<T, kCount> load_parameters(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

/// Asks for `count` neighbouring elements to be brought to the L2 cache, and does not wait for them. A warp
/// calls it together.
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

/// Rounds to the nearest, of two equally near to the even one.
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

/// memory[place] = value, rounded to nearest even where the type is narrower. A branch that all threads take
/// alike, once a result: cheaper than a kernel of its own for every type.
__device__ __forceinline__ void store_as(DType dtype, void* memory, std::int64_t place, float value) {
  if (dtype == DType::kFloat16) {
    static_cast<__half*>(memory)[place] = narrow<__half>(value);
  } else if (dtype == DType::kBFloat16) {
    static_cast<__nv_bfloat16*>(memory)[place] = narrow<__nv_bfloat16>(value);
  } else {
    static_cast<float*>(memory)[place] = value;
  }
}

/// Calls use(data) with the pointer to the C++ type that stands for `dtype`: float, __half or __nv_bfloat16.
template <typename Use>
void with_type(DType dtype, void* data, const Use& use) {
  if (dtype == DType::kFloat16) {
    use(static_cast<__half*>(data));
  } else if (dtype == DType::kBFloat16) {
    use(static_cast<__nv_bfloat16*>(data));
  } else {
    use(static_cast<float*>(data));
  }
}

// ── Sums ──

// Lanes swap with partners at distance 16, 8, 4, 2, 1 (or from kLanes / 2 on, in groups of kLanes); then
// every lane has the result of all.
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

/// The sum over all threads of a block, for each of them. Every thread of the block must call it.
template <int kThreads>
__device__ float block_sum(float value) {
  __shared__ float warps[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();  // nobody still reads the sums of the last call
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

// ── Batches ──

/// The part of a Batch that kernels read: which tokens belong together.
struct Sequences {
  const std::int32_t* offsets;  ///< [count + 1]
  const std::int32_t* starts;   ///< [count]
  int count;

  explicit Sequences(const Batch& batch)
      : offsets(batch.offsets.data<std::int32_t>()),
        starts(batch.starts.data<std::int32_t>()),
        count(static_cast<int>(batch.n_sequences())) {}

  /// The sequence that owns a token: the last one that begins at it or before, which skips those without
  /// tokens.
  __device__ int of_token(int token) const {
    int first = 0, last = count - 1;
    while (first < last) {
      const int middle = (first + last + 1) / 2;
      if (offsets[middle] <= token) {
        first = middle;
      } else {
        last = middle - 1;
      }
    }
    return first;
  }

  __device__ int position(int sequence, int token) const {
    return starts[sequence] + token - offsets[sequence];
  }
};

/// Where keys and values lie, [n_blocks, n_kv_head, size, head_size] (KeysValues).
struct Blocks {
  const std::int32_t* table;  ///< [n_rows, most], or null: each row is one block
  int most;                   ///< blocks of a row
  int size;                   ///< positions of a block

  explicit Blocks(const KeysValues& keys_values)
      : table(keys_values.blocks.size() == 0 ? nullptr : keys_values.blocks.data<std::int32_t>()),
        most(table == nullptr ? 1 : static_cast<int>(keys_values.blocks.dim(1))),
        size(static_cast<int>(keys_values.keys.dim(2))) {}

  /// How many keys, or values, of head_size elements lie before that of a row, a head and a position.
  __device__ std::int64_t place(int row, int kv_head, int n_kv_head, int position) const {
    std::int64_t block = row;
    if (table != nullptr) {
      block = table[row * most + position / size];
      position %= size;
    }
    return (block * n_kv_head + kv_head) * size + position;
  }

  /// Positions that a row has room for.
  std::int64_t capacity() const { return std::int64_t{most} * size; }
};

}  // namespace staircase::cuda
