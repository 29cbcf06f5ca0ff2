// Each thread computes 4 by 4 outputs. Eight numbers from shared memory, in two loads, suffice for 16
// products; rung 2 needed two numbers for one product. The tiles are stored transposed, so the four numbers
// of a thread are neighbours.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {
namespace {

constexpr int kThreads = 256, kTile = 64, kDepth = 16, kOwn = 4;

struct alignas(16) Tile {
  float columns[kDepth][kTile + 4];  // four extra, so that storing lanes use different banks
};

/// Stores four numbers of a row, from column k on.
__device__ void store_row(Tile& tile, int row, int k, const float* from) {
  const Vector<float, 4> numbers = load_vector<4>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) tile.columns[k + i][row] = numbers.values[i];
}

/// sums += the products of a thread's four rows and four outputs.
__device__ void multiply_tiles(const Tile& xs, const Tile& ws, int row, int column,
                               float (&sums)[kOwn][kOwn]) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    const Vector<float, 4> x = load_vector<4>(xs.columns[k] + row);
    const Vector<float, 4> w = load_vector<4>(ws.columns[k] + column);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int o = 0; o < kOwn; ++o) sums[r][o] += x.values[r] * w.values[o];
    }
  }
}

__global__ void multiply(Product p) {
  __shared__ Tile xs, ws;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kTile, first = static_cast<int>(blockIdx.x) * kTile;
  // The numbers that this thread copies: two neighbouring threads copy 32 bytes of a row, which is a sector.
  const int own_row = thread / 2 % kTile, own_k = thread % 2 * 4 + thread / 128 * 8;
  const float* const x = p.row_of_x(first_row + own_row) + own_k;
  const float* const w = p.row_of_w<float>(first + own_row) + own_k;
  const int row = thread / 16 * kOwn, column = thread % 16 * kOwn;
  float sums[kOwn][kOwn] = {};
  for (int k = 0; k < p.stride; k += kDepth) {
    store_row(xs, own_row, own_k, x + k);
    store_row(ws, own_row, own_k, w + k);
    __syncthreads();
    multiply_tiles(xs, ws, row, column, sums);
    __syncthreads();
  }
  for (int r = 0; r < kOwn && first_row + row + r < p.rows; ++r) {
    float* const y = p.y + static_cast<std::int64_t>(first_row + row + r) * p.n_out;
    for (int o = 0; o < kOwn && first + column + o < p.n_out; ++o) y[first + column + o] = sums[r][o];
  }
}

void start(const Product& p, Stream stream) {
  const dim3 grid(blocks(divide_up(p.n_out, kTile)), blocks(divide_up(p.rows, kTile)));
  launch("a rung was started", stream, grid, kThreads, 0, multiply, p);
}

}  // namespace

constexpr ProductRung kRegisters{"3-registers", "a thread for 4 by 4 outputs", Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_product
