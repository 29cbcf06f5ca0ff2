// GPU memory with a stream, for tests and measurements of rungs.
#pragma once

#include <vector>

#include "kernels/cuda/launch.h"

namespace staircase::rungs {

/// Allocates GPU memory and frees all of it in the destructor. All functions throw if the GPU fails.
class GpuMemory {
 public:
  GpuMemory() {
    cuda::check(cudaStreamCreateWithFlags(&stream_.handle, cudaStreamNonBlocking), "a stream was made");
  }
  GpuMemory(const GpuMemory&) = delete;
  ~GpuMemory() {
    for (void* const memory : allocated_) cudaFree(memory);
    cudaStreamDestroy(stream_.handle);
  }

  cuda::Stream stream() const { return stream_; }

  void wait() const { cuda::check(cudaStreamSynchronize(stream_), "a rung ran"); }

  /// Copies the numbers to GPU memory and returns their address.
  template <typename T>
  T* put(const std::vector<T>& values) {
    void* memory = nullptr;
    cuda::check(cudaMalloc(&memory, values.size() * sizeof(T)), "memory was allocated");
    allocated_.push_back(memory);
    cuda::check(
        cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_),
        "numbers were copied");
    wait();
    return static_cast<T*>(memory);
  }

  /// Fills `count` results and the number after them with 0.5. So a result that a run leaves out shows, and
  /// so does a write beyond the end.
  void clear(float* results, std::size_t count) const {
    const std::vector<float> unwritten(count + 1, 0.5f);
    cuda::check(cudaMemcpyAsync(results, unwritten.data(), unwritten.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream_),
                "a result was cleared");
    wait();
  }

  std::vector<float> get(const float* from, std::size_t count) const {
    std::vector<float> values(count);
    cuda::check(cudaMemcpyAsync(values.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost, stream_),
                "a result was copied");
    wait();
    return values;
  }

 private:
  cuda::Stream stream_;
  std::vector<void*> allocated_;
};

/// Copies `count` numbers with a kernel, so that a rung follows another kernel, as in a model. Defined in
/// kernels/rungs/cuda/copy_by_kernel.cu.
void copy_by_kernel(const float* from, float* to, int count, cuda::Stream stream);

}  // namespace staircase::rungs
