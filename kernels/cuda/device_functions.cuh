// Functions that several kernels share: vector loads, the 16-bit formats, sums over a warp or a block, and
// the sequence of a token.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/device.h"

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

/// memory[place] = value, rounded to nearest even if the type is narrower. All threads take the same branch,
/// once per result, which is cheaper than a separate kernel for every type.
__device__ __forceinline__ void store_as(DType dtype, void* memory, std::int64_t place, float value) {
  if (dtype == DType::kFloat16) {
    static_cast<__half*>(memory)[place] = narrow<__half>(value);
  } else if (dtype == DType::kBFloat16) {
    static_cast<__nv_bfloat16*>(memory)[place] = narrow<__nv_bfloat16>(value);
  } else {
    static_cast<float*>(memory)[place] = value;
  }
}

/// Stores kCount neighbouring values from memory[place] on in one instruction, rounded if the type is
/// narrower. The address must be aligned to the size of the whole store.
template <int kCount>
__device__ __forceinline__ void store_vector_as(DType dtype, void* memory, std::int64_t place,
                                                const Vector<float, kCount>& values) {
  const auto put = [&]<typename Stored>(Stored* to) {
    Vector<Stored, kCount> rounded;
    for (int i = 0; i < kCount; ++i) rounded.values[i] = narrow<Stored>(values.values[i]);
    *reinterpret_cast<Vector<Stored, kCount>*>(to + place) = rounded;
  };
  if (dtype == DType::kFloat16) {
    put(static_cast<__half*>(memory));
  } else if (dtype == DType::kBFloat16) {
    put(static_cast<__nv_bfloat16*>(memory));
  } else {
    put(static_cast<float*>(memory));
  }
}

/// Whether `memory` is aligned for loads and stores of `count` neighbouring elements of this type.
inline bool is_aligned(const void* memory, DType dtype, int count) {
  return reinterpret_cast<std::uintptr_t>(memory) % (size_of(dtype) * static_cast<std::size_t>(count)) == 0;
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

  // Call these with kGuesses before the wait for the previous kernel, which may be writing the numbers.

  template <bool kGuesses>
  static __device__ int number(const std::int32_t* from) {
    if constexpr (kGuesses) return load_guess(from);
    return *from;
  }

  /// The sequence of a token: the last one that begins at or before it. This rule skips sequences without
  /// tokens.
  template <bool kGuesses = false>
  __device__ int of_token(int token) const {
    int first = 0, last = count - 1;
    while (first < last) {
      const int middle = (first + last + 1) / 2;
      if (number<kGuesses>(offsets + middle) <= token) {
        first = middle;
      } else {
        last = middle - 1;
      }
    }
    return first;
  }

  template <bool kGuesses = false>
  __device__ int position(int sequence, int token) const {
    return number<kGuesses>(starts + sequence) + token - number<kGuesses>(offsets + sequence);
  }
};

/// Where keys and values are stored, [n_blocks, n_kv_head, size, head_size] (KeysValues).
struct Blocks {
  const std::int32_t* table;  ///< [n_rows, most], or null: each row is one block
  int most;                   ///< the maximum number of blocks of a row
  int size;                   ///< positions per block
  int count;                  ///< the number of all blocks

  explicit Blocks(const KeysValues& keys_values)
      : table(keys_values.blocks.size() == 0 ? nullptr : keys_values.blocks.data<std::int32_t>()),
        most(table == nullptr ? 1 : static_cast<int>(keys_values.blocks.dim(1))),
        size(static_cast<int>(keys_values.keys.dim(2))),
        count(static_cast<int>(keys_values.keys.dim(0))) {}

  /// The index of the key or value of a row, a head and a position, in units of head_size elements. Call it
  /// with kGuesses before the wait for the previous kernel; it then returns -1 if the block's number is
  /// impossible.
  template <bool kGuesses = false>
  __device__ std::int64_t place(int row, int kv_head, int n_kv_head, int position) const {
    std::int64_t block = row;
    if (table != nullptr) {
      block = Sequences::number<kGuesses>(table + row * most + position / size);
      position %= size;
    }
    if (kGuesses && (block < 0 || block >= count)) return -1;
    return (block * n_kv_head + kv_head) * size + position;
  }

  /// The number of positions that fit into a row.
  std::int64_t capacity() const { return std::int64_t{most} * size; }
};

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
