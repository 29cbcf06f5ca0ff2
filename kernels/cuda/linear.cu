// linear and query_key_value: out = epilogue(norm(x) W + b).
//
// x [rows, in], W as [out, in], out [rows, out]. 2 · rows · in · out operations. The weights are read once: 4
// · in · out bytes, or half of that in 16 bits, about a quarter in 8 and a seventh in 4.
//
// A few rows (decoding, or verifying a handful of drafts) are limited by the bandwidth at which the weights
// come from memory. Our own kernel computes them: each warp reads the weights of one output, or of a few,
// from front to back, 16 bytes a lane. It widens weights of 16 bits and less in registers, so all arithmetic
// is in float32. The epilogue (bias, GELU, residual, the position in the cache) costs nothing there. Nor does
// the norm of up to four rows: every block computes it in shared memory while its weights are on their way to
// the L2 cache. The columns of a gated product alternate, and a warp takes pairs of them: some columns of the
// gate and the columns that they gate.
//
// The values of x are floats, whatever the type of the weights, and come from the L1 cache or shared memory.
// 16 bytes of 4-bit weights of one output would need 128 bytes of x. So a lane takes at most eight inputs at
// a time, but of two outputs in 8 bits and of four in 4. Then it reads 16 bytes of weights per 32 bytes of x,
// as it does in 16 bits.
//
// Many rows (prefill) are limited by arithmetic. cuBLAS multiplies them, and adds the bias and the residual
// before it stores its results. A small kernel, limited by bandwidth, does the rest: GELU, the gate, rounding
// to 16 bits, and moving keys and values to the cache. The tensor cores that cuBLAS uses take two matrices of
// one type. So with 16-bit weights, x is first rounded to their type, unless it was stored in it; the sums
// are in float32. Weights in 8 and 4 bits are first widened to 16, which writes and reads each once more. So
// they may be slower than 16-bit weights from nine rows up to the point where arithmetic is the limit.
#include <algorithm>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/weights.cuh"

namespace staircase {
namespace cuda {

constexpr int kLinearThreads = kNormThreads;
constexpr int kFewRows = 8;
constexpr std::int64_t kManyOutputs = 2048;

// More rows, or longer ones, would take shared memory from other blocks.
constexpr std::int64_t kNormalizedRows = 4;
constexpr std::int64_t kNormalizedFloats = 8192;

/// How many neighbouring inputs a lane takes at a time, by the size of a weight's element.
constexpr int inputs_at_once(std::size_t element_bytes) {
  return element_bytes == sizeof(float) ? 4 : 8;
}

/// The most memory for weights that are widened at a time. No matrix of a block of gpt2-xl exceeds it, so
/// only output layers are split into pieces.
constexpr std::int64_t kWidenedBytes = std::int64_t{32} << 20;

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

// A store decides where results go and how they are finished. bias_of(column) is added to a product first;
// of_row(row) takes the sums of one row. A bias may be loaded before the previous kernel has ended.

/// bias[column], or 0 without a bias.
__device__ __forceinline__ float bias_at(const float* bias, int column) {
  return bias == nullptr ? 0.0f : load_parameters<1>(bias + column).values[0];
}

/// Stores the results of `linear`.
struct StoreRow {
  const float* bias;  ///< [width], or null
  Epilogue epilogue;
  int width;
  DType stored;  ///< the type of `out`
  void* out;     ///< [rows, width]; float32 if the epilogue adds to it

  __device__ float bias_of(int column) const { return bias_at(bias, column); }

  /// Takes the results of one row: (column, sum).
  __device__ auto of_row(int row) const {
    return [this, first = static_cast<std::int64_t>(row) * width](int column, float value) {
      if (epilogue == Epilogue::kGelu) value = gelu(value);
      if (epilogue == Epilogue::kGeluErf) value = gelu_erf(value);
      if (epilogue == Epilogue::kAdd) value += static_cast<const float*>(out)[first + column];
      store_as(stored, out, first + column, value);
    };
  }
};

/// Stores the results of a gated product. Pair p, counted from 0, consists of gate column gate_column(p) and
/// the column kGateColumns further on.
struct StoreGated {
  const float* bias;  ///< of all columns, or null
  int width;          ///< the number of pairs; further ones only pad the last group of columns
  DType stored;       ///< the type of `out`
  void* out;          ///< [rows, width]

  __host__ __device__ static constexpr int gate_column(int pair) {
    constexpr int kColumns = static_cast<int>(kGateColumns);
    return pair / kColumns * 2 * kColumns + pair % kColumns;
  }

  __device__ float bias_of(int column) const { return bias_at(bias, column); }

  /// Takes the results of one row: (pair, its gate, the gated value).
  __device__ auto of_row(int row) const {
    return [this, first = static_cast<std::int64_t>(row) * width](int pair, float gate, float up) {
      store_as(stored, out, first + pair, silu(gate) * up);
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
  void *keys, *values;  ///< [n_blocks, n_head, block_size, head_size]

  __device__ float bias_of(int column) const { return bias_at(bias, column); }

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

/// Waits for the previous kernel, then computes norm(x) [rows, in] in the block's shared memory. Every thread
/// of the block must call it.
__device__ __forceinline__ const float* normalize_in_block(const float* x, const RowNorm& norm, int rows,
                                                           int in) {
  float* const normed = reinterpret_cast<float*>(dynamic_shared_memory);
  const BlockNorm<4> block_norm(norm, in);
  wait_for_previous();
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    block_norm.normalize(x + static_cast<std::int64_t>(r) * in, normed + r * in);
  }
  __syncthreads();
  return normed;
}

/// Up to kRows rows, normalized or not, times the weights of kOutputs outputs per warp. A lane takes kVector
/// neighbouring inputs at a time. `in` must be a multiple of kVector; with a norm, of 4 as well. Every result
/// is summed in the same order, whatever the number of rows. For a gated product, a warp has kOutputs / 2
/// columns of the gate, then the columns that they gate.
template <int kRows, int kOutputs, int kVector, bool kNormalize, typename Stored, typename Store>
__global__ __launch_bounds__(kLinearThreads) void multiply_few_rows(const float* x, RowNorm norm,
                                                                    WeightRows<Stored> weight, int rows,
                                                                    int in, int out, Store store) {
  static_assert(kRows * kOutputs <= kWarp && (!kTakesPairs<Store> || kOutputs % 2 == 0));
  constexpr bool kScaled = Format<Stored>::kScaled;
  constexpr int kElements = divide_up(kVector, Format<Stored>::kInElement);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>((blockIdx.x * kLinearThreads + threadIdx.x) / kWarp) * kOutputs;

  // Rows and outputs past the end repeat the last one, to avoid a branch in the innermost loop.
  WeightRow<Stored> weights[kOutputs];
  for (int o = 0; o < kOutputs; ++o) {
    if constexpr (kTakesPairs<Store>) {
      constexpr int kPairs = kOutputs / 2;
      const int pair = min(first / 2 + o % kPairs, store.width - 1);
      weights[o] = weight[StoreGated::gate_column(pair) + o / kPairs * kGateColumns];
    } else {
      weights[o] = weight[min(first + o, out - 1)];
    }
  }
  let_next_begin();
  for (int o = 0; o < kOutputs; ++o) {
    prefetch(weights[o].values, static_cast<int>(weight.elements));
    if constexpr (kScaled) prefetch(weights[o].scales, static_cast<int>(weight.groups));
  }
  // One lane per result, so all results of the warp are finished at once.
  const int row = lane / kOutputs, output = lane % kOutputs;
  constexpr int kPairs = kOutputs / 2;
  const int column = kTakesPairs<Store> ? first / 2 + output : first + output;
  const bool has_result = row < min(rows, kRows) && output < (kTakesPairs<Store> ? kPairs : kOutputs) &&
                          column < (kTakesPairs<Store> ? store.width : out);
  float bias = 0.0f;
  [[maybe_unused]] float other_bias = 0.0f;
  if (has_result) {
    if constexpr (kTakesPairs<Store>) {
      bias = store.bias_of(StoreGated::gate_column(column));
      other_bias = store.bias_of(StoreGated::gate_column(column) + kGateColumns);
    } else {
      bias = store.bias_of(column);
    }
  }
  if constexpr (kNormalize) {
    x = normalize_in_block(x, norm, rows, in);
  } else {
    wait_for_previous();
  }
  if (first >= out) return;
  const float* x_rows[kRows];
  for (int r = 0; r < kRows; ++r) x_rows[r] = x + static_cast<std::int64_t>(min(r, rows - 1)) * in;

  float sums[kRows][kOutputs] = {};
  // Unrolled, so that up to 64 bytes of weights are in flight before the first result is needed. With many
  // rows and outputs, the arithmetic on one vector takes long enough by itself.
  constexpr int kBytes = kOutputs * kElements * static_cast<int>(sizeof(Stored));
  [[maybe_unused]] constexpr int kUnrolled = kRows * kOutputs > 16 ? 1 : 64 / (kBytes < 16 ? 16 : kBytes);
#pragma unroll(kUnrolled)
  for (int i = lane * kVector; i < in; i += kWarp * kVector) {
    Vector<Stored, kElements> w[kOutputs];
    float scales[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      w[o] = weights[o].template load<kVector>(i);
      scales[o] = weights[o].scale(i);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Vector<float, kVector> values = load_vector<kVector>(x_rows[r] + i);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        float sum = kScaled ? 0.0f : sums[r][o];
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum += values.values[v] * weight_of(w[o], v);
        sums[r][o] = kScaled ? sums[r][o] + sum * scales[o] : sum;
      }
    }
  }
  float own_sum = 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const float sum = warp_sum(sums[r][o]);
      if (lane == r * kOutputs + o) own_sum = sum;
    }
  }
  if constexpr (kTakesPairs<Store>) {
    const float gated = __shfl_down_sync(kAllLanes, own_sum, kPairs);
    if (has_result) store.of_row(row)(column, own_sum + bias, gated + other_bias);
  } else {
    if (has_result) store.of_row(row)(column, own_sum + bias);
  }
}

/// to[o, i] = the weight of input i and output first + o, rounded. to [outputs, in]. A thread takes kVector
/// neighbouring inputs, and `in` must be a multiple of kVector.
template <int kVector, typename Stored, typename To>
__global__ __launch_bounds__(kLinearThreads) void widen_weights(WeightRows<Stored> weight, int first, int in,
                                                                To* to) {
  begin_after_previous();
  const int i = static_cast<int>(blockIdx.y * kLinearThreads + threadIdx.x) * kVector;
  if (i >= in) return;
  const WeightRow<Stored> row = weight[first + static_cast<int>(blockIdx.x)];
  const auto whole = row.template load<kVector>(i);
  const float scale = row.scale(i);
  Vector<To, kVector> wide;
  for (int v = 0; v < kVector; ++v) wide.values[v] = narrow<To>(weight_of(whole, v) * scale);
  *reinterpret_cast<Vector<To, kVector>*>(to + static_cast<std::int64_t>(blockIdx.x) * in + i) = wide;
}

/// Results per thread: their products are in flight together.
constexpr int kFinishedAtOnce = 4;

/// Finishes the products of cuBLAS, [row, column]: adds the bias and passes them to the store, one by one or
/// in pairs. products [rows, width] may be the memory that `store` writes to, unless it takes pairs.
template <typename Store>
__global__ __launch_bounds__(kLinearThreads) void finish(const float* products, int width, Store store) {
  begin_after_previous();
  const int row = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y * kFinishedAtOnce * kLinearThreads + threadIdx.x);
  const int results = kTakesPairs<Store> ? store.width : width;
  products += static_cast<std::int64_t>(row) * width;
  const auto row_store = store.of_row(row);
  float own[kFinishedAtOnce];
  [[maybe_unused]] float other[kFinishedAtOnce];
#pragma unroll
  for (int i = 0; i < kFinishedAtOnce; ++i) {
    const int column = first + i * kLinearThreads;
    if (column >= results) break;
    if constexpr (kTakesPairs<Store>) {
      const int gate = StoreGated::gate_column(column);
      own[i] = products[gate] + store.bias_of(gate);
      other[i] = products[gate + kGateColumns] + store.bias_of(gate + kGateColumns);
    } else {
      own[i] = products[column] + store.bias_of(column);
    }
  }
#pragma unroll
  for (int i = 0; i < kFinishedAtOnce; ++i) {
    const int column = first + i * kLinearThreads;
    if (column >= results) break;
    if constexpr (kTakesPairs<Store>) {
      row_store(column, own[i], other[i]);
    } else {
      row_store(column, own[i]);
    }
  }
}

template <int kRows, int kOutputs, int kVector, bool kNormalize, typename Stored, typename Store>
void launch_few_rows(const Tensor& x, const Norm& norm, const Weight& weight,
                     const WeightRows<Stored>& weights, const Store& store, Stream stream) {
  const std::int64_t outputs_per_block = kLinearThreads / kWarp * kOutputs;
  launch("linear was started", stream, blocks(divide_up(weight.out_features, outputs_per_block)),
         kLinearThreads, kNormalize ? x.bytes() : 0,
         multiply_few_rows<kRows, kOutputs, kVector, kNormalize, Stored, Store>, x.data<float>(),
         RowNorm(norm), weights, static_cast<int>(x.dim(0)), static_cast<int>(weight.in_features),
         static_cast<int>(weight.out_features), store);
}

/// Whether the norm of these rows can be computed inside their product.
bool normalizes(const Tensor& x, const Weight& weight) {
  return x.dim(0) <= kNormalizedRows && x.size() <= kNormalizedFloats &&
         weight.in_features % inputs_at_once(size_of(weight.packed.dtype())) == 0;
}

/// norm(x) W or x W for 1 to kFewRows rows. With more rows, a warp takes more outputs, so it uses each value
/// of x more often: it reads x from the cache again and again.
template <bool kNormalize, typename Store>
void few_rows(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store, Stream stream) {
  with_rows(weight, [&]<typename Stored>(const WeightRows<Stored>& weights) {
    constexpr int kVector = inputs_at_once(sizeof(Stored));
    constexpr int kLeast = kTakesPairs<Store> ? 2 : 1;
    constexpr int kOutputs =
        std::max(128 / (kVector * Format<Stored>::kBits), kLeast);  // 16 bytes of weights
    const std::int64_t rows = x.dim(0);
    if constexpr (!kNormalize) {
      if (weight.in_features % kVector != 0) {  // rows of W or of x are not aligned
        launch_few_rows<8, kLeast, 1, kNormalize>(x, norm, weight, weights, store, stream);
        return;
      }
      if (rows > 4) {
        // Few outputs would leave multiprocessors without a block.
        if (weight.out_features < kManyOutputs) {
          launch_few_rows<8, kLeast, kVector, kNormalize>(x, norm, weight, weights, store, stream);
        } else {
          launch_few_rows<8, 4, kVector, kNormalize>(x, norm, weight, weights, store, stream);
        }
        return;
      }
    }
    if (rows <= 1) {
      launch_few_rows<1, kOutputs, kVector, kNormalize>(x, norm, weight, weights, store, stream);
    } else if (rows <= 2) {
      launch_few_rows<2, kOutputs, kVector, kNormalize>(x, norm, weight, weights, store, stream);
    } else {
      launch_few_rows<4, std::min(2 * kOutputs, 4), kVector, kNormalize>(x, norm, weight, weights, store,
                                                                         stream);
    }
  });
}

template <typename Stored, typename To>
void launch_widen(const WeightRows<Stored>& weights, std::int64_t in, std::int64_t first,
                  std::int64_t outputs, To* to, Stream stream) {
  constexpr int kVector = 16 / sizeof(To);  // 16 bytes
  const std::int64_t vector = in % kVector == 0 ? kVector : 1;
  const dim3 grid(blocks(outputs), blocks(divide_up(in, kLinearThreads * vector)));
  launch("weights were widened", stream, grid, kLinearThreads, 0,
         vector == 1 ? widen_weights<1, Stored, To> : widen_weights<kVector, Stored, To>, weights,
         static_cast<int>(first), static_cast<int>(in), to);
}

/// to[o, i] = the weight of input i and output first + o, rounded to `dtype`, where weights share scales.
void widen_outputs(const Weight& weight, std::int64_t first, std::int64_t outputs, DType dtype, void* to,
                   Stream stream) {
  with_rows(weight, [&]<typename Stored>(const WeightRows<Stored>& weights) {
    if constexpr (Format<Stored>::kScaled) {
      with_type(dtype, to,
                [&](auto* wide) { launch_widen(weights, weight.in_features, first, outputs, wide, stream); });
    }
  });
}

template <typename Store>
void launch_finish(const float* products, std::int64_t rows, std::int64_t width, const Store& store,
                   Stream stream) {
  const std::int64_t results = kTakesPairs<Store> ? std::int64_t{store.width} : width;
  const dim3 grid(blocks(rows), blocks(divide_up<std::int64_t>(results, kFinishedAtOnce * kLinearThreads)));
  launch("linear was finished", stream, grid, kLinearThreads, 0, finish<Store>, products,
         static_cast<int>(width), store);
}

}  // namespace cuda

DType CudaDevice::operand_dtype(std::int64_t rows, DType weights) const {
  if (rows <= cuda::kFewRows) return DType::kFloat32;
  if (in_groups(weights)) return has_bfloat16_ ? DType::kBFloat16 : DType::kFloat16;
  return weights;
}

Tensor CudaDevice::as_operand(const Tensor& x, const Norm& norm, DType dtype) {
  const bool has_norm = norm.kind != NormKind::kNone;
  if (!has_norm && dtype == x.dtype()) return x;
  const std::int64_t bytes = x.size() * static_cast<std::int64_t>(size_of(dtype));
  float* const memory = grown(operand_, cuda::divide_up<std::int64_t>(bytes, sizeof(float)));
  cuda::with_type(dtype, memory, [&](auto* operand) {
    if (has_norm) {
      cuda::launch_normalize(x, norm, operand, stream());
    } else {
      cuda::with_type(x.dtype(), x.data<void>(),
                      [&](const auto* rows) { cuda::launch_convert(rows, x.size(), operand, stream()); });
    }
  });
  return Tensor(dtype, x.shape(), std::shared_ptr<void>(memory, [](void*) {}));  // the device owns it
}

template <typename Store>
void CudaDevice::few_rows(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store) {
  if (norm.kind != NormKind::kNone && cuda::normalizes(x, weight)) {
    cuda::few_rows<true>(x, norm, weight, store, stream());
  } else {
    cuda::few_rows<false>(as_operand(x, norm, DType::kFloat32), {}, weight, store, stream());
  }
}

bool CudaDevice::many_rows(const Tensor& x, const Weight& weight, const Tensor& bias, float keep,
                           float* out) {
  const std::int64_t in = weight.in_features, width = weight.out_features;
  if (!in_groups(weight.packed.dtype())) {
    return cublas_->multiply(x, weight, bias, keep, out, width, stream());
  }
  const auto row_bytes = in * static_cast<std::int64_t>(size_of(x.dtype()));
  const std::int64_t at_once = std::clamp<std::int64_t>(cuda::kWidenedBytes / row_bytes, 1, width);
  if (bias.size() > 0 && at_once < width) return false;  // else cuBLASLt might refuse a later piece
  float* const memory = grown(widened_, cuda::divide_up<std::int64_t>(at_once * row_bytes, sizeof(float)));
  bool multiplied = true;
  for (std::int64_t first = 0; first < width; first += at_once) {
    const std::int64_t outputs = std::min(at_once, width - first);
    cuda::widen_outputs(weight, first, outputs, x.dtype(), memory, stream());
    const Weight piece{widened_.viewed_as(x.dtype(), {outputs, in}), in, outputs};
    multiplied = cublas_->multiply(x, piece, bias, keep, out + first, width, stream());
  }
  return multiplied;
}

template <typename Store>
void CudaDevice::multiply(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store) {
  const std::int64_t rows = x.dim(0), width = weight.out_features;
  if (rows <= cuda::kFewRows) {
    few_rows(x, norm, weight, store);
    return;
  }
  float* const products = scratch(rows * width);
  many_rows(as_operand(x, norm, operand_dtype(rows, weight.packed.dtype())), weight, {}, 0.0f, products);
  cuda::launch_finish(products, rows, width, store, stream());
}

void CudaDevice::linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias,
                        Epilogue epilogue, Tensor& out) {
  if (listed(Operation::kLinear, x, norm, weight, bias, epilogue, out)) return;
  const std::int64_t rows = x.dim(0), width = weight.out_features;
  if (rows == 0) return;
  if (epilogue == Epilogue::kSiluGate) {
    const cuda::StoreGated store{bias.data<float>(), static_cast<int>(out.dim(1)), out.dtype(),
                                 out.data<void>()};
    multiply(x, norm, weight, store);
    return;
  }
  cuda::StoreRow store{bias.data<float>(), epilogue, static_cast<int>(width), out.dtype(), out.data<void>()};
  if (rows <= cuda::kFewRows) {
    few_rows(x, norm, weight, store);
    return;
  }
  const Tensor operand = as_operand(x, norm, operand_dtype(rows, weight.packed.dtype()));
  const float keep = epilogue == Epilogue::kAdd ? 1.0f : 0.0f;
  // cuBLAS requires a bias of the result's type; ours are float32.
  const bool in_place = out.dtype() == DType::kFloat32;
  const bool has_gelu = epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluErf;
  if (in_place && !has_gelu && many_rows(operand, weight, bias, keep, out.data<float>())) return;
  float* const products = in_place ? out.data<float>() : scratch(rows * width);
  many_rows(operand, weight, {}, keep, products);
  if (epilogue == Epilogue::kAdd) store.epilogue = Epilogue::kStore;  // cuBLAS has added already
  cuda::launch_finish(products, rows, width, store, stream());
}

void CudaDevice::query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                                 const Tensor& bias, Tensor& queries, KeysValues& keys_values) {
  if (listed(Operation::kQueryKeyValue, batch, x, norm, weight, bias, queries, keys_values)) return;
  if (x.dim(0) == 0) return;
  const std::int64_t width = weight.out_features / 3;
  const cuda::StoreQueryKeyValue store{bias.data<float>(),
                                       cuda::Sequences(batch),
                                       static_cast<int>(width),
                                       static_cast<int>(keys_values.keys.dim(3)),
                                       cuda::Blocks(keys_values),
                                       queries.data<float>(),
                                       keys_values.keys.dtype(),
                                       keys_values.keys.data<void>(),
                                       keys_values.values.data<void>()};
  multiply(x, norm, weight, store);
}

}  // namespace staircase
