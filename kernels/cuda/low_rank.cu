// add_low_rank: out[r] += Σ_k scales[k] (x[r] · down[k]) up[k] over the ranks k of the row's adapter.
//
// x [rows, in], down [ranks, in], up [ranks, out], out [rows, out]. Each row takes 2 · rank · (in + out)
// operations and reads 4 or 2 bytes of the adapter for every two operations. The limit is bandwidth, or
// launch latency for a few rows.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_tensors.cuh"

namespace staircase {
namespace cuda {

constexpr int kLowRankThreads = 256;
constexpr int kRanksAtOnce = 32;

/// A LowRank as the kernel needs it.
template <typename Stored>
struct Ranks {
  const Stored *down, *up;
  const float* scales;
  const std::int32_t *columns, *firsts;
};

/// One block per row. Each warp computes x · down[k] for some ranks, and then each thread adds some outputs.
template <typename Element, typename Stored>
__global__ __launch_bounds__(kLowRankThreads) void add_ranks(const Element* x, const std::int32_t* adapters,
                                                             Ranks<Stored> ranks, int in, int width,
                                                             float* out) {
  __shared__ float inside[kRanksAtOnce];
  begin_after_previous();
  const std::int64_t row = blockIdx.x;
  const std::int32_t adapter = adapters[row];
  if (adapter == kNoAdapter) return;  // the whole block
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t last = ranks.firsts[adapter + 1];
  for (std::int64_t first = ranks.firsts[adapter]; first < last; first += kRanksAtOnce) {
    const int count = static_cast<int>(last - first < kRanksAtOnce ? last - first : kRanksAtOnce);
    for (int k = warp; k < count; k += kLowRankThreads / kWarp) {
      float sum = 0.0f;
      for (int i = lane; i < in; i += kWarp)
        sum += widen(x[row * in + i]) * widen(ranks.down[(first + k) * in + i]);
      sum = warp_sum(sum);
      if (lane == 0) inside[k] = sum * ranks.scales[first + k];
    }
    __syncthreads();
    for (int column = thread; column < width; column += kLowRankThreads) {
      float sum = out[row * width + column];
      for (int k = 0; k < count; ++k) {
        const std::int32_t* const own = ranks.columns + 2 * (first + k);
        if (own[0] <= column && column < own[1])
          sum += inside[k] * widen(ranks.up[(first + k) * width + column]);
      }
      out[row * width + column] = sum;
    }
    __syncthreads();
  }
}

}  // namespace cuda

void CudaDevice::add_low_rank(const Tensor& x, const Tensor& adapters, const LowRank& change, Tensor& out) {
  if (listed(Operation::kAddLowRank, x, adapters, change, out)) return;
  cuda::with_type(x.dtype(), x.data<void>(), [&]<typename Element>(const Element* rows) {
    cuda::with_type(change.down.dtype(), change.down.data<void>(), [&]<typename Stored>(const Stored* down) {
      const cuda::Ranks<Stored> ranks{down, change.up.data<Stored>(), change.scales.data<float>(),
                                      change.columns.data<std::int32_t>(),
                                      change.firsts.data<std::int32_t>()};
      cuda::launch("add_low_rank was started", stream(), cuda::blocks(x.dim(0)), cuda::kLowRankThreads, 0,
                   cuda::add_ranks<Element, Stored>, rows, adapters.data<std::int32_t>(), ranks,
                   static_cast<int>(x.dim(1)), static_cast<int>(out.dim(1)), out.data<float>());
    });
  });
}

}  // namespace staircase
