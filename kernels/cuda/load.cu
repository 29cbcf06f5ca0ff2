// load and load_weight: from the bytes of a file to tensors on the GPU.
//
// The bytes cross the bus as they are stored, in pieces of up to 32 MiB, and are converted (and transposed,
// for the layers that GPT-2 stores as [in, out]) on the GPU: each element is read and written there once, at
// the bandwidth of its memory, which is some hundred times that of the bus, the limit here.
#include <algorithm>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_device.h"

namespace staircase {
namespace cuda {

constexpr int kLoadThreads = 256;
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMostRows = 1 << 20;  // so that a grid of tiles stays within its limit of 65535

constexpr int kTile = 32, kTileRows = kLoadThreads / kTile;

/// to[column, row] = from[row, column] for from [rows, columns]; neighbouring rows of `to` lie `stride`
/// elements apart.
///
/// A block turns a tile of 32 × 32 in shared memory, so that both its reads and its writes are rows of 32
/// neighbouring elements. The tile's rows are one element longer: a column of it then lies in 32 different
/// memory banks.
template <typename From, typename To>
__global__ __launch_bounds__(kLoadThreads) void transpose(const From* from, int rows, int columns,
                                                          std::int64_t stride, To* to) {
  take_turn();
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

/// Calls use(piece on the GPU, first row, rows) for all rows of the array, some at a time.
template <typename Use>
void in_pieces(const HostArray& array, float* staging, Stream stream, const Use& use) {
  const auto row_bytes = array.columns * static_cast<std::int64_t>(size_of(array.dtype));
  const std::int64_t rows_at_once =
      std::clamp<std::int64_t>(kPieceBytes / std::max<std::int64_t>(1, row_bytes), 1, kMostRows);
  for (std::int64_t first = 0; first < array.rows; first += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, array.rows - first);
    check(cudaMemcpyAsync(staging, static_cast<const std::byte*>(array.data) + first * row_bytes,
                          static_cast<std::size_t>(rows * row_bytes), cudaMemcpyHostToDevice, stream),
          "weights were copied to it");
    with_type(array.dtype, staging, [&](const auto* piece) { use(piece, first, rows); });
  }
  // Where the GPU reads the host's memory by itself, nothing else keeps the file there until it has.
  check(cudaStreamSynchronize(stream), "weights were copied to it");
}

std::int64_t staging_floats(const HostArray& array) {
  const auto row_bytes = array.columns * static_cast<std::int64_t>(size_of(array.dtype));
  const std::int64_t bytes = std::min(array.rows * row_bytes, std::max(kPieceBytes, row_bytes));
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

}  // namespace cuda

Tensor CudaDevice::load(const HostArray& array) {
  std::vector<std::int64_t> shape{array.columns};
  if (array.rows > 1) shape.insert(shape.begin(), array.rows);
  Tensor tensor = allocate(DType::kFloat32, std::move(shape));
  cuda::in_pieces(array, scratch(cuda::staging_floats(array)), stream(),
                  [&](const auto* piece, std::int64_t first, std::int64_t rows) {
                    cuda::launch_convert(piece, rows * array.columns,
                                         tensor.data<float>() + first * array.columns, stream());
                  });
  return tensor;
}

Weight CudaDevice::load_weight(const HostArray& matrix, WeightOrder order, DType dtype) {
  if (dtype == DType::kInt8 || dtype == DType::kInt4) {
    throw std::runtime_error(
        "no GPU multiplies weights in int8 or int4 so far, --device cpu does; a GPU takes float16 and "
        "bfloat16");
  }
  if (dtype == DType::kBFloat16 && !has_bfloat16_) {
    throw std::runtime_error(
        "this GPU multiplies no bfloat16, which takes compute capability 8.0 or newer; float16 is as small");
  }
  const bool input_first = order == WeightOrder::kInputFirst;
  Weight weight;
  weight.in_features = input_first ? matrix.rows : matrix.columns;
  weight.out_features = input_first ? matrix.columns : matrix.rows;
  weight.packed = allocate(dtype, {weight.out_features, weight.in_features});
  cuda::with_type(dtype, weight.packed.data<void>(), [&](auto* packed) {
    cuda::in_pieces(
        matrix, scratch(cuda::staging_floats(matrix)), stream(),
        [&](const auto* piece, std::int64_t first, std::int64_t rows) {
          if (input_first) {
            cuda::launch_transpose(piece, rows, matrix.columns, first, matrix.rows, packed, stream());
          } else {
            cuda::launch_convert(piece, rows * matrix.columns, packed + first * matrix.columns, stream());
          }
        });
  });
  return weight;
}

}  // namespace staircase
