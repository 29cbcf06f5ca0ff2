// run: many operations at once. Starting a kernel costs the host some microseconds, which for a small model
// is more than the kernel itself takes. A graph holds all launches of a piece of work, arguments included,
// and is started by one call.
//
// A graph is only right for the very launches that it was made of, so run() first lets `work` list what it
// asks for, without doing it. When the same list comes for the second time, its launches go into a graph, and
// from then on the graph is launched instead. What may differ from time to time must lie in memory, as the
// positions of a batch do. A cache that has moved or grown, another number of tokens, another model: all of
// these make another list, so there is nothing to invalidate. Intermediate results that operations keep in
// memory of this device belong to the list too.
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

namespace staircase {
namespace {

using cuda::check;

/// Lists that are remembered. A cache that grows with every token makes one for each, which never comes
/// again.
constexpr std::size_t kMostRecordings = 64;

/// The launches of `work` as a graph.
cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a graph was begun");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "a graph was ended");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "a graph was made");
  return executable;
}

}  // namespace

void CudaDevice::run(const std::function<void()>& work) {
  struct Running {  // puts things back whatever happens
    CudaDevice& device;
    explicit Running(CudaDevice& d) : device(d) { device.running_ = true; }
    ~Running() {
      device.running_ = false;
      device.list_.reset();
    }
  } const running(*this);

  list_.emplace();
  work();
  list_->add(scratch_);
  list_->add(zeros_);
  list_->add(operand_);
  list_->add(widened_);
  cuda::OperationList list = *std::exchange(list_, std::nullopt);

  if (recordings_.size() >= kMostRecordings && !recordings_.contains(list)) recordings_.clear();
  Recording& recording = recordings_[std::move(list)];
  ++recording.times;
  if (recording.times == 1) {
    work();  // memory grows now and libraries load, which a graph cannot hold
    return;
  }
  if (!recording.graph) recording.graph.reset(capture(stream(), work));
  check(cudaGraphLaunch(recording.graph.get(), stream()), "a graph was started");
}

}  // namespace staircase
