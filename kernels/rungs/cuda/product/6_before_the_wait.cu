// The first three tiles of W are requested while the previous kernel still rounds x (programmatic dependent
// launch). They belong to the first group of copies, together with the first tile of x.
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
  const auto request_x = [&](int turn) {
    if (turn * kDepth >= p.stride) return;
    for (int r = row; r < row + kTile; r += kThreads / 4)
      cp_async_16(xs[turn % kStages].piece(r, c), p.rounded_row(first_row + r) + turn * kDepth + c * 8);
  };
  const auto request_w = [&](int turn) {
    if (turn * kDepth >= p.stride) return;
    for (int r = row; r < row + kTile; r += kThreads / 4)
      cp_async_16(ws[turn % kStages].piece(r, c),
                  p.row_of_w<std::uint16_t>(first + r) + turn * kDepth + c * 8);
  };
  for (int turn = 0; turn < kStages - 1; ++turn) request_w(turn);
  let_next_begin();
  wait_for_previous();  // from here on, x is complete
  for (int turn = 0; turn < kStages - 1; ++turn) request_x(turn), cp_async_commit_group();
  Sums sums = {};
  for (int turn = 0; turn * kDepth < p.stride; ++turn) {
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    request_x(turn + kStages - 1), request_w(turn + kStages - 1);
    cp_async_commit_group();
    multiply_tiles(xs[turn % kStages], ws[turn % kStages], sums);
  }
  store_sums(p, sums);
}

void start(const Product& p, Stream stream) {
  stream.overlaps = true;
  round_x(p, stream);
  const dim3 grid(blocks(divide_up(p.n_out, kTile)), blocks(divide_up(p.rows, kTile)));
  launch("a rung was started", stream, grid, kThreads, 0, multiply, p);
}

}  // namespace

constexpr ProductRung kBeforeTheWait{"6-before-the-wait", "tiles of W are requested before x is there",
                                     Stored::kBFloat16, start};

}  // namespace staircase::rungs::gpu_product
