// A product rung and its operands in GPU memory, for tests and measurements.
#pragma once

#include <algorithm>

#include "kernels/half.h"
#include "kernels/rungs/cuda/gpu_memory.h"
#include "kernels/rungs/cuda/product/product.h"

namespace staircase::rungs::gpu_product {

class Prepared {
 public:
  /// Copies x [rows, n_in] and w [n_out, n_in] from the host, and stores w in the type that the rung reads.
  /// Throws if the GPU fails.
  Prepared(const ProductRung& rung, int rows, int n_in, int n_out, const float* w, const float* x)
      : rung_(rung) {
    p_.rows = rows;
    p_.n_in = n_in;
    p_.n_out = n_out;
    p_.stride = divide_up(n_in, 32) * 32;
    const std::vector<float> padded_x = padded(x, rows), padded_w = padded(w, n_out);
    given_x_ = gpu_.put(padded_x);
    p_.x = gpu_.put(std::vector<float>(padded_x.size()));
    p_.rounded_x = gpu_.put(std::vector<std::uint16_t>(padded_x.size()));
    p_.y = gpu_.put(std::vector<float>(outputs() + 1));
    if (rung.stored == Stored::kFloat32) {
      p_.w = gpu_.put(padded_w);
    } else {
      std::vector<std::uint16_t> halves;
      for (const float value : padded_w) halves.push_back(bfloat16_from_float32(value));
      p_.w = gpu_.put(halves);
    }
  }

  /// Starts the kernel that writes x, and returns when it has ended.
  void write_x() {
    copy_x();
    gpu_.wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(p_, gpu_.stream());
    gpu_.wait();
  }
  /// Fills y with 0.5, then starts the kernels that write x and y and the rung, without a wait between them.
  void run_after_kernel() {
    gpu_.clear(p_.y, outputs());
    copy_x();
    run();
  }

  /// Returns y [rows, n_out] and the number after it in memory, which is still 0.5 if the rung wrote nothing
  /// beyond y.
  std::vector<float> result() const { return gpu_.get(p_.y, outputs() + 1); }

 private:
  std::size_t outputs() const {
    return static_cast<std::size_t>(p_.rows) * static_cast<std::size_t>(p_.n_out);
  }

  std::vector<float> padded(const float* values, int count) const {
    const auto n_in = static_cast<std::size_t>(p_.n_in), stride = static_cast<std::size_t>(p_.stride);
    std::vector<float> rows(static_cast<std::size_t>(count) * stride);
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row)
      std::copy_n(values + row * n_in, n_in, rows.data() + row * stride);
    return rows;
  }

  void copy_x() { copy_by_kernel(given_x_, const_cast<float*>(p_.x), p_.rows * p_.stride, gpu_.stream()); }

  ProductRung rung_;
  Product p_{};
  GpuMemory gpu_;
  float* given_x_ = nullptr;
};

}  // namespace staircase::rungs::gpu_product
