// run: starts many operations at once. Starting a kernel costs the host some microseconds, longer than a
// small model's kernel runs. A graph holds many launches with their arguments, and one call starts them all.
//
// A graph is valid only for exactly the launches that it was captured from. So run() first lets `work` list
// its operations without running them, or uses a key that its caller guarantees. Listing the operations of a
// token takes the host as long as the GPU needs for some kernels. When the same list comes a second time, its
// launches are captured in a graph, and from then on the graph is launched instead. Values that change from
// run to run, such as the positions of a batch, must be in memory. A cache that has moved or grown, another
// number of tokens or another model produces another list, so no graph needs to be invalidated. The list
// includes this device's memory for intermediate results.
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

namespace staircase {
namespace {

using cuda::check;

/// The maximum number of lists to keep. A cache that grows with every token makes a new list for each token,
/// which never recurs.
constexpr std::size_t kMostRecordings = 64;

/// Whether a call failed only because memory is short. If so, clears the error.
bool lacks_memory(cudaError_t status) {
  if (status != cudaErrorMemoryAllocation) return false;
  cudaGetLastError();
  return true;
}

/// Captures the launches of `work` in a graph; returns null if memory for it is short.
cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a graph was begun");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    // An error of this call only repeats the error of the call that threw.
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) cudaGetLastError();
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "a graph was ended");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (!lacks_memory(status)) check(status, "a graph was made");
  return executable;
}

}  // namespace

void CudaDevice::run(const std::function<void()>& work, std::span<const std::uint64_t> key) {
  struct Running {  // restores the state, even after an exception
    CudaDevice& device;
    explicit Running(CudaDevice& d) : device(d) { device.running_ = true; }
    ~Running() {
      device.running_ = false;
      device.list_.reset();
    }
  } const running(*this);

  constexpr std::size_t kOfSomeDozenBlocks = 4096, kOfOwnMemory = 16;
  list_.emplace(key.empty() ? kOfSomeDozenBlocks : key.size() + kOfOwnMemory);
  list_->add(key.empty());
  for (const std::uint64_t number : key) list_->add(number);
  if (key.empty()) work();
  for (const Tensor* memory : {&scratch_, &zeros_, &projected_, &operand_, &widened_}) list_->add(*memory);
  cuda::OperationList list = *std::exchange(list_, std::nullopt);

  if (recordings_.size() >= kMostRecordings && !recordings_.contains(list)) recordings_.clear();
  const auto recording = recordings_.find(list);
  if (recording == recordings_.end()) {
    work();  // the first run lets memory grow and libraries load, which a graph cannot capture
    recordings_.emplace(std::move(list), nullptr);
    return;
  }
  Graph& graph = recording->second;
  if (!graph) graph.reset(capture(stream(), work));
  const cudaError_t status = graph ? cudaGraphLaunch(graph.get(), stream()) : cudaErrorMemoryAllocation;
  ++given_;
  if (!lacks_memory(status)) return check(status, "a graph was started");
  recordings_.clear();  // frees the GPU memory of all graphs; the work can run without them
  work();
}

}  // namespace staircase
