// Stands in for cuBLAS: the products in use, by their definition.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <vector>

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };

inline const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_EXECUTION_FAILED ? "the function failed to launch on the GPU"
                                                  : "unsupported value or parameter";
}

namespace cuda_emulation {

inline double cublas_operations = 0.0;  ///< since the program began, a multiply-add being two

inline cublasStatus_t cublas_status_of_call() {
  return gpu_is_lost() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

}  // namespace cuda_emulation

struct CudaEmulationCublas {
  cudaStream_t stream = nullptr;
  bool has_workspace = false;
};
using cublasHandle_t = CudaEmulationCublas*;

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (cuda_emulation::gpu_is_lost()) return CUBLAS_STATUS_EXECUTION_FAILED;
  *handle = new CudaEmulationCublas;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return cuda_emulation::cublas_status_of_call();
}
inline cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  *handle = {.stream = stream, .has_workspace = false};  // as it is written in cuBLAS's documentation
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  handle->has_workspace = workspace != nullptr && bytes > 0;
  return CUBLAS_STATUS_SUCCESS;
}

namespace cuda_emulation {

inline float load(const void* from, cudaDataType_t type, std::ptrdiff_t place) {
  return type == CUDA_R_16F    ? __half2float(static_cast<const __half*>(from)[place])
         : type == CUDA_R_16BF ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[place])
                               : static_cast<const float*>(from)[place];
}

/// Rows of `width` elements, `stride` apart, as float32 without gaps.
inline std::vector<float> widened(const void* from, cudaDataType_t type, int rows, int width, int stride) {
  std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
  float* to = values.data();
  for (std::ptrdiff_t row = 0; row < rows; ++row) {
    for (std::ptrdiff_t i = row * stride; i < row * stride + width; ++i) *to++ = load(from, type, i);
  }
  return values;
}

inline void store(float value, void* to, cudaDataType_t type, std::ptrdiff_t place) {
  if (type == CUDA_R_16F) {
    static_cast<__half*>(to)[place] = __float2half_rn(value);
  } else if (type == CUDA_R_16BF) {
    static_cast<__nv_bfloat16*>(to)[place] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(to)[place] = value;
  }
}

}  // namespace cuda_emulation

namespace cuda_emulation {

/// store(row, column, sum) for every element of Aᵀ B. A [k, m] and B [k, n] are stored by columns, which
/// begin so far apart.
template <typename Store>
void multiply(const void* a, cudaDataType_t a_type, int a_stride, const void* b, cudaDataType_t b_type,
              int b_stride, int m, int n, int k, const Store& store) {
  const std::vector<float> a_columns = widened(a, a_type, m, k, a_stride),
                           b_columns = widened(b, b_type, n, k, b_stride);
  for (std::ptrdiff_t column = 0; column < n; ++column) {
    const float* const right = b_columns.data() + column * k;
    for (std::ptrdiff_t row = 0; row < m; ++row) {
      const float* const left = a_columns.data() + row * k;
      // Eight sums, so that the compiler may use vectors.
      float sums[8] = {};
      int i = 0;
      for (; i + 8 <= k; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += left[i + j] * right[i + j];
      }
      for (; i < k; ++i) sums[i % 8] += left[i] * right[i];
      float sum = 0.0f;
      for (const float s : sums) sum += s;
      store(row, column, sum);
    }
  }
}

}  // namespace cuda_emulation

/// C = alpha · op(A) op(B) + beta · C with op(A) [m, k], op(B) [k, n] and C [m, n], all stored by columns.
inline cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_operation,
                                   cublasOperation_t b_operation, int m, int n, int k, const void* alpha,
                                   const void* a, cudaDataType_t a_type, int a_stride, const void* b,
                                   cudaDataType_t b_type, int b_stride, const void* beta, void* c,
                                   cudaDataType_t c_type, int c_stride, cublasComputeType_t,
                                   cublasGemmAlgo_t) {
  // Only products in use: there the elements that are multiplied with each other are adjacent in both
  // matrices.
  if (a_operation != CUBLAS_OP_T || b_operation != CUBLAS_OP_N || a_stride < k || b_stride < k ||
      c_stride < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // As the table of types in cuBLAS's documentation has it.
  if (a_type != b_type || (c_type != CUDA_R_32F && c_type != a_type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Without a workspace it would allocate one.
  if (handle->stream->capturing != nullptr && !handle->has_workspace) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (cuda_emulation::gpu_is_lost()) return CUBLAS_STATUS_EXECUTION_FAILED;
  const float factor = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  cuda_emulation::enqueue(handle->stream, [=] {
    cuda_emulation::cublas_operations += 2.0 * m * n * k;
    const auto store = [&](std::ptrdiff_t row, std::ptrdiff_t column, float sum) {
      const std::ptrdiff_t place = column * c_stride + row;
      // As in cuBLAS, beta 0 means that C is not read.
      const float kept = keep == 0.0f ? 0.0f : keep * cuda_emulation::load(c, c_type, place);
      cuda_emulation::store(factor * sum + kept, c, c_type, place);
    };
    cuda_emulation::multiply(a, a_type, a_stride, b, b_type, b_stride, m, n, k, store);
  });
  return CUBLAS_STATUS_SUCCESS;
}
