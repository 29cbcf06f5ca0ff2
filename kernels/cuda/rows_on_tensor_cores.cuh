// linear and query_key_value for a few rows on tensor cores: out = epilogue(norm(x) W + b) with weights in
// bfloat16, int8 or int4, for a small batch or for verifying drafts.
//
// x [rows, in], W as [out, in], out [rows, out]. The product takes 2 · rows · in · out operations and reads
// the weights once, whatever the number of rows, so memory bandwidth is the limit. Without tensor cores,
// arithmetic would be the limit from about eight rows on; a tensor core multiplies 16 outputs by 8 rows in
// one instruction.
//
//     weights of 16 outputs, [16, in]        x of 8 rows, [in, 8]
//     ┌────┬────┬────┬────┬────┬────         ┌──┐
//     │ w0 │ w1 │ .. │ w7 │ w0 │ w1 ..   ·   │w0│ ...      each warp has its pieces of `in`;
//     └────┴────┴────┴────┴────┴────         └──┘          shared memory adds the warps' sums
//
// The weights of an output are a row in memory, so they form the first matrix, and nothing is transposed. A
// lane loads 16 bytes, which are 8 neighbouring inputs in bfloat16, of two outputs. The instruction expects
// other inputs from each lane, but a sum may be taken in any order, as long as both matrices use the same
// one.
//
// A tensor core also needs x in bfloat16, which would round it to 8 significant bits. So x becomes a sum of
// three bfloat16 numbers, which together have its 24 bits, and there are three products. They cost no extra
// time, because loading the weights takes longer.
//
// Weights of 8 and 4 bits are integers that bfloat16 holds exactly. The products of a group are summed first
// and then multiplied by its scale. 16 bytes in int8 are part of one group. In int4 they are a whole group,
// but all four lanes of an output must work on one group at a time. So the lanes exchange words:
//
//     loaded     lane 0: group 0, words 0 1 2 3     exchanged     lane 0: word 0 of groups 0 1 2 3
//                lane 1: group 1, words 0 1 2 3                   lane 1: word 1 of groups 0 1 2 3 ..
//
// The first weights are requested before the wait for the previous kernel, as in matvec.cuh.
#pragma once

#include "kernels/cuda/matvec.cuh"
#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/stores.cuh"
#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/cuda/weights.cuh"

namespace staircase::cuda {

constexpr int kMmaColumns = 16, kMmaRows = 8;  ///< the outputs and rows of one product
constexpr int kLanesOfOutput = 4;
constexpr int kInputsAtOnce = 8;  ///< inputs of a lane in one product
constexpr int kPiecesAhead = 4;   ///< pieces that a warp has requested but not used yet

/// The inputs in a piece of the weights: the 64 bytes that the lanes of an output load at once.
template <typename Stored>
constexpr int kPieceInputs = kLanesOfOutput* kInputsOfLoad<Stored>;

/// Whether weights of this type are multiplied on tensor cores: bfloat16, int8 and int4, which bfloat16 holds
/// exactly.
template <typename Stored>
constexpr bool kIsOnTensorCores = std::is_same_v<Stored, __nv_bfloat16> || Format<Stored>::kScaled;

/// The number of inputs must be a multiple of this.
template <typename Stored>
constexpr int kWholeInputs = Format<Stored>::kBits == 4 ? static_cast<int>(kInt4Group) : kPieceInputs<Stored>;

/// A lane's part of a piece: 16 bytes of output `group` of a tile, and of `group` + 8.
template <typename Stored>
struct WeightPiece {
  static constexpr bool kScaled = Format<Stored>::kScaled, kExchanges = Format<Stored>::kBits == 4;

  unsigned words[2][4];
  float scales[2];

  __device__ __forceinline__ void request(const WeightRow<Stored> (&rows)[2], int input, int in) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (input < in) {
        ld_global_nc_no_allocate(words[half], rows[half].values + input / Format<Stored>::kInElement);
        if constexpr (kScaled) scales[half] = rows[half].scale_once(input);
      }
    }
  }

  /// Gives lane j word j of the load of each lane of its output, in the order of the lanes.
  __device__ __forceinline__ void exchange(int lane) {
#pragma unroll
    for (int distance = 1; distance < kLanesOfOutput; distance *= 2) {
      const bool upper = (lane & distance) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & distance) != 0) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned& first = words[half][i];
          unsigned& second = words[half][i + distance];
          const unsigned other = __shfl_xor_sync(kAllLanes, upper ? first : second, distance);
          (upper ? first : second) = other;
        }
      }
    }
  }

  /// Two of the inputs 8 n to 8 n + 7 in the words of one output, packed into a register.
  __device__ __forceinline__ unsigned pair(int half, int n, int i) const {
    if constexpr (kScaled) {
      const int first = n * kInputsAtOnce + 2 * i;
      return pack<__nv_bfloat16>(weight_of_load<Stored>(words[half], first),
                                 weight_of_load<Stored>(words[half], first + 1));
    } else {
      return words[half][i];
    }
  }
};

/// A lane's 8 inputs of one row of x, each as a sum of three bfloat16 numbers. Two neighbours share a
/// register.
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

/// Computes norm(x) W for up to kTiles · 8 rows. `in` must be a multiple of kWholeInputs. A block computes 16
/// outputs; in a gated product, 16 columns of the gate and the columns that they gate. All kMmaThreads
/// threads of a block share each output.
template <int kTiles, int kMmaThreads, typename Stored, typename Store>
__global__ __launch_bounds__(kMmaThreads) void multiply_on_tensor_cores(const float* x, RowNorm norm,
                                                                        WeightRows<Stored> weight, int rows,
                                                                        int in, int out, Store store) {
  constexpr int kMmaWarps = kMmaThreads / kWarp;
  constexpr int kMatrices = kTakesPairs<Store> ? 2 : 1;
  static_assert(kGateColumns == kMmaColumns);
  using Piece = WeightPiece<Stored>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / kLanesOfOutput, lane_of_output = lane % kLanesOfOutput;
  const int first_column = static_cast<int>(blockIdx.x) * kMmaColumns * kMatrices;
  const int pieces = divide_up(in, kPieceInputs<Stored>);

  // Outputs past the end repeat the last one; nothing stores them.
  WeightRow<Stored> of_output[kMatrices][2];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_output[m][half] = weight[min(first_column + m * kMmaColumns + half * 8 + group, out - 1)];
    }
  }
  Piece ahead[kPiecesAhead][kMatrices];
  const auto request = [&](int piece, Piece(&to)[kMatrices]) {
    const int input = piece * kPieceInputs<Stored> + lane_of_output * kInputsOfLoad<Stored>;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) to[m].request(of_output[m], input, in);
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
  // Adds the products of 8 inputs of each lane, from input i of x on, with part n of the lane's words.
  const auto multiply = [&](const Piece(&own)[kMatrices], int n, int i, float(&to)[kMatrices][kTiles][4]) {
    NormParameters<kInputsAtOnce> parameters{};
    if (norm.kind != NormKind::kNone) parameters = norm.parameters<kInputsAtOnce>(i);
    unsigned a[kMatrices][2][4];
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int p = 0; p < 4; ++p) a[m][step][p] = own[m].pair(p % 2, n, 2 * step + p / 2);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kMmaRows + group;
      Vector<float, 8> values = load_vector<8>(x + static_cast<std::int64_t>(min(row, rows - 1)) * in + i);
      if (norm.kind != NormKind::kNone) values = norm.apply(scales[row], values, parameters);
      const SplitPiece split(values);
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int term = 2; term >= 0; --term) {
            mma_m16n8k16<__nv_bfloat16>(to[m][tile], a[m][step], split.terms[term][2 * step],
                                        split.terms[term][2 * step + 1]);
          }
        }
      }
    }
  };
  // Adds the sums of a group's products, times the group's scales for the two outputs.
  const auto add_scaled = [&](const float(&group_sums)[kMatrices][kTiles][4], int m, float upper,
                              float lower) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][tile][i] += group_sums[m][tile][i] * (i < 2 ? upper : lower);
    }
  };
  const auto multiply_piece = [&](int piece, Piece(&own)[kMatrices]) {
    if (piece >= pieces) return;
    const int first = piece * kPieceInputs<Stored>;
    if constexpr (!Piece::kScaled) {
      multiply(own, 0, first + lane_of_output * kInputsAtOnce, sums);
    } else if constexpr (!Piece::kExchanges) {
      float group_sums[kMatrices][kTiles][4] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        multiply(own, n, first + (2 * lane_of_output + n) * kInputsAtOnce, group_sums);
      }
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) add_scaled(group_sums, m, own[m].scales[0], own[m].scales[1]);
    } else {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) own[m].exchange(lane);
#pragma unroll
      for (int n = 0; n < kLanesOfOutput; ++n) {
        const int group_first = first + n * static_cast<int>(kInt4Group);
        if (group_first >= in) break;
        float group_sums[kMatrices][kTiles][4] = {};
        multiply(own, n, group_first + lane_of_output * kInputsAtOnce, group_sums);
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          add_scaled(group_sums, m, __shfl_sync(kAllLanes, own[m].scales[0], n, kLanesOfOutput),
                     __shfl_sync(kAllLanes, own[m].scales[1], n, kLanesOfOutput));
        }
      }
    }
  };
  for (int first = warp; first < pieces; first += kPiecesAhead * kMmaWarps) {
#pragma unroll
    for (int i = 0; i < kPiecesAhead; ++i) {
      const int piece = first + i * kMmaWarps;
      multiply_piece(piece, ahead[i]);
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
