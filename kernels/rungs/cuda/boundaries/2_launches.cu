// The host starts all kernels without waiting, and the stream keeps their order. So the host runs ahead of
// the GPU, as long as a launch takes less time than a kernel.
#include "kernels/rungs/cuda/boundaries/chain.cuh"

namespace staircase::rungs::gpu_boundaries {
namespace {

__global__ void multiply(Chain c, int layer) {
  Weights weights;
  weights.request(c, layer, own_warp());
  weights.multiply(c, layer, own_warp());
}

void start(const Chain& c, Stream stream) {
  for (int layer = 0; layer < c.layers; ++layer)
    launch("a layer was started", stream, blocks(divide_up(c.width, kThreads / 32)), kThreads, 0, multiply, c,
           layer);
}

}  // namespace

constexpr BoundaryRung kLaunches{"2-launches", "the stream keeps the order", start};

}  // namespace staircase::rungs::gpu_boundaries
