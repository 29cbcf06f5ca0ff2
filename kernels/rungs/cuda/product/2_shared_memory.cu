// A block computes 32 rows by 32 outputs, and loads 32 columns of both matrices at a time into shared memory.
// Each number is used 32 times, so memory delivers only a 32nd of the bytes.
#include "kernels/cuda/device_functions.cuh"
#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {
namespace {

constexpr int kTile = 32;

__global__ void multiply(Product p) {
  // One extra column spreads each column over 32 banks, so 32 lanes can read it at once.
  __shared__ float xs[kTile][kTile + 1], ws[kTile][kTile + 1];
  const int column = static_cast<int>(threadIdx.x) % kTile, row = static_cast<int>(threadIdx.x) / kTile;
  const int r = static_cast<int>(blockIdx.y) * kTile + row, first = static_cast<int>(blockIdx.x) * kTile;
  const float *const x = p.row_of_x(r), *const w = p.row_of_w<float>(first + row);
  float sum = 0.0f;
  for (int k = 0; k < p.stride; k += kTile) {
    xs[row][column] = x[k + column];
    ws[row][column] = w[k + column];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += xs[row][i] * ws[column][i];
    __syncthreads();  // the next tiles overwrite these
  }
  if (r < p.rows && first + column < p.n_out)
    p.y[static_cast<std::int64_t>(r) * p.n_out + first + column] = sum;
}

void start(const Product& p, Stream stream) {
  const dim3 grid(blocks(divide_up(p.n_out, kTile)), blocks(divide_up(p.rows, kTile)));
  launch("a rung was started", stream, grid, kTile * kTile, 0, multiply, p);
}

}  // namespace

constexpr ProductRung kSharedMemory{"2-shared-memory", "blocks of 32 by 32 outputs share their numbers",
                                    Stored::kFloat32, start};

}  // namespace staircase::rungs::gpu_product
