// Products of many rows, by cuBLASLt: the part of cuBLAS that adds a bias to a product before it stores it.
// It has GELU as well, but does not say how exact, and so that is not left to it.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/device.h"

namespace staircase::cuda {

class CublasLt {
 public:
  /// Takes memory of `device` to work in. Throws std::runtime_error when cuBLASLt cannot be started.
  explicit CublasLt(Device& device);

  /// out = x W + b + keep · out, in the order of the stream. x [rows, in_features] of the type of W, bias
  /// [out_features] float32 or empty, out [rows, out_features] float32, with rows that begin out_width
  /// elements apart; where `keep` is 0, out is not read. Returns false, and does nothing, where cuBLASLt
  /// cannot add the bias; that never happens without one.
  bool multiply(const Tensor& x, const Weight& weight, const Tensor& bias, float keep, float* out,
                std::int64_t out_width, Stream stream) const;

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
  };

  std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, Destroy> handle_;
  Tensor workspace_;
};

}  // namespace staircase::cuda
