// The limit for everything that is read from a GPU's memory once: a copy by the runtime itself.
#include "bench/gpu.h"

#ifdef STAIRCASE_HAVE_CUDA

#include <cuda_runtime.h>

#include <algorithm>

#include "common/error.h"

namespace staircase::bench {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess)
    throw Error("the GPU failed while memory was copied: {}", cudaGetErrorString(status));
}

struct Buffer {
  void* memory = nullptr;
  explicit Buffer(std::size_t bytes) { check(cudaMalloc(&memory, bytes)); }
  ~Buffer() { cudaFree(memory); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

struct Event {
  cudaEvent_t event{};
  Event() { check(cudaEventCreate(&event)); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

}  // namespace

double copy_gb_per_s(std::size_t buffer_bytes) {
  constexpr int kCopies = 10, kRounds = 7;
  const Buffer from(buffer_bytes), to(buffer_bytes);
  const Event begin, end;
  cudaStream_t stream = nullptr;
  double fastest = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    check(cudaEventRecord(begin.event, stream));
    for (int i = 0; i < kCopies; ++i) {
      check(cudaMemcpyAsync(to.memory, from.memory, buffer_bytes, cudaMemcpyDeviceToDevice, stream));
    }
    check(cudaEventRecord(end.event, stream));
    check(cudaEventSynchronize(end.event));
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    // Every byte is read and written.
    const double bytes = 2.0 * kCopies * static_cast<double>(buffer_bytes);
    fastest = std::max(fastest, bytes / (1e6 * static_cast<double>(milliseconds)));
  }
  return fastest;
}

}  // namespace staircase::bench

#else

double staircase::bench::copy_gb_per_s(std::size_t) {
  return 0.0;  // there is no device to ask for it
}

#endif
