// Products of many rows with cuBLASLt, the part of cuBLAS that can add a bias to a product before storing it.
// It also offers GELU, but does not document its precision, so we compute GELU ourselves.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/device.h"

namespace staircase::cuda {

class CublasLt {
 public:
  /// Allocates its workspace on `device`. Throws std::runtime_error if cuBLASLt cannot be started.
  explicit CublasLt(Device& device);

  /// Starts out = x W + b + keep · out on the stream. x [rows, in_features] has the type of W, bias
  /// [out_features] is float32 or empty, and out [rows, out_features] is float32 with rows out_width elements
  /// apart. If `keep` is 0, out is not read. If cuBLASLt cannot add the bias, returns false and does nothing;
  /// this never happens without a bias.
  bool multiply(const Tensor& x, const Weight& weight, const Tensor& bias, float keep, float* out,
                std::int64_t out_width, Stream stream) const;

  /// Keeps cuBLASLt until the process ends, because destroying it would wait for all kernels.
  void abandon() { static_cast<void>(handle_.release()); }

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
  };

  std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, Destroy> handle_;
  Tensor workspace_;
};

}  // namespace staircase::cuda
