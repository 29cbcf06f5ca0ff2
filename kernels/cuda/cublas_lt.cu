// How to call cuBLASLt: describe the operation, the matrices and their alignment. cuBLASLt chooses the
// algorithm that it expects to be fastest, and then runs it. It caches its choice, so only the first query is
// expensive.
#include "kernels/cuda/cublas_lt.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace staircase::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("the GPU failed while ") + what + ": " +
                           cublasLtGetStatusString(status));
}

constexpr const char* kDescribed = "a product was described to cuBLAS";

template <typename Value>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), kDescribed);
}

template <typename Value>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), kDescribed);
}

/// cuBLAS stores matrices by columns, so our rows, `stride` elements apart, are its columns.
cublasLtMatrixLayoutOpaque_t layout(DType dtype, std::int64_t rows, std::int64_t width, std::int64_t stride) {
  const cudaDataType_t type = dtype == DType::kFloat16    ? CUDA_R_16F
                              : dtype == DType::kBFloat16 ? CUDA_R_16BF
                                                          : CUDA_R_32F;
  cublasLtMatrixLayoutOpaque_t layout;
  check(cublasLtMatrixLayoutInit(&layout, type, static_cast<std::uint64_t>(width),
                                 static_cast<std::uint64_t>(rows), stride),
        kDescribed);
  return layout;
}

/// The largest power of two that divides the address, up to 256, the alignment that cuBLASLt assumes by
/// default.
std::uint32_t alignment(const void* memory) {
  return 1u << std::min(std::countr_zero(reinterpret_cast<std::uintptr_t>(memory)), 8);
}

}  // namespace

CublasLt::CublasLt(Device& device) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cuBLAS was started");
  handle_.reset(handle);
  // 32 MiB, as NVIDIA recommends for its newest GPUs.
  workspace_ = device.allocate(DType::kFloat32, {std::int64_t{8} << 20});
}

bool CublasLt::multiply(const Tensor& x, const Weight& weight, const Tensor& bias, float keep, float* out,
                        std::int64_t out_width, Stream stream) const {
  const bool has_bias = bias.size() > 0;
  const DType dtype = weight.packed.dtype();
  const std::int64_t rows = x.dim(0), in = weight.in_features, columns = weight.out_features;

  // cuBLAS sees the transposes: outᵀ = W xᵀ, with W given as its transpose.
  cublasLtMatmulDescOpaque_t operation;
  check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), kDescribed);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (has_bias) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data<const void>());
  }
  cublasLtMatrixLayoutOpaque_t weight_layout = layout(dtype, columns, in, in),
                               x_layout = layout(dtype, rows, in, in),
                               out_layout = layout(DType::kFloat32, rows, columns, out_width);

  const void* const weights = weight.packed.data<void>();
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), kDescribed);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_.bytes()});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(weights));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(x.data<void>()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(out));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(out));

  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_.get(), &operation, &weight_layout, &x_layout, &out_layout,
                                     &out_layout, &preference, 1, &best, &found);
  if (status == CUBLAS_STATUS_SUCCESS) status = found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED && has_bias) return false;
  check(status, "cuBLAS chose how to multiply");

  const float one = 1.0f;
  check(cublasLtMatmul(handle_.get(), &operation, &one, weights, &weight_layout, x.data<void>(), &x_layout,
                       &keep, out, &out_layout, out, &out_layout, &best.algo, workspace_.data<void>(),
                       workspace_.bytes(), stream),
        "cuBLAS multiplied matrices");
  return true;
}

}  // namespace staircase::cuda
