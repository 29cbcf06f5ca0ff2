// Each kernel starts while the previous one still runs (programmatic dependent launch), requests its weights,
// and then waits. So memory is no longer idle between two layers.
#include "kernels/rungs/cuda/boundaries/chain.cuh"

namespace staircase::rungs::gpu_boundaries {
namespace {

__global__ void multiply(Chain c, int layer) {
  Weights weights;
  weights.request(c, layer, own_warp());
  let_next_begin();
  wait_for_previous();  // from here on, x is complete
  weights.multiply(c, layer, own_warp());
}

void start(const Chain& c, Stream stream) {
  stream.overlaps = true;
  for (int layer = 0; layer < c.layers; ++layer)
    launch("a layer was started", stream, blocks(divide_up(c.width, kThreads / 32)), kThreads, 0, multiply, c,
           layer);
}

}  // namespace

constexpr BoundaryRung kBeforeTheWait{"4-before-the-wait",
                                      "weights are requested before the layer before has ended", start};

}  // namespace staircase::rungs::gpu_boundaries
