// What kernels read of the tensors in device.h: results of any data type, the sequences of a batch, and the
// blocks of a cache.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cuda/device_functions.cuh"
#include "kernels/device.h"

namespace staircase::cuda {

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

/// Divides by a number that only the host knows at first. A GPU has no instruction for that; a division takes
/// some twenty, and attention would do one for each key. Instead, it multiplies by m = 2^shift / by, rounded
/// up, and shifts (Granlund and Montgomery 1994, *Division by invariant integers using multiplication*).
class Divisor {
 public:
  explicit Divisor(int by)
      : shift_(31 + std::bit_width(static_cast<unsigned>(by) - 1)),
        multiplier_(static_cast<unsigned>((std::uint64_t{1} << shift_) / static_cast<unsigned>(by) + 1)) {}

  /// number / by, for numbers from 0 on.
  __device__ int quotient(int number) const {
    return static_cast<int>(std::uint64_t{static_cast<unsigned>(number)} * multiplier_ >> shift_);
  }

 private:
  int shift_;
  unsigned multiplier_;  // below 2^32, since by is more than half of 2^(shift - 31)
};

/// Where keys and values are stored, [n_blocks, n_kv_head, size, head_size] (KeysValues).
struct Blocks {
  const std::int32_t* table;  ///< [n_rows, most], or null: each row is one block
  int most;                   ///< the maximum number of blocks of a row
  int size;                   ///< positions per block
  int count;                  ///< the number of all blocks
  Divisor by_size;

  explicit Blocks(const KeysValues& keys_values)
      : table(keys_values.blocks.size() == 0 ? nullptr : keys_values.blocks.data<std::int32_t>()),
        most(table == nullptr ? 1 : static_cast<int>(keys_values.blocks.dim(1))),
        size(static_cast<int>(keys_values.keys.dim(2))),
        count(static_cast<int>(keys_values.keys.dim(0))),
        by_size(std::max(size, 1)) {}

  /// The index of the key or value of a row, a head and a position, in units of head_size elements. Call it
  /// with kGuesses before the wait for the previous kernel; it then returns -1 if the block's number is
  /// impossible.
  template <bool kGuesses = false>
  __device__ std::int64_t place(int row, int kv_head, int n_kv_head, int position) const {
    std::int64_t block = row;
    if (table != nullptr) {
      const int number = by_size.quotient(position);
      block = Sequences::number<kGuesses>(table + row * most + number);
      position -= number * size;
    }
    if (kGuesses && (block < 0 || block >= count)) return -1;
    return (block * n_kv_head + kv_head) * size + position;
  }

  /// The number of positions that fit into a row.
  std::int64_t capacity() const { return std::int64_t{most} * size; }
};

}  // namespace staircase::cuda
