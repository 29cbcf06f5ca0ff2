// run: many operations at once. Starting a kernel costs the host some microseconds, longer than a small
// model's kernel runs. A graph holds all launches of a piece of work, with their arguments, and one call
// starts it.
//
// A graph is valid only for exactly the launches that it was captured from. So run() first lets `work` list
// its operations without doing them, or takes a key that its caller vouches for. Listing the operations of a
// token takes the host as long as some kernels take the GPU. When the same list comes a second time, its
// launches are captured in a graph, and from then on the graph is launched instead. Values that change from
// run to run, such as the positions of a batch, must be in memory. A cache that has moved or grown, another
// number of tokens, another model: each of these makes another list, so nothing needs to be invalidated. The
// list includes this device's memory for intermediate results.
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

namespace staircase {
namespace {

using cuda::check;

/// The most lists to keep. A cache that grows with every token makes a list for each, which never comes
/// again.
constexpr std::size_t kMostRecordings = 64;

/// Whether a call failed for memory alone. The error counts as reported then.
bool lacks_memory(cudaError_t status) {
  if (status != cudaErrorMemoryAllocation) return false;
  cudaGetLastError();
  return true;
}

/// The launches of `work` as a graph, or null if there is no memory for one.
cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a graph was begun");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    // An error here is that of the call that threw.
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
  struct Running {  // restores the state, also after an exception
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
    work();  // memory grows and libraries load here, which a graph cannot capture
    recordings_.emplace(std::move(list), nullptr);
    return;
  }
  Graph& graph = recording->second;
  if (!graph) graph.reset(capture(stream(), work));
  const cudaError_t status = graph ? cudaGraphLaunch(graph.get(), stream()) : cudaErrorMemoryAllocation;
  ++given_;
  if (!lacks_memory(status)) return check(status, "a graph was started");
  recordings_.clear();  // graphs need memory of the GPU, and the work can do without
  work();
}

}  // namespace staircase
