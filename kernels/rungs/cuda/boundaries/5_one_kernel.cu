// One kernel computes all layers, with one block per multiprocessor. Between two layers its blocks wait for
// each other (*grid barrier*). That works only if all blocks run at the same time, which a cooperative launch
// guarantees; otherwise the launch fails. The first weights of the next layer are requested before the
// barrier.
#include "kernels/rungs/cuda/boundaries/chain.cuh"

namespace staircase::rungs::gpu_boundaries {
namespace {

/// Waits until all blocks have arrived. `arrived` keeps counting, so it needs no reset.
__device__ void wait_for_all_blocks(unsigned* arrived) {
  __syncthreads();  // the whole block has stored its outputs
  if (threadIdx.x == 0) {
    __threadfence();
    const unsigned turn = atomicAdd(arrived, 1u) / gridDim.x;
    while (atomicAdd(arrived, 0u) / gridDim.x == turn) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}

__global__ void multiply(Chain c) {
  const int first = own_warp(), step = static_cast<int>(gridDim.x) * (kThreads / 32);
  Weights weights;
  weights.request(c, 0, first);
  for (int layer = 0; layer < c.layers; ++layer) {
    for (int output = first; output < c.width; output += step) {
      weights.multiply(c, layer, output);
      weights.request(c, layer, output + step);
    }
    if (layer + 1 == c.layers) return;
    weights.request(c, layer + 1, first);
    wait_for_all_blocks(c.arrived);
  }
}

void start(const Chain& c, Stream stream) {
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks(c.multiprocessors));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, multiply, c), "all layers were started");
}

}  // namespace

constexpr BoundaryRung kOneKernel{"5-one-kernel", "a barrier of all blocks between layers", start};

}  // namespace staircase::rungs::gpu_boundaries
