// linear and query_key_value for one row, as in decoding: out = epilogue(norm(x) W + b).
//
// x [in], W as [out, in], out [out]. The product takes 2 · in · out operations and reads the weights once, so
// memory bandwidth is the limit. Reaching it takes enough bytes in flight (Little's law): at 4.2 TB/s and 700
// ns, 22 KB on each of 132 multiprocessors. In this kernel a thread holds all its weights of an output in
// registers: 48 bytes in bfloat16 with 768 inputs. A multiprocessor has room for 768 such threads, which is
// 36 KB.
//
//     kernel before   ═══════════════════╗ ends
//     this one            weights ───────╫──▶│ x, norm, products, sum │ out
//                         requested here ╝
//
// The weights do not depend on any kernel. So a thread requests them before it waits for the previous kernel,
// and they travel while that kernel ends. It loads x after the wait: x is 1/out as long as the weights, and
// each thread holds and normalizes its part of x in registers. kLanes threads share an output: a warp, which
// sums by shuffles without a barrier, or, for longer rows, the whole block. The longest row of Llama 3 70B
// has 28,672 inputs. In a block of 512 threads, each thread holds 56 of them, and their weights in 28 more
// registers. A multiprocessor has 128 registers for each of 512 threads.
//
// Weights of few bits fill fewer registers, so kLanes threads then compute several outputs at once. tuning.h
// chooses the number of threads for a product.
//
// The grid is one wave: all blocks are resident at the same time. If there are more outputs, a thread
// requests its next weights as soon as it has used the last ones, and sums while they travel.
#pragma once

#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/stores.cuh"
#include "kernels/cuda/weights.cuh"
#include "kernels/tuning.h"

namespace staircase::cuda {

/// The threads of a block, which holds a whole number of teams that share an output.
template <int kLanes>
constexpr int kTeamThreads = threads_of_block(kLanes);

/// The weights that one thread loads at once: 16 bytes.
template <typename Stored>
constexpr int kInputsOfLoad = 16 / static_cast<int>(sizeof(Stored)) * Format<Stored>::kInElement;

// Weights of 8 and 4 bits become floats without a conversion instruction, which is slower than other
// arithmetic. From 2^23 on, a float counts in ones: its bits 0x4b000000 | n are 2^23 + n. So one instruction
// moves a weight's byte into the lowest byte of 0x4b000000. Another subtracts 2^23, and also the number that
// was added to make the weight positive. The weight -2 in 8 bits, stored as 0xfe, becomes 0x7e with 128
// added:
//
//     0x4b00007e - (2^23 + 128) = 126 - 128 = -2
//
// In 4 bits, arithmetic would be the limit: bandwidth leaves time for about four instructions per weight. So
// nothing is subtracted from single weights. Between 16 and 32, the four highest bits of a float's fraction
// count in ones. One shift and one logical operation make 16 + n, where n is the weight with 8 added. The sum
// over a load's inputs is then too large by 24 Σ x, which is the same for all outputs:
//
//     Σ x w = Σ x (16 + n) - 24 Σ x

/// Weight number `i` of a load, without its scale.
template <typename Stored>
__device__ __forceinline__ float weight_of_load(const unsigned (&words)[4], int i) {
  if constexpr (std::is_same_v<Stored, __nv_bfloat16>) {  // the upper half of a float
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  } else if constexpr (Format<Stored>::kScaled) {
    constexpr bool kBytes = Format<Stored>::kInElement == 1;
    const unsigned word = words[kBytes ? i / 4 : i / 8];
    // Four weights, one per byte, with 128 or 8 added. In 4 bits, a byte's lower half is the first of two
    // weights.
    const unsigned bytes = kBytes ? word ^ 0x80808080u : (i % 2 == 0 ? word : word >> 4) & 0x0f0f0f0fu;
    const int byte = kBytes ? i % 4 : i % 8 / 2;
    // In the selector, 0 to 3 name the bytes of `bytes`, and 4 to 7 the bytes of 0x4b000000.
    const unsigned bits = __byte_perm(bytes, 0x4b000000u, 0x7440u | static_cast<unsigned>(byte));
    return __uint_as_float(bits) - (0x1p23f + (kBytes ? 128.0f : 8.0f));
  } else {
    return widen(reinterpret_cast<const Stored*>(words)[i]);
  }
}

/// The number that raised_weight adds to each weight.
template <typename Stored>
constexpr float kRaisedBy = std::is_same_v<Stored, Int4Pair> ? 24.0f : 0.0f;

/// Weight number `i` of a load, without its scale, plus kRaisedBy.
template <typename Stored>
__device__ __forceinline__ float raised_weight(const unsigned (&words)[4], int i) {
  if constexpr (std::is_same_v<Stored, Int4Pair>) {  // a word's first weight is in its lowest bits
    const int shift = 19 - i % 8 * 4;
    const unsigned word = shift < 0 ? words[i / 8] >> -shift : words[i / 8] << shift;
    return __uint_as_float(and_or(word, 0x00780000u, 0x41800000u));
  } else {
    return weight_of_load<Stored>(words, i);
  }
}

/// A thread's part of the weights of one output: kLoads loads, spaced kLanes loads apart.
template <typename Stored, int kLanes, int kLoads>
struct OwnWeights {
  static constexpr int kInputs = kInputsOfLoad<Stored>;

  unsigned loads[kLoads][4];
  float scales[Format<Stored>::kScaled ? kLoads : 1];

  /// Requests the weights without filling the L1 cache, because no other thread reads them. Loads nothing
  /// beyond the row's end.
  __device__ __forceinline__ void request(const WeightRow<Stored>& row, int lane, int in) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int i = (l * kLanes + lane) * kInputs;
      if (i < in) {
        ld_global_nc_no_allocate(loads[l], row.values + i / WeightRow<Stored>::kInElement);
        if constexpr (Format<Stored>::kScaled) scales[l] = row.scale_once(i);
      }
    }
  }

  /// Computes by how much the sum over each load is too large, because the weights are raised.
  static __device__ __forceinline__ void add_up(const float (&x)[kLoads * kInputs], float (&excess)[kLoads]) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      float sum = 0.0f;
#pragma unroll
      for (int v = 0; v < kInputs; ++v) sum += x[l * kInputs + v];
      excess[l] = kRaisedBy<Stored> * sum;
    }
  }

  /// Returns the product of this thread's weights with its part of x.
  __device__ __forceinline__ float times(const float (&x)[kLoads * kInputs], const float (&excess)[kLoads],
                                         int lane, int in) const {
    float total = 0.0f;
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      if ((l * kLanes + lane) * kInputs < in) {
        float sum = Format<Stored>::kScaled ? -excess[l] : total;
#pragma unroll
        for (int v = 0; v < kInputs; ++v) sum += x[l * kInputs + v] * raised_weight<Stored>(loads[l], v);
        total = Format<Stored>::kScaled ? total + sum * scales[l] : sum;
      }
    }
    return total;
  }
};

/// The sum over the kLanes threads that share an output, returned to each of them.
template <int kLanes>
__device__ __forceinline__ float sum_of_lanes(float value) {
  if constexpr (kLanes == kWarp) {
    return warp_sum(value);
  } else {
    static_assert(kLanes == kTeamThreads<kLanes>);
    return block_sum<kLanes>(value);
  }
}

/// Loads a thread's part of norm(x) into registers. If a row of weights is padded to a whole group
/// (weights.cuh), its last load may reach past the inputs; x is 0 at these places.
template <typename Stored, int kLanes, int kLoads>
__device__ __forceinline__ void load_normalized(const float* x, const RowNorm& norm, int lane, int in,
                                                float (&own)[kLoads * kInputsOfLoad<Stored>]) {
  constexpr int kInputs = kInputsOfLoad<Stored>, kAtOnce = 4;
  // Calls use(place in `own`, place in x) for each piece of kAtOnce elements.
  const auto for_each = [&](const auto& use) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int first = (l * kLanes + lane) * kInputs;
      if (first < in) {
#pragma unroll
        for (int v = 0; v < kInputs; v += kAtOnce) {
          if (!Format<Stored>::kScaled || first + v < in) use(l * kInputs + v, first + v);
        }
      }
    }
  };
  if constexpr (Format<Stored>::kScaled) {
    for (float& value : own) value = 0.0f;
  }
  for_each([&](int to, int from) {
    *reinterpret_cast<Vector<float, kAtOnce>*>(own + to) = load_vector<kAtOnce>(x + from);
  });
  if (norm.kind == NormKind::kNone) return;
  RowScale row{0.0f, 1.0f};
  if (norm.kind == NormKind::kLayer) {
    float sum = 0.0f;
    for_each([&](int to, int) {
#pragma unroll
      for (int v = 0; v < kAtOnce; ++v) sum += own[to + v];
    });
    row.mean = sum_of_lanes<kLanes>(sum) / static_cast<float>(in);
  }
  float squares = 0.0f;
  for_each([&](int to, int) {
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) squares += (own[to + v] - row.mean) * (own[to + v] - row.mean);
  });
  row.scale = 1.0f / sqrtf(sum_of_lanes<kLanes>(squares) / static_cast<float>(in) + norm.epsilon);
  for_each([&](int to, int from) {
    auto* const piece = reinterpret_cast<Vector<float, kAtOnce>*>(own + to);
    *piece = norm.apply(row, *piece, norm.parameters<kAtOnce>(from));
  });
}

/// Multiplies one row, normalized or not, by all weights. `in` must be a multiple of kInputsOfLoad, or of 4
/// if weights share scales, and at most kLanes · kLoads · kInputsOfLoad. kLanes threads compute kOutputs
/// outputs at a time; in a gated product, these are columns of the gate and the columns that they gate.
template <int kLanes, int kLoads, int kOutputs, int kResident, typename Stored, typename Store>
__global__ __launch_bounds__(kTeamThreads<kLanes>,
                             kResident) void multiply_one_row(const float* x, RowNorm norm,
                                                              WeightRows<Stored> weight, int in, int results,
                                                              Store store) {
  constexpr bool kPairs = kTakesPairs<Store>;
  constexpr int kColumns = kPairs ? 2 * kOutputs : kOutputs;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int team = static_cast<int>(blockIdx.x * kTeamThreads<kLanes> + threadIdx.x) / kLanes;
  const int step = static_cast<int>(gridDim.x) * (kTeamThreads<kLanes> / kLanes) * kOutputs;

  // Outputs past the end repeat the last one, to avoid a branch in the loop.
  const auto column_of = [&](int first, int c) {
    const int output = min(first + c % kOutputs, results - 1);
    if constexpr (kPairs)
      return StoreGated::gate_column(output) + c / kOutputs * static_cast<int>(kGateColumns);
    return output;
  };
  OwnWeights<Stored, kLanes, kLoads> own[kColumns];
  float bias = 0.0f;  // the bias of the result that this lane stores
  [[maybe_unused]] float gated_bias = 0.0f;
  const auto request = [&](int first) {
    if (first >= results) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) own[c].request(weight[column_of(first, c)], lane, in);
    if (lane >= kOutputs) return;
    bias = store.bias_of(column_of(first, lane));
    if constexpr (kPairs) gated_bias = store.bias_of(column_of(first, lane + kOutputs));
  };
  int first = team * kOutputs;
  request(first);
  let_next_begin();
  wait_for_previous();

  alignas(16) float values[kLoads * kInputsOfLoad<Stored>];
  load_normalized<Stored, kLanes, kLoads>(x, norm, lane, in, values);
  float excess[kLoads] = {};
  if constexpr (kRaisedBy<Stored> != 0.0f) own[0].add_up(values, excess);
  for (; first < results; first += step) {
    const int output = first + lane;
    const bool stores = lane < kOutputs && output < results;
    const float own_bias = bias;
    [[maybe_unused]] const float other_bias = gated_bias;
    [[maybe_unused]] float residual = 0.0f;
    if constexpr (std::is_same_v<Store, StoreRow>) residual = stores ? store.residual(output) : 0.0f;
    float sums[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] = own[c].times(values, excess, lane, in);
    request(first + step);  // the weights travel while the lanes sum
    float own_sum = 0.0f;
    [[maybe_unused]] float gated = 0.0f;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float sum = sum_of_lanes<kLanes>(sums[c]);
      if (lane == c) own_sum = sum;
      if (kPairs && lane == c - kOutputs) gated = sum;
    }
    if (!stores) continue;
    if constexpr (kPairs) {
      store.of_row(0)(output, own_sum + own_bias, gated + other_bias);
    } else if constexpr (std::is_same_v<Store, StoreRow>) {
      store.put(output, own_sum + own_bias, residual);
    } else {
      store.of_row(0)(output, own_sum + own_bias);
    }
  }
}

}  // namespace staircase::cuda
