// A rung and its chain of products in GPU memory, for tests and measurements.
#pragma once

#include "kernels/rungs/cuda/boundaries/boundaries.h"
#include "kernels/rungs/cuda/gpu_memory.h"

namespace staircase::rungs::gpu_boundaries {

class Prepared {
 public:
  /// Copies x [width] and w [layers, width, width] from the host. Throws if the GPU fails.
  Prepared(const BoundaryRung& rung, const std::vector<float>& w, const std::vector<float>& x) : rung_(rung) {
    c_.width = static_cast<int>(x.size());
    c_.layers = static_cast<int>(w.size() / (x.size() * x.size()));
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "the GPU was looked at");
    c_.multiprocessors = properties.multiProcessorCount;
    given_x_ = gpu_.put(x);
    c_.w = gpu_.put(w);
    c_.x = gpu_.put(std::vector<float>(2 * x.size() + 1));
    c_.arrived = gpu_.put(std::vector<unsigned>(1));
    c_.graph = &graph_;
  }
  Prepared(const Prepared&) = delete;
  ~Prepared() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  /// Starts the kernel that writes x, and returns when it has ended.
  void write_x() {
    copy_x();
    gpu_.wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(c_, gpu_.stream());
    gpu_.wait();
  }
  /// Fills x with 0.5, then starts the kernel that writes x and the rung, without a wait between them.
  void run_after_kernel() {
    gpu_.clear(c_.x, 2 * static_cast<std::size_t>(c_.width));
    copy_x();
    run();
  }

  /// Returns the last x [width] and the number after both vectors in memory, which is still 0.5 if the rung
  /// wrote nothing beyond them.
  std::vector<float> result() const {
    const auto width = static_cast<std::size_t>(c_.width);
    const std::vector<float> both = gpu_.get(c_.x, 2 * width + 1);
    const auto first = both.begin() + c_.layers % 2 * c_.width;
    std::vector<float> last(first, first + c_.width);
    last.push_back(both.back());
    return last;
  }

 private:
  void copy_x() { copy_by_kernel(given_x_, c_.x, c_.width, gpu_.stream()); }

  BoundaryRung rung_;
  Chain c_{};
  GpuMemory gpu_;
  float* given_x_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace staircase::rungs::gpu_boundaries
