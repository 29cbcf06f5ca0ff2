// load and load_weight: turn the bytes of a file into tensors on the GPU.
//
// The bytes cross the bus as the file stores them, in pieces of up to 32 MiB. The GPU converts them,
// transposes the layers that GPT-2 stores as [in, out], or quantizes them to 8 or 4 bits. It reads and writes
// each element once. GPU memory has about a hundred times the bandwidth of the bus, so the bus is the limit.
// A matrix may come in parts: gate and up, for example, alternate every few rows. A piece holds as many parts
// as fit, so the parts share one kernel.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/weights.cuh"

namespace staircase {
namespace cuda {

constexpr int kLoadThreads = 256;
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMostRows = 1 << 20;  // keeps a grid of tiles within its limit of 65535

constexpr int kTile = 32, kTileRows = kLoadThreads / kTile;

/// to[column, row] = from[row, column] for from [rows, columns]; neighbouring rows of `to` are `stride`
/// elements apart.
///
/// A block transposes a tile of 32 × 32 in shared memory, so both its reads and its writes are rows of 32
/// neighbouring elements. The tile's rows are one element longer, so a column spreads over 32 different
/// memory banks.
template <typename From, typename To>
__global__ __launch_bounds__(kLoadThreads) void transpose(const From* from, int rows, int columns,
                                                          std::int64_t stride, To* to) {
  begin_after_previous();
  __shared__ float tile[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  const int first_column = static_cast<int>(blockIdx.x) * kTile,
            first_row = static_cast<int>(blockIdx.y) * kTile;
  for (int r = y; r < kTile; r += kTileRows) {
    const int row = first_row + r, column = first_column + x;
    if (row < rows && column < columns) {
      tile[r][x] = widen(from[static_cast<std::int64_t>(row) * columns + column]);
    }
  }
  __syncthreads();
  for (int c = y; c < kTile; c += kTileRows) {
    const int row = first_row + x, column = first_column + c;
    if (row < rows && column < columns) to[column * stride + row] = narrow<To>(tile[x][c]);
  }
}

/// Quantizes weights to 8 or 4 bits, one thread for each output and group. Input i of output o is from[o ·
/// output_stride + i · input_stride]. `place` is the index of the first group among all groups of `to`.
template <typename From, typename Stored>
__global__ __launch_bounds__(kLoadThreads) void quantize(const From* from, int outputs, int inputs,
                                                         std::int64_t output_stride,
                                                         std::int64_t input_stride, std::int64_t place,
                                                         WeightRows<Stored> to) {
  begin_after_previous();
  using Few = Format<Stored>;
  constexpr int kInputs = Few::kInputs, kInElement = Few::kInElement;
  const int output = static_cast<int>(blockIdx.x * kLoadThreads + threadIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kInputs;
  if (output >= outputs) return;
  from += output * output_stride + first * input_stride;
  place += output * to.groups + blockIdx.y;

  float weights[kInputs], furthest = 0.0f;  // furthest from zero, the first of equal ones
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    weights[i] = first + i < inputs ? widen(from[i * input_stride]) : 0.0f;
    if (fabsf(weights[i]) > fabsf(furthest)) furthest = weights[i];
  }
  const auto kept = Few::scale(furthest);
  to.scales[place] = kept;
  const float scale = widen(kept);

  constexpr int kElements = kInputs / kInElement, kVector = 16;  // bytes
  Stored* const values = to.values + place * kElements;
#pragma unroll
  for (int e = 0; e < kElements; e += kVector) {
    Vector<Stored, kVector> packed;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      int whole[kInElement];
#pragma unroll
      for (int i = 0; i < kInElement; ++i) {
        // The scale is 0 for a group of zeros, or if it underflows. Then all weights become 0.
        const float nearest = scale == 0.0f ? 0.0f : rintf(weights[(e + v) * kInElement + i] / scale);
        whole[i] = static_cast<int>(fminf(fmaxf(nearest, Few::kLeast), Few::kMost));
      }
      packed.values[v] = Few::pack(whole);
    }
    *reinterpret_cast<Vector<Stored, kVector>*>(values + e) = packed;
  }
}

/// The number of rows per piece. Pieces never split a group of inputs, in either order: int4 groups are half
/// of kGroup.
std::int64_t rows_at_once(const HostArray& array) {
  const auto row_bytes = array.columns * static_cast<std::int64_t>(size_of(array.dtype));
  const std::int64_t rows = std::min(kPieceBytes / std::max<std::int64_t>(1, row_bytes), kMostRows);
  return std::max<std::int64_t>(rows / kGroup, 1) * kGroup;
}

std::int64_t rows_of(std::span<const HostArray> parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t rows, const HostArray& part) { return rows + part.rows; });
}

/// Calls use(piece on the GPU, first row, rows) for the rows of all parts, one piece at a time. Rows are
/// counted across the parts.
template <typename Use>
void in_pieces(std::span<const HostArray> parts, float* staging, Stream stream, const Use& use) {
  DType dtype = parts.front().dtype;
  std::int64_t first = 0, rows = 0;  // the rows of the piece so far
  const auto use_piece = [&] {
    if (rows > 0) with_type(dtype, staging, [&](const auto* piece) { use(piece, first, rows); });
    first += rows;
    rows = 0;
  };
  for (const HostArray& part : parts) {
    if (part.dtype != dtype) use_piece();
    dtype = part.dtype;
    const auto row_bytes = part.columns * static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t row = 0; row < part.rows;) {
      const std::int64_t count = std::min(rows_at_once(part) - rows, part.rows - row);
      check(cudaMemcpyAsync(reinterpret_cast<std::byte*>(staging) + rows * row_bytes,
                            static_cast<const std::byte*>(part.data) + row * row_bytes,
                            static_cast<std::size_t>(count * row_bytes), cudaMemcpyHostToDevice, stream),
            "weights were copied to it");
      row += count;
      rows += count;
      if (rows == rows_at_once(part)) use_piece();
    }
  }
  use_piece();
  // If the GPU reads host memory directly, the file must stay mapped until it is done.
  check(cudaStreamSynchronize(stream), "weights were copied to it");
}

std::int64_t staging_floats(std::span<const HostArray> parts) {
  std::int64_t bytes = 0;
  for (const HostArray& part : parts) {
    const auto row_bytes = part.columns * static_cast<std::int64_t>(size_of(part.dtype));
    bytes = std::max(bytes, std::min(rows_of(parts), rows_at_once(part)) * row_bytes);
  }
  return divide_up<std::int64_t>(bytes, sizeof(float));
}

/// Writes `rows` rows of the file, [rows, columns] from row `first` of `in_features` on, as columns of
/// `packed`.
template <typename From, typename To>
void launch_transpose(const From* from, std::int64_t rows, std::int64_t columns, std::int64_t first,
                      std::int64_t in_features, To* packed, Stream stream) {
  const dim3 grid(blocks(divide_up<std::int64_t>(columns, kTile)),
                  blocks(divide_up<std::int64_t>(rows, kTile)));
  launch("weights were transposed", stream, grid, kLoadThreads, 0, transpose<From, To>, from,
         static_cast<int>(rows), static_cast<int>(columns), in_features, packed + first);
}

/// Quantizes `rows` rows of the file, [rows, columns] from row `first` on, to 8 or 4 bits.
template <typename From, typename Stored>
void launch_quantize(const From* from, std::int64_t rows, std::int64_t columns, std::int64_t first,
                     WeightOrder order, const WeightRows<Stored>& to, Stream stream) {
  constexpr std::int64_t kInputs = Format<Stored>::kInputs;
  const bool input_first = order == WeightOrder::kInputFirst;
  const std::int64_t outputs = input_first ? columns : rows, inputs = input_first ? rows : columns;
  const dim3 grid(blocks(divide_up<std::int64_t>(outputs, kLoadThreads)), blocks(divide_up(inputs, kInputs)));
  launch("weights were rounded", stream, grid, kLoadThreads, 0, quantize<From, Stored>, from,
         static_cast<int>(outputs), static_cast<int>(inputs), input_first ? 1 : columns,
         input_first ? columns : 1, input_first ? first / kInputs : first * to.groups, to);
}

}  // namespace cuda

Tensor CudaDevice::load(const HostArray& array) {
  const Shape shape = array.rows > 1 ? Shape{array.rows, array.columns} : Shape{array.columns};
  Tensor tensor = allocate(DType::kFloat32, shape);
  const std::span parts(&array, 1);
  cuda::in_pieces(parts, scratch(cuda::staging_floats(parts)), stream(),
                  [&](const auto* piece, std::int64_t first, std::int64_t rows) {
                    cuda::launch_convert(piece, rows * array.columns,
                                         tensor.data<float>() + first * array.columns, stream());
                  });
  return tensor;
}

Weight CudaDevice::load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) {
  if (dtype == DType::kBFloat16 && !has_bfloat16_) {
    throw std::runtime_error(
        "this GPU cannot multiply bfloat16, which needs compute capability 8.0; float16 is as small");
  }
  const bool input_first = order == WeightOrder::kInputFirst;
  const std::int64_t rows = cuda::rows_of(parts), columns = parts.front().columns;
  Weight weight;
  weight.in_features = input_first ? rows : columns;
  weight.out_features = input_first ? columns : rows;
  weight.packed = allocate(dtype, cuda::packed_shape(dtype, weight.in_features, weight.out_features));
  cuda::with_rows(weight, [&]<typename To>(const cuda::WeightRows<To>& to) {
    cuda::in_pieces(parts, scratch(cuda::staging_floats(parts)), stream(),
                    [&](const auto* piece, std::int64_t first, std::int64_t count) {
                      if constexpr (cuda::Format<To>::kScaled) {
                        cuda::launch_quantize(piece, count, columns, first, order, to, stream());
                      } else if (input_first) {
                        cuda::launch_transpose(piece, count, columns, first, rows, to.values, stream());
                      } else {
                        cuda::launch_convert(piece, count * columns, to.values + first * columns, stream());
                      }
                    });
  });
  return weight;
}

}  // namespace staircase
