// linear and query_key_value of a few rows on tensor cores: out = epilogue(norm(x) W + b) with bfloat16
// weights, for a small batch or for drafts that are verified.
//
// x [rows, in], W as [out, in], out [rows, out]. 2 · rows · in · out operations, and the weights are read
// once, whatever the number of rows: the limit is the rate at which they come from memory. One warp that
// multiplies each weight by each row would be limited by arithmetic from some eight rows on; a tensor core
// multiplies 16 outputs by 8 rows in one instruction.
//
//     weights of 16 outputs, [16, in]        x of 8 rows, [in, 8]
//     ┌────┬────┬────┬────┬────┬────         ┌──┐
//     │ w0 │ w1 │ .. │ w7 │ w0 │ w1 ..   ·   │w0│ ...      each warp has its pieces of `in`;
//     └────┴────┴────┴────┴────┴────         └──┘          shared memory adds the warps' sums
//
// The weights of an output are its rows in memory, so they are the first matrix, and no one is transposed. A
// lane loads 16 bytes, 8 neighbouring inputs, of two outputs. The instruction wants other inputs from each
// lane, but a sum may be taken in any order, as long as both matrices agree on it.
//
// A tensor core takes x in bfloat16, too, which would round it to 8 bits. So x becomes a sum of three numbers
// of bfloat16, which has its 24 bits, and there are three products. They are free: the weights take longer to
// come.
//
// The first weights are requested before the wait for the kernel before, as in matvec.cuh.
#pragma once

#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/stores.cuh"
#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/cuda/weights.cuh"

namespace staircase::cuda {

constexpr int kMmaThreads = 256, kMmaWarps = kMmaThreads / kWarp;
constexpr int kMmaColumns = 16, kMmaRows = 8;  ///< of one product
constexpr int kPieceInputs = 32;               ///< of a piece: 4 lanes with 8 inputs each
constexpr int kPiecesAhead = 4;                ///< pieces that a warp has requested and not used

/// A lane's part of a piece of the weights: 8 inputs of outputs `group` and `group` + 8 of a tile.
struct WeightPiece {
  unsigned upper[4], lower[4];
};

/// A lane's 8 inputs of one row of x, as a sum of three numbers of bfloat16. Two neighbours share a register.
struct SplitPiece {
  unsigned terms[3][4];

  __device__ __forceinline__ explicit SplitPiece(const Vector<float, 8>& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float low = x.values[2 * i], high = x.values[2 * i + 1];
#pragma unroll
      for (int term = 0; term < 3; ++term) {
        const unsigned both = pack<__nv_bfloat16>(low, high);
        terms[term][i] = both;
        low -= __uint_as_float(both << 16);
        high -= __uint_as_float(both & 0xffff0000u);
      }
    }
  }
};

/// norm(x) W for up to kTiles · 8 rows. `in` must be a multiple of kPieceInputs. A block computes 16 outputs;
/// of a gated product, 16 columns of the gate and those that they gate.
template <int kTiles, typename Store>
__global__ __launch_bounds__(kMmaThreads) void multiply_on_tensor_cores(const float* x, RowNorm norm,
                                                                        WeightRows<__nv_bfloat16> weight,
                                                                        int rows, int in, int out,
                                                                        Store store) {
  constexpr int kMatrices = kTakesPairs<Store> ? 2 : 1;
  static_assert(kGateColumns == kMmaColumns);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, first_input = lane % 4 * 8;
  const int first_column = static_cast<int>(blockIdx.x) * kMmaColumns * kMatrices;
  const int pieces = in / kPieceInputs;

  // Outputs past the end repeat the last one; nothing stores them.
  const __nv_bfloat16* of_output[kMatrices][2];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = min(first_column + m * kMmaColumns + half * 8 + group, out - 1);
      of_output[m][half] = weight[column].values + first_input;
    }
  }
  WeightPiece ahead[kPiecesAhead][kMatrices];
  const auto request = [&](int piece, WeightPiece(&to)[kMatrices]) {
    if (piece >= pieces) return;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      ld_global_nc_no_allocate(to[m].upper, of_output[m][0] + piece * kPieceInputs);
      ld_global_nc_no_allocate(to[m].lower, of_output[m][1] + piece * kPieceInputs);
    }
  };
#pragma unroll
  for (int i = 0; i < kPiecesAhead; ++i) request(warp + i * kMmaWarps, ahead[i]);
  let_next_begin();
  wait_for_previous();

  __shared__ RowScale scales[kTiles * kMmaRows];
  for (int row = warp; row < kTiles * kMmaRows; row += kMmaWarps) {
    const float* const x_row = x + static_cast<std::int64_t>(min(row, rows - 1)) * in;
    const RowScale scale =
        scale_of_row<4>(x_row, norm, in, lane, kWarp, [](float value) { return warp_sum(value); });
    if (lane == 0) scales[row] = scale;
  }
  __syncthreads();

  float sums[kMatrices][kTiles][4] = {};
  const auto multiply = [&](int piece, const WeightPiece(&own)[kMatrices]) {
    if (piece >= pieces) return;
    const int i = piece * kPieceInputs + first_input;
    NormParameters<8> parameters{};
    if (norm.kind != NormKind::kNone) parameters = norm.parameters<8>(i);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kMmaRows + group;
      Vector<float, 8> values = load_vector<8>(x + static_cast<std::int64_t>(min(row, rows - 1)) * in + i);
      if (norm.kind != NormKind::kNone) values = norm.apply(scales[row], values, parameters);
      const SplitPiece split(values);
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned a[4] = {own[m].upper[2 * half], own[m].lower[2 * half], own[m].upper[2 * half + 1],
                                 own[m].lower[2 * half + 1]};
#pragma unroll
          for (int term = 2; term >= 0; --term) {
            mma_m16n8k16<__nv_bfloat16>(sums[m][tile], a, split.terms[term][2 * half],
                                        split.terms[term][2 * half + 1]);
          }
        }
      }
    }
  };
  for (int first = warp; first < pieces; first += kPiecesAhead * kMmaWarps) {
#pragma unroll
    for (int i = 0; i < kPiecesAhead; ++i) {
      const int piece = first + i * kMmaWarps;
      multiply(piece, ahead[i]);
      request(piece + kPiecesAhead * kMmaWarps, ahead[i]);
    }
  }

  __shared__ float partial[kMmaWarps][kMatrices][kTiles][kWarp][4];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[warp][m][tile][lane][i] = sums[m][tile][i];
    }
  }
  __syncthreads();
  // Neighbouring threads take neighbouring outputs of one row.
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * kMmaRows * kMmaColumns; i += kMmaThreads) {
    const int row = i / kMmaColumns, column = i % kMmaColumns, output = blockIdx.x * kMmaColumns + column;
    if (row >= rows) break;
    const auto total = [&](int m) {
      const int owner = column % 8 * 4 + row % kMmaRows / 2, place = column / 8 * 2 + row % 2;
      float sum = 0.0f;
      for (int w = 0; w < kMmaWarps; ++w) sum += partial[w][m][row / kMmaRows][owner][place];
      return sum + store.bias_of(first_column + m * kMmaColumns + column);
    };
    if constexpr (kTakesPairs<Store>) {
      if (output < store.width) store.of_row(row)(output, total(0), total(1));
    } else {
      if (output < out) store.of_row(row)(output, total(0));
    }
  }
}

}  // namespace staircase::cuda
