// The host starts a kernel and waits for its end, once for each layer. Every wait costs a round trip between
// the GPU and the host, about ten microseconds in which nothing is computed.
#include "kernels/rungs/cuda/boundaries/chain.cuh"

namespace staircase::rungs::gpu_boundaries {
namespace {

__global__ void multiply(Chain c, int layer) {
  Weights weights;
  weights.request(c, layer, own_warp());
  weights.multiply(c, layer, own_warp());
}

void start(const Chain& c, Stream stream) {
  for (int layer = 0; layer < c.layers; ++layer) {
    launch("a layer was started", stream, blocks(divide_up(c.width, kThreads / 32)), kThreads, 0, multiply, c,
           layer);
    check(cudaStreamSynchronize(stream), "a layer ran");
  }
}

}  // namespace

constexpr BoundaryRung kWaits{"1-waits", "the host waits for each layer", start};

}  // namespace staircase::rungs::gpu_boundaries
