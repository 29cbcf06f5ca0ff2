// Stands in for cuBLAS: the one product that is in use, as its definition reads.
#pragma once

#include <cuda_runtime.h>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };

using cublasHandle_t = struct CudaEmulationCublas*;

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) {
  return CUBLAS_STATUS_SUCCESS;
}

/// C = alpha · op(A) op(B) + beta · C with op(A) [m, k], op(B) [k, n] and C [m, n], all stored by columns.
inline cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t a_operation,
                                   cublasOperation_t b_operation, int m, int n, int k, const void* alpha,
                                   const void* a, cudaDataType_t, int a_stride, const void* b, cudaDataType_t,
                                   int b_stride, const void* beta, void* c, cudaDataType_t, int c_stride,
                                   cublasComputeType_t, cublasGemmAlgo_t) {
  // Only what is in use: there the elements that are multiplied with each other lie side by side in both
  // matrices.
  if (a_operation != CUBLAS_OP_T || b_operation != CUBLAS_OP_N || a_stride < k || b_stride < k ||
      c_stride < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float one = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  for (std::ptrdiff_t column = 0; column < n; ++column) {
    const float* const right = static_cast<const float*>(b) + column * b_stride;
    for (std::ptrdiff_t row = 0; row < m; ++row) {
      const float* const left = static_cast<const float*>(a) + row * a_stride;
      // Eight sums, so that the compiler may use vectors.
      float sums[8] = {};
      int i = 0;
      for (; i + 8 <= k; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += left[i + j] * right[i + j];
      }
      for (; i < k; ++i) sums[i % 8] += left[i] * right[i];
      float sum = 0.0f;
      for (const float s : sums) sum += s;
      float& to = static_cast<float*>(c)[column * c_stride + row];
      // As in cuBLAS, beta 0 means that C is not read.
      to = one * sum + (keep == 0.0f ? 0.0f : keep * to);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
