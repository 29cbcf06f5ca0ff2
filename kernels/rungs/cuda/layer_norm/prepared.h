// A layer norm rung and its operands in GPU memory, for tests and measurements.
#pragma once

#include "kernels/rungs/cuda/gpu_memory.h"
#include "kernels/rungs/cuda/layer_norm/layer_norm.h"

namespace staircase::rungs::gpu_layer_norm {

class Prepared {
 public:
  /// Copies x [rows, width], and weight and bias [width], from the host. Throws if the GPU fails.
  Prepared(const LayerNormRung& rung, const std::vector<float>& x, const std::vector<float>& weight,
           const std::vector<float>& bias)
      : rung_(rung), count_(x.size()) {
    given_x_ = gpu_.put(x);
    n_.x = gpu_.put(std::vector<float>(count_));
    n_.y = gpu_.put(std::vector<float>(count_ + 1));
    n_.weight = gpu_.put(weight);
    n_.bias = gpu_.put(bias);
    n_.width = static_cast<int>(weight.size());
    n_.rows = static_cast<int>(count_ / weight.size());
    n_.epsilon = 1e-5f;
  }

  /// Starts the kernel that writes x, and returns when it has ended.
  void write_x() {
    copy_x();
    gpu_.wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(n_, gpu_.stream());
    gpu_.wait();
  }
  /// Fills y with 0.5, then starts the kernel that writes x and the rung, without a wait between them.
  void run_after_kernel() {
    gpu_.clear(n_.y, count_);
    copy_x();
    run();
  }

  /// Returns y [rows, width] and the number after it in memory, which is still 0.5 if the rung wrote nothing
  /// beyond y.
  std::vector<float> result() const { return gpu_.get(n_.y, count_ + 1); }

 private:
  void copy_x() {
    copy_by_kernel(given_x_, const_cast<float*>(n_.x), static_cast<int>(count_), gpu_.stream());
  }

  LayerNormRung rung_;
  LayerNorm n_{};
  GpuMemory gpu_;
  std::size_t count_;
  float* given_x_ = nullptr;
};

}  // namespace staircase::rungs::gpu_layer_norm
