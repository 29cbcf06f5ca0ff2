// Where the results of a product go, and how they are finished: bias, GELU, gate, residual, the position in
// the cache. Each kernel of linear.cu is compiled for each store.
#pragma once

#include "kernels/cuda/device_tensors.cuh"

namespace staircase::cuda {

/// gelu(x) = x/2 · (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/π) (x + 0.044715 x³). For a large
/// negative x the exponential is infinite and the result -0.
__device__ __forceinline__ float gelu(float x) {
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

/// gelu(x) = x/2 · (1 + erf(x / sqrt 2)) = x/2 · erfc(-x / sqrt 2). This form never cancels.
__device__ __forceinline__ float gelu_erf(float x) {
  return 0.5f * x * erfcf(-0.7071067812f * x);
}

/// silu(x) = x / (1 + exp(-x)). For a large negative x the exponential is infinite and the result -0.
__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}

// A store decides where results go and how they are finished. First bias_of(column) is added to a product;
// then of_row(row) receives the sums of one row. A bias may be loaded before the previous kernel has ended.

// If columns may be stored kNeighbours at a time, takes_neighbours() is true and the store also has
// put_neighbours(row, column, sums).

/// bias[column], or 0 without a bias.
__device__ __forceinline__ float bias_at(const float* bias, int column) {
  return bias == nullptr ? 0.0f : load_parameters<1>(bias + column).values[0];
}

constexpr int kNeighbours = 4;
using Neighbours = Vector<float, kNeighbours>;

/// sums + bias, from column `column` on.
__device__ __forceinline__ Neighbours with_bias(Neighbours sums, const float* bias, int column) {
  if (bias == nullptr) return sums;
  const Neighbours own = load_parameters<kNeighbours>(bias + column);
  for (int i = 0; i < kNeighbours; ++i) sums.values[i] += own.values[i];
  return sums;
}

/// Stores the results of `linear`.
struct StoreRow {
  const float* bias;  ///< [width], or null
  Epilogue epilogue;
  int width;
  DType stored;  ///< the type of `out`
  void* out;     ///< [rows, width]; float32 if the epilogue adds to it

  __device__ float bias_of(int column) const { return bias_at(bias, column); }

  /// The number that the epilogue adds to the result at `place`.
  __device__ float residual(std::int64_t place) const {
    return epilogue == Epilogue::kAdd ? static_cast<const float*>(out)[place] : 0.0f;
  }

  __device__ float finished(float value, float residual) const {
    if (epilogue == Epilogue::kGelu) value = gelu(value);
    if (epilogue == Epilogue::kGeluErf) value = gelu_erf(value);
    if (epilogue == Epilogue::kAdd) value += residual;
    return value;
  }

  __device__ void put(std::int64_t place, float value, float residual) const {
    store_as(stored, out, place, finished(value, residual));
  }

  bool takes_neighbours() const {
    return width % kNeighbours == 0 && is_aligned(bias, DType::kFloat32, kNeighbours) &&
           is_aligned(out, stored, kNeighbours);
  }
  __device__ void put_neighbours(int row, int column, const Neighbours& sums) const {
    const std::int64_t place = static_cast<std::int64_t>(row) * width + column;
    Neighbours values = with_bias(sums, bias, column), before{};
    if (epilogue == Epilogue::kAdd) before = load_vector<kNeighbours>(static_cast<const float*>(out) + place);
    for (int i = 0; i < kNeighbours; ++i) values.values[i] = finished(values.values[i], before.values[i]);
    store_vector_as(stored, out, place, values);
  }

  /// Takes the results of one row: (column, sum).
  __device__ auto of_row(int row) const {
    return [this, first = static_cast<std::int64_t>(row) * width](int column, float value) {
      put(first + column, value, residual(first + column));
    };
  }
};

/// Stores the results of a gated product. Pair p, counted from 0, consists of gate column gate_column(p) and
/// the column kGateColumns further on.
struct StoreGated {
  const float* bias;  ///< the bias of all columns, or null
  Epilogue epilogue;
  int width;     ///< the number of pairs; further ones only pad the last group of columns
  DType stored;  ///< the type of `out`
  void* out;     ///< [rows, width]

  __host__ __device__ static constexpr int gate_column(int pair) {
    constexpr int kColumns = static_cast<int>(kGateColumns);
    return pair / kColumns * 2 * kColumns + pair % kColumns;
  }

  __device__ float bias_of(int column) const { return bias_at(bias, column); }

  /// Takes the results of one row: (pair, its gate, the gated value).
  __device__ auto of_row(int row) const {
    return [this, first = static_cast<std::int64_t>(row) * width](int pair, float gate, float up) {
      store_as(stored, out, first + pair, (epilogue == Epilogue::kGeluGate ? gelu(gate) : silu(gate)) * up);
    };
  }
};

template <typename Store>
constexpr bool kTakesPairs = std::is_same_v<Store, StoreGated>;

/// Stores the results of `query_key_value`: a row is a token, and its columns are [q | k | v].
struct StoreQueryKeyValue {
  const float* bias;  ///< [3 width]
  Sequences sequences;
  int width, head_size;
  Blocks blocks;
  float* queries;       ///< [n_tokens, width]
  DType stored;         ///< the type of keys and values
  void *keys, *values;  ///< [n_blocks, n_kv_head, block_size, head_size]

  __device__ float bias_of(int column) const { return bias_at(bias, column); }

  bool takes_neighbours() const {
    return head_size % kNeighbours == 0 && is_aligned(bias, DType::kFloat32, kNeighbours) &&
           is_aligned(queries, DType::kFloat32, kNeighbours) && is_aligned(keys, stored, kNeighbours) &&
           is_aligned(values, stored, kNeighbours);
  }
  /// Stores neighbouring results, which all belong to one head of queries, keys or values.
  __device__ void put_neighbours(int row, int column, const Neighbours& sums) const {
    const Neighbours finished = with_bias(sums, bias, column);
    if (column < width) {
      store_vector_as(DType::kFloat32, queries, static_cast<std::int64_t>(row) * width + column, finished);
      return;
    }
    const bool is_key = column < 2 * width;
    const int feature = column - (is_key ? width : 2 * width), head = feature / head_size;
    const int sequence = sequences.of_token(row);
    const std::int64_t place =
        blocks.place(sequence, head, width / head_size, sequences.position(sequence, row)) * head_size;
    store_vector_as(stored, is_key ? keys : values, place + feature - head * head_size, finished);
  }

  /// Takes the results of one row: (column, sum).
  __device__ auto of_row(int row) const {
    const int sequence = sequences.of_token(row), n_head = width / head_size;
    const std::int64_t first = blocks.place(sequence, 0, n_head, sequences.position(sequence, row));
    return [this, row, first](int column, float value) {
      if (column < width) {
        queries[static_cast<std::int64_t>(row) * width + column] = value;
        return;
      }
      const bool is_key = column < 2 * width;
      const int feature = column - (is_key ? width : 2 * width), head = feature / head_size;
      const std::int64_t place = (first + std::int64_t{head} * blocks.size) * head_size;
      store_as(stored, is_key ? keys : values, place + feature - head * head_size, value);
    };
  }
};

}  // namespace staircase::cuda
