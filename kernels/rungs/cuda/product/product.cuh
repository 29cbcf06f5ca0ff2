// What the rungs on tensor cores share: tiles of 64 rows and 32 columns of bfloat16, and the layout of the
// sums.
#pragma once

#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {

/// Four warps compute 64 by 64 outputs, each warp 32 by 32 of them, as 2 by 4 products of 16 by 8.
constexpr int kThreads = 128, kTile = 64, kDepth = 32;

/// A row of 64 bytes occupies 16 banks. If every row kept its four pieces in order, the same piece of eight
/// rows would share the banks of four rows. So each pair of rows orders its pieces differently (*swizzle*).
struct Tile {
  uint4 pieces[kTile][4];

  /// The 16 bytes from column 8 c on of a row.
  __device__ uint4* piece(int row, int c) { return &pieces[row][c ^ (row / 2 % 4)]; }
  __device__ const uint4* piece(int row, int c) const { return &pieces[row][c ^ (row / 2 % 4)]; }
};

/// The outputs of a warp: sums[m][n] holds the lane's four outputs of product (m, n), in the layout of
/// tensor_cores.cuh.
using Sums = float[2][4][4];

/// Writes the sums of a warp to y.
__device__ __forceinline__ void store_sums(const Product& p, const Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = static_cast<int>(blockIdx.y) * kTile + warp / 2 * 32;
  const int first = static_cast<int>(blockIdx.x) * kTile + warp % 2 * 32;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = first_row + m * 16 + i / 2 * 8 + lane / 4, o = first + n * 8 + lane % 4 * 2 + i % 2;
        if (r < p.rows && o < p.n_out) p.y[static_cast<std::int64_t>(r) * p.n_out + o] = sums[m][n][i];
      }
    }
  }
}

}  // namespace staircase::rungs::gpu_product
