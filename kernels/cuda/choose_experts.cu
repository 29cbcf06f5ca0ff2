// choose_experts: the k largest scores of each row, and their shares.
//
// scores [rows, n_experts], chosen and shares [rows, k]. A warp reads its row once from memory and then k
// more times from the cache. The limit is launch latency.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kChooseThreads = 128;

/// One warp per row. Each step finds the expert that follows the previous one in the order of falling scores.
__global__ __launch_bounds__(kChooseThreads) void choose(const float* scores, int rows, int n_experts,
                                                         RouterSoftmax softmax, int k, std::int32_t* chosen,
                                                         float* shares) {
  begin_after_previous();
  const int row = static_cast<int>(blockIdx.x * kChooseThreads + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  const float* const own = scores + static_cast<std::int64_t>(row) * n_experts;
  const std::int64_t place = static_cast<std::int64_t>(row) * k;
  Found last{INFINITY, -1};
  float largest = 0.0f, sum = 0.0f;
  for (int j = 0; j < k; ++j) {
    Found next{-INFINITY, n_experts};
    for (int e = lane; e < n_experts; e += kWarp) {
      const float score = own[e] == own[e] ? own[e] : -INFINITY;  // NaN comes last
      const bool is_left = score < last.value || (score == last.value && e > last.index);
      if (is_left) next = larger(next, {score, e});
    }
    last = warp_largest(next);
    if (j == 0) largest = own[last.index];
    const float weight = expf(own[last.index] - largest);
    sum += weight;
    if (lane == 0) {
      chosen[place + j] = last.index;
      shares[place + j] = weight;
    }
  }
  if (softmax == RouterSoftmax::kAll) {
    sum = 0.0f;
    for (int e = lane; e < n_experts; e += kWarp) sum += expf(own[e] - largest);
    sum = warp_sum(sum);
  }
  if (lane > 0) return;
  for (int j = 0; j < k; ++j) shares[place + j] /= sum;
}

}  // namespace cuda

void CudaDevice::choose_experts(const Tensor& scores, RouterSoftmax softmax, Tensor& chosen, Tensor& shares) {
  if (listed(Operation::kChooseExperts, scores, softmax, chosen, shares)) return;
  const std::int64_t rows = scores.dim(0);
  cuda::launch("choose_experts was started", stream(),
               cuda::blocks(cuda::divide_up<std::int64_t>(rows * cuda::kWarp, cuda::kChooseThreads)),
               cuda::kChooseThreads, 0, cuda::choose, scores.data<float>(), static_cast<int>(rows),
               static_cast<int>(scores.dim(1)), softmax, static_cast<int>(chosen.dim(1)),
               chosen.data<std::int32_t>(), shares.data<float>());
}

}  // namespace staircase
