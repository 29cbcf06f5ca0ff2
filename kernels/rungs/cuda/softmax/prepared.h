// A softmax rung and its operands in GPU memory, for tests and measurements.
#pragma once

#include "kernels/rungs/cuda/gpu_memory.h"
#include "kernels/rungs/cuda/softmax/softmax.h"

namespace staircase::rungs::gpu_softmax {

class Prepared {
 public:
  /// Copies x [rows, width] from the host. Throws if the GPU fails.
  Prepared(const SoftmaxRung& rung, const std::vector<float>& x, int width) : rung_(rung), count_(x.size()) {
    given_x_ = gpu_.put(x);
    s_.x = gpu_.put(std::vector<float>(count_));
    s_.y = gpu_.put(std::vector<float>(count_ + 1));
    s_.width = width;
    s_.rows = static_cast<int>(count_) / width;
    s_.parts = gpu_.put(std::vector<Part>(static_cast<std::size_t>(s_.rows) * kBlocks));
  }

  /// Starts the kernel that writes x, and returns when it has ended.
  void write_x() {
    copy_x();
    gpu_.wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(s_, gpu_.stream());
    gpu_.wait();
  }
  /// Fills y with 0.5, then starts the kernel that writes x and the rung, without a wait between them.
  void run_after_kernel() {
    gpu_.clear(s_.y, count_);
    copy_x();
    run();
  }

  /// Returns y [rows, width] and the number after it in memory, which is still 0.5 if the rung wrote nothing
  /// beyond y.
  std::vector<float> result() const { return gpu_.get(s_.y, count_ + 1); }

 private:
  void copy_x() {
    copy_by_kernel(given_x_, const_cast<float*>(s_.x), static_cast<int>(count_), gpu_.stream());
  }

  SoftmaxRung rung_;
  Softmax s_{};
  GpuMemory gpu_;
  std::size_t count_;
  float* given_x_ = nullptr;
};

}  // namespace staircase::rungs::gpu_softmax
