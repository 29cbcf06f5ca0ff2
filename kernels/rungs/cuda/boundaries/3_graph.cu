// The launches are recorded once, as a graph, and the graph is launched for each token. The host then makes
// one call, however many layers the model has. The operands must keep the addresses that they had during the
// recording.
#include "kernels/rungs/cuda/boundaries/chain.cuh"

namespace staircase::rungs::gpu_boundaries {
namespace {

__global__ void multiply(Chain c, int layer) {
  Weights weights;
  weights.request(c, layer, own_warp());
  weights.multiply(c, layer, own_warp());
}

/// Records the launches of all layers as a graph.
void record(const Chain& c, Stream stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a graph was begun");
  for (int layer = 0; layer < c.layers; ++layer)
    launch("a layer was recorded", stream, blocks(divide_up(c.width, kThreads / 32)), kThreads, 0, multiply,
           c, layer);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "a graph was recorded");
  const cudaError_t status = cudaGraphInstantiate(c.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "a graph was made");
}

void start(const Chain& c, Stream stream) {
  if (*c.graph == nullptr) record(c, stream);
  check(cudaGraphLaunch(*c.graph, stream), "a graph was started");
}

}  // namespace

constexpr BoundaryRung kGraph{"3-graph", "one call for all launches", start};

}  // namespace staircase::rungs::gpu_boundaries
