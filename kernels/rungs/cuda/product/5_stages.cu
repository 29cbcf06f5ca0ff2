// Asynchronous copies bring the next tiles while the tensor cores multiply. Four stages form a ring: three
// are in flight, one is in use. One barrier per turn is enough. After it, all threads see the tiles that have
// arrived, and no thread still reads the stage that the next copies overwrite.
#include "kernels/rungs/cuda/product/product.cuh"

namespace staircase::rungs::gpu_product {
namespace {

/// sums += the warp's part of the product of two tiles. In one instruction, a tensor core computes 16 rows by
/// 8 outputs and adds up 16 products for each.
__device__ void multiply_tiles(const Tile& xs, const Tile& ws, Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int c = 0; c < 4; c += 2) {  // pieces of 8 columns, two per instruction
    unsigned a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ldmatrix_x4<false>(a[i], xs.piece(warp / 2 * 32 + i * 16 + lane % 16, c + lane / 16));
      ldmatrix_x4<false>(b[i], ws.piece(warp % 2 * 32 + i * 16 + lane / 16 * 8 + lane % 8, c + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n)
        mma_m16n8k16<__nv_bfloat16>(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
}

constexpr int kStages = 4;

__global__ void multiply(Product p) {
  __shared__ Tile xs[kStages], ws[kStages];
  const int thread = static_cast<int>(threadIdx.x), row = thread / 4, c = thread % 4;
  const int first_row = static_cast<int>(blockIdx.y) * kTile, first = static_cast<int>(blockIdx.x) * kTile;
  const auto request = [&](int turn) {
    const int k = turn * kDepth, stage = turn % kStages;
    if (k < p.stride) {
      for (int r = row; r < row + kTile; r += kThreads / 4) {
        cp_async_16(xs[stage].piece(r, c), p.rounded_row(first_row + r) + k + c * 8);
        cp_async_16(ws[stage].piece(r, c), p.row_of_w<std::uint16_t>(first + r) + k + c * 8);
      }
    }
    cp_async_commit_group();
  };
  Sums sums = {};
  for (int turn = 0; turn < kStages - 1; ++turn) request(turn);
  for (int turn = 0; turn * kDepth < p.stride; ++turn) {
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    request(turn + kStages - 1);
    multiply_tiles(xs[turn % kStages], ws[turn % kStages], sums);
  }
  store_sums(p, sums);
}

void start(const Product& p, Stream stream) {
  round_x(p, stream);
  const dim3 grid(blocks(divide_up(p.n_out, kTile)), blocks(divide_up(p.rows, kTile)));
  launch("a rung was started", stream, grid, kThreads, 0, multiply, p);
}

}  // namespace

constexpr ProductRung kCopiesAhead{"5-stages", "copies to shared memory, three tiles ahead",
                                   Stored::kBFloat16, start};

}  // namespace staircase::rungs::gpu_product
