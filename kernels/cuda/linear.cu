// linear and query_key_value: out = epilogue(norm(x) W + b).
//
// x [rows, in], W as [out, in], out [rows, out]. The product takes 2 · rows · in · out operations. The
// weights are read once: 4 · in · out bytes, or half of that in 16 bits, about a quarter in 8 bits and a
// seventh in 4 bits.
//
// One row (decoding) has its own kernel (matvec.cuh). It accepts up to 28,672 inputs, in float32 up to
// 16,384, and in 8 and 4 bits up to 32,768.
//
// Up to 32 rows with weights in bfloat16, int8 or int4 are multiplied on tensor cores, which also read the
// weights only once (rows_on_tensor_cores.cuh).
//
// A few rows with other weights or widths, or on older GPUs, are also limited by memory bandwidth. The kernel
// in this file multiplies them: each warp reads the weights of one output, or of a few, from front to back,
// 16 bytes per lane. It widens weights of 16 bits and less in registers, so all arithmetic is in float32. The
// epilogue (bias, GELU, residual, the position in the cache) costs no extra time. Neither does the norm of up
// to four rows: every block computes it in shared memory while its weights travel to the L2 cache. In a gated
// product, a warp computes pairs of columns: some columns of the gate and the columns that they gate.
//
// The values of x are floats, whatever the type of the weights, and come from the L1 cache or shared memory.
// 16 bytes of 4-bit weights of one output would need 128 bytes of x. So a lane multiplies at most eight
// inputs at a time, and computes two outputs in 8 bits and four in 4 bits. It then reads 16 bytes of weights
// per 32 bytes of x, as in 16 bits.
//
// Many rows (prefill) are limited by arithmetic. cuBLAS multiplies them, and adds the bias and the residual
// before it stores its results. A small kernel, limited by bandwidth, does the rest: GELU, the gate, rounding
// to 16 bits, and moving keys and values to the cache. If rows are aligned, a thread processes four
// neighbouring results with one load and one store. The tensor cores that cuBLAS uses multiply two matrices
// of one type. So with 16-bit weights, x is first rounded to their type, unless it is already stored in that
// type; the sums are in float32. Weights in 8 and 4 bits are first widened to 16 bits, which writes and reads
// each weight once more. So they may be slower than 16-bit weights from 33 rows up to the point where
// arithmetic is the limit.
#include <algorithm>
#include <utility>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matvec.cuh"
#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/rows_on_tensor_cores.cuh"
#include "kernels/cuda/stores.cuh"
#include "kernels/cuda/weights.cuh"
#include "kernels/tuning.h"

namespace staircase {
namespace cuda {

constexpr int kLinearThreads = kNormThreads;
constexpr int kFewRows = 8;
constexpr std::int64_t kManyOutputs = 2048;

// Normalizing more or longer rows in a block would take shared memory from other blocks.
constexpr std::int64_t kNormalizedRows = 4;
constexpr std::int64_t kNormalizedFloats = 8192;

/// How many neighbouring inputs a lane multiplies at a time, given the size of a weight's element.
constexpr int inputs_at_once(std::size_t element_bytes) {
  return element_bytes == sizeof(float) ? 4 : 8;
}

/// The maximum memory for widened weights. No matrix of a block of gpt2-xl exceeds it, so only output layers
/// are split into pieces.
constexpr std::int64_t kWidenedBytes = std::int64_t{32} << 20;

/// Waits for the previous kernel, then computes norm(x) [rows, in] in the block's shared memory. Every thread
/// of the block must call this.
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

/// Multiplies up to kRows rows, normalized or not, by the weights of kOutputs outputs per warp. A lane
/// multiplies kVector neighbouring inputs at a time. `in` must be a multiple of kVector and, with a norm,
/// also of 4. Every result is summed in the same order, whatever the number of rows. In a gated product, a
/// warp has kOutputs / 2 columns of the gate, then the columns that they gate. Blocks with the next
/// blockIdx.y take the next kRows rows.
template <int kRows, int kOutputs, int kVector, bool kNormalize, typename Stored, typename Store>
__global__ __launch_bounds__(kLinearThreads) void multiply_few_rows(const float* x, RowNorm norm,
                                                                    WeightRows<Stored> weight, int rows,
                                                                    int in, int out, Store store) {
  static_assert(kRows * kOutputs <= kWarp && (!kTakesPairs<Store> || kOutputs % 2 == 0));
  constexpr bool kScaled = Format<Stored>::kScaled;
  constexpr int kElements = divide_up(kVector, Format<Stored>::kInElement);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>((blockIdx.x * kLinearThreads + threadIdx.x) / kWarp) * kOutputs;
  // More than kFewRows rows occur only with few bits, and only where tensor cores multiply all other widths.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr bool kInParts = kRows == kFewRows && kScaled;
#else
  constexpr bool kInParts = false;
#endif
  const int first_row = kInParts ? static_cast<int>(blockIdx.y) * kRows : 0;
  x += static_cast<std::int64_t>(first_row) * in;
  rows -= first_row;

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
  // One lane finishes each result, so all results of the warp are finished at the same time.
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
  // The loop is unrolled so that up to 64 bytes of weights are in flight before the first result is needed.
  // With many rows and outputs, the arithmetic on one vector already takes long enough.
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
    if (has_result) store.of_row(first_row + row)(column, own_sum + bias, gated + other_bias);
  } else {
    if (has_result) store.of_row(first_row + row)(column, own_sum + bias);
  }
}

/// to[o, i] = the weight of input i and output first + o, rounded. to [outputs, in]. A thread converts
/// kVector neighbouring inputs; `in` must be a multiple of kVector.
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

/// The number of results per thread. Their products are in flight together.
constexpr int kFinishedAtOnce = 4;

/// Finishes the products of cuBLAS, [row, column]: passes each to `store`, one by one or in pairs, with its
/// bias added. products [rows, width] may be the memory that `store` writes to, unless it takes pairs.
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

/// Finishes the products of cuBLAS, kNeighbours columns per thread, in one load and one store.
template <typename Store>
__global__ __launch_bounds__(kLinearThreads) void finish_neighbours(const float* products, int width,
                                                                    Store store) {
  begin_after_previous();
  const int row = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(blockIdx.y * kLinearThreads + threadIdx.x) * kNeighbours;
  if (column >= width) return;
  const std::int64_t place = static_cast<std::int64_t>(row) * width + column;
  store.put_neighbours(row, column, load_vector<kNeighbours>(products + place));
}

template <int kRows, int kOutputs, int kVector, bool kNormalize, typename Stored, typename Store>
void launch_few_rows(const Tensor& x, const Norm& norm, const Weight& weight,
                     const WeightRows<Stored>& weights, const Store& store, Stream stream) {
  const std::int64_t outputs_per_block = kLinearThreads / kWarp * kOutputs;
  const dim3 grid(blocks(divide_up(weight.out_features, outputs_per_block)),
                  blocks(divide_up<std::int64_t>(x.dim(0), kRows)));
  launch("linear was started", stream, grid, kLinearThreads, kNormalize ? x.bytes() : 0,
         multiply_few_rows<kRows, kOutputs, kVector, kNormalize, Stored, Store>, x.data<float>(),
         RowNorm(norm), weights, static_cast<int>(x.dim(0)), static_cast<int>(weight.in_features),
         static_cast<int>(weight.out_features), store);
}

/// Whether the norm of these rows can be computed inside their product.
bool normalizes(const Tensor& x, const Weight& weight) {
  return x.dim(0) <= kNormalizedRows && x.size() <= kNormalizedFloats &&
         weight.in_features % inputs_at_once(size_of(weight.packed.dtype())) == 0;
}

/// Computes norm(x) W or x W for 1 to kFewRows rows. More rows are possible, but read the weights again for
/// each kFewRows rows. With more rows, a warp computes more outputs and so reuses each value of x that it
/// reads from the cache.
template <bool kNormalize, typename Store>
void few_rows(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store, Stream stream) {
  with_rows(weight, [&]<typename Stored>(const WeightRows<Stored>& weights) {
    constexpr int kVector = inputs_at_once(sizeof(Stored));
    constexpr int kLeast = kTakesPairs<Store> ? 2 : 1;
    constexpr int kOutputs =
        std::max(128 / (kVector * Format<Stored>::kBits), kLeast);  // 16 bytes of weights
    const std::int64_t rows = x.dim(0);
    if constexpr (!kNormalize) {
      if (weight.in_features % kVector != 0) {  // the rows of W or of x are not aligned
        launch_few_rows<8, kLeast, 1, kNormalize>(x, norm, weight, weights, store, stream);
        return;
      }
      if (rows > 4) {
        // With few outputs, more outputs per warp would leave multiprocessors without a block.
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

/// How a team of threads (tuning.h) multiplies one row.
template <int kTeam, typename Stored, typename Store>
struct OneRow {
  static constexpr Team kOwn = kTeams[kTeam];
  static constexpr int kOfLoad = kInputsOfLoad<Stored>;
  static constexpr bool kIsGated = kTakesPairs<Store>;
  static constexpr int kLoads = kOwn.inputs / kOfLoad, kThreads = kTeamThreads<kOwn.lanes>;
  static constexpr int kOutputs = outputs_at_once(kOwn, kOfLoad, kIsGated);
  static constexpr int kResident = resident(kOwn, kOfLoad, kIsGated);

  static void start(const Tensor& x, const Norm& norm, const WeightRows<Stored>& weights,
                    std::int64_t results, const Store& store, std::int64_t wave, Stream stream) {
    const auto needed = divide_up<std::int64_t>(results, kThreads / kOwn.lanes * kOutputs);
    launch("linear was started", stream, blocks(std::min(needed, wave)), kThreads, 0,
           multiply_one_row<kOwn.lanes, kLoads, kOutputs, kResident, Stored, Store>, x.data<float>(),
           RowNorm(norm), weights, static_cast<int>(x.dim(1)), static_cast<int>(results), store);
  }
};

/// Returns the form of the product of x, or nothing if only the general kernel can compute it.
template <typename Store>
std::optional<Form> form_of(const Tensor& x, const Weight& weight, const Tuning& tuning) {
  const int rows = room_for(x.dim(0));
  if (rows == 0 || x.dtype() != DType::kFloat32) return std::nullopt;
  return form_of({rows, weight.in_features, weight.out_features, weight.packed.dtype(), kTakesPairs<Store>},
                 tuning);
}

/// Computes norm(x) W for one row. Returns false, and does nothing, for a row that is too long for any
/// kernel's registers or not aligned to a load.
template <typename Store>
bool one_row(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store, int multiprocessors,
             const Tuning& tuning, Stream stream) {
  const std::optional<Form> form = form_of<Store>(x, weight, tuning);
  if (!form) return false;
  std::int64_t results = weight.out_features;
  if constexpr (kTakesPairs<Store>) results = store.width;
  const std::int64_t wave = std::int64_t{multiprocessors} * form->blocks;
  with_rows(weight, [&]<typename Stored>(const WeightRows<Stored>& weights) {
    constexpr int kOfLoad = kInputsOfLoad<Stored>;
    const auto take = [&]<std::size_t kTeam>() {
      if constexpr (is_compiled(kTeams[kTeam], kOfLoad, kTakesPairs<Store>)) {
        if (kTeams[kTeam].lanes != form->lanes || kTeams[kTeam].inputs != form->inputs) return;
        OneRow<static_cast<int>(kTeam), Stored, Store>::start(x, norm, weights, results, store, wave, stream);
      }
    };
    [&]<std::size_t... kEach>(std::index_sequence<kEach...>) {
      (take.template operator()<kEach>(), ...);
    }
    (std::make_index_sequence<kTeams.size()>());
  });
  return true;
}

/// Computes norm(x) W for a few rows on tensor cores. Returns false, and does nothing, if no form fits the
/// product.
template <typename Store>
bool rows_on_tensor_cores(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store,
                          const Tuning& tuning, Stream stream) {
  const std::optional<Form> form = form_of<Store>(x, weight, tuning);
  if (!form) return false;
  const std::int64_t rows = x.dim(0);
  with_rows(weight, [&]<typename Stored>(const WeightRows<Stored>& weights) {
    if constexpr (kIsOnTensorCores<Stored>) {
      const auto start = [&]<int kTiles, int kSharers>() {
        if constexpr (is_compiled(kSharers, kTiles * kMmaRows, kTakesPairs<Store>)) {
          if (room_for(rows) != kTiles * kMmaRows || form->lanes != kSharers) return;
          const std::int64_t columns_of_block = kTakesPairs<Store> ? 2 * kMmaColumns : kMmaColumns;
          launch("linear was started", stream, blocks(divide_up(weight.out_features, columns_of_block)),
                 kSharers, 0, multiply_on_tensor_cores<kTiles, kSharers, Stored, Store>, x.data<float>(),
                 RowNorm(norm), weights, static_cast<int>(rows), static_cast<int>(weight.in_features),
                 static_cast<int>(weight.out_features), store);
        }
      };
      const auto start_with = [&]<int kTiles>() {
        [&]<std::size_t... kEach>(std::index_sequence<kEach...>) {
          (start.template operator()<kTiles, kSharers[kEach]>(), ...);
        }
        (std::make_index_sequence<kSharers.size()>());
      };
      start_with.template operator()<1>();
      start_with.template operator()<2>();
      start_with.template operator()<4>();
    }
  });
  return true;
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

/// to[o, i] = the weight of input i and output first + o, rounded to `dtype`, for weights that share scales.
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
  if constexpr (!kTakesPairs<Store>) {
    if (store.takes_neighbours() && is_aligned(products, DType::kFloat32, kNeighbours)) {
      const dim3 grid(blocks(rows), blocks(divide_up<std::int64_t>(width, kNeighbours * kLinearThreads)));
      launch("linear was finished", stream, grid, kLinearThreads, 0, finish_neighbours<Store>, products,
             static_cast<int>(width), store);
      return;
    }
  }
  const std::int64_t results = kTakesPairs<Store> ? std::int64_t{store.width} : width;
  const dim3 grid(blocks(rows), blocks(divide_up<std::int64_t>(results, kFinishedAtOnce * kLinearThreads)));
  launch("linear was finished", stream, grid, kLinearThreads, 0, finish<Store>, products,
         static_cast<int>(width), store);
}

}  // namespace cuda

DType CudaDevice::operand_dtype(std::int64_t rows, DType weights) const {
  const bool on_tensor_cores = has_tensor_cores_ && (weights == DType::kBFloat16 || is_quantized(weights));
  const bool are_few = rows <= (on_tensor_cores ? cuda::kFewRowsOnTensorCores : cuda::kFewRows);
  return are_few ? DType::kFloat32 : cublas_dtype(weights);
}

DType CudaDevice::cublas_dtype(DType weights) const {
  if (is_quantized(weights)) return has_bfloat16_ ? DType::kBFloat16 : DType::kFloat16;
  return weights;
}

Tensor CudaDevice::as_operand(const Tensor& x, const Norm& norm, DType dtype) {
  const bool has_norm = norm.kind != NormKind::kNone;
  if (!has_norm && dtype == x.dtype()) return x;
  const std::int64_t bytes = x.size() * static_cast<std::int64_t>(size_of(dtype));
  float* const memory = grown(operand_, cuda::divide_up<std::int64_t>(bytes, sizeof(float)));
  cuda::with_type(dtype, memory, [&](auto* operand) {
    if (has_norm) {
      cuda::launch_normalize<false>(x, norm, operand, stream());
    } else {
      cuda::with_type(x.dtype(), x.data<void>(),
                      [&](const auto* rows) { cuda::launch_convert(rows, x.size(), operand, stream()); });
    }
  });
  return Tensor(dtype, x.shape(), std::shared_ptr<void>(memory, [](void*) {}));  // the device owns the memory
}

template <typename Store>
bool CudaDevice::few_rows(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store) {
  const std::int64_t rows = x.dim(0);
  if (rows == 1 && x.dtype() == DType::kFloat32 &&
      cuda::one_row(x, norm, weight, store, multiprocessors_, *tuning_, stream())) {
    return true;
  }
  if (rows > 1 && has_tensor_cores_ && cuda::rows_on_tensor_cores(x, norm, weight, store, *tuning_, stream()))
    return true;
  // More than kFewRows rows stay unrounded only on GPUs where tensor cores multiply nearly all widths.
  const DType dtype = weight.packed.dtype();
  const bool rounded =
      !is_quantized(dtype) || x.dtype() != DType::kFloat32 || operand_dtype(rows, dtype) != DType::kFloat32;
  if (rows > cuda::kFewRows && rounded) return false;
  if (norm.kind != NormKind::kNone && cuda::normalizes(x, weight)) {
    cuda::few_rows<true>(x, norm, weight, store, stream());
  } else {
    cuda::few_rows<false>(as_operand(x, norm, DType::kFloat32), {}, weight, store, stream());
  }
  return true;
}

bool CudaDevice::many_rows(const Tensor& x, const Weight& weight, const Tensor& bias, float keep,
                           float* out) {
  const std::int64_t in = weight.in_features, width = weight.out_features;
  if (!is_quantized(weight.packed.dtype())) {
    return cublas_->multiply(x, weight, bias, keep, out, width, stream());
  }
  const auto row_bytes = in * static_cast<std::int64_t>(size_of(x.dtype()));
  const std::int64_t at_once = std::clamp<std::int64_t>(cuda::kWidenedBytes / row_bytes, 1, width);
  if (bias.size() > 0 && at_once < width) return false;  // cuBLASLt might reject a later piece
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
  if (few_rows(x, norm, weight, store)) return;
  float* const products = scratch(rows * width);
  many_rows(as_operand(x, norm, cublas_dtype(weight.packed.dtype())), weight, {}, 0.0f, products);
  cuda::launch_finish(products, rows, width, store, stream());
}

void CudaDevice::linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias,
                        Epilogue epilogue, Tensor& out) {
  if (listed(Operation::kLinear, x, norm, weight, bias, epilogue, out)) return;
  const std::int64_t rows = x.dim(0), width = weight.out_features;
  if (rows == 0) return;
  if (is_gated(epilogue)) {
    const cuda::StoreGated store{bias.data<float>(), epilogue, static_cast<int>(out.dim(1)), out.dtype(),
                                 out.data<void>()};
    multiply(x, norm, weight, store);
    return;
  }
  cuda::StoreRow store{bias.data<float>(), epilogue, static_cast<int>(width), out.dtype(), out.data<void>()};
  if (few_rows(x, norm, weight, store)) return;
  const Tensor operand = as_operand(x, norm, cublas_dtype(weight.packed.dtype()));
  const float keep = epilogue == Epilogue::kAdd ? 1.0f : 0.0f;
  // cuBLAS requires a bias of the result's type; ours are float32.
  const bool in_place = out.dtype() == DType::kFloat32;
  const bool has_gelu = epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluErf;
  if (in_place && !has_gelu && many_rows(operand, weight, bias, keep, out.data<float>())) return;
  float* const products = in_place ? out.data<float>() : scratch(rows * width);
  many_rows(operand, weight, {}, keep, products);
  if (epilogue == Epilogue::kAdd) store.epilogue = Epilogue::kStore;  // cuBLAS has already added the residual
  cuda::launch_finish(products, rows, width, store, stream());
}

void CudaDevice::activate(const Tensor& x, Epilogue epilogue, Tensor& out) {
  if (listed(Operation::kActivate, x, epilogue, out)) return;
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  const int width = static_cast<int>(out.dim(1));
  if (is_gated(epilogue)) {
    const cuda::StoreGated store{nullptr, epilogue, width, out.dtype(), out.data<void>()};
    cuda::launch_finish(x.data<float>(), rows, columns, store, stream());
  } else {
    const cuda::StoreRow store{nullptr, epilogue, width, out.dtype(), out.data<void>()};
    cuda::launch_finish(x.data<float>(), rows, columns, store, stream());
  }
}

void CudaDevice::query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                                 const Tensor& bias, Tensor& queries, KeysValues& keys_values) {
  if (listed(Operation::kQueryKeyValue, batch, x, norm, weight, bias, queries, keys_values)) return;
  if (x.dim(0) == 0) return;
  if (is_quantized(keys_values.keys.dtype())) {  // a head is quantized as a whole, once it is complete
    const Shape shape{x.dim(0), weight.out_features};
    grown(projected_, shape[0] * shape[1]);
    Tensor projected = projected_.reshaped(shape);
    linear(x, norm, weight, bias, Epilogue::kStore, projected);
    return split_heads(batch, projected, {}, queries, keys_values);
  }
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
