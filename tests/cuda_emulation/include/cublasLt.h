// Stands in for cuBLASLt: the products and epilogues in use, by their definitions. It refuses what cuBLASLt
// would refuse, and what its documentation allows but this project does not use.
#pragma once

#include <cublas_v2.h>

enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

inline const char* cublasLtGetStatusString(cublasStatus_t status) {
  return cublasGetStatusString(status);
}

namespace cuda_emulation {

/// What the heuristic knows for a product with an epilogue; a test may choose.
enum class EpilogueAnswer { kAlgorithm, kNoAlgorithm, kNotSupported };
inline EpilogueAnswer epilogue_answer = EpilogueAnswer::kAlgorithm;

inline int products = 0;  ///< launched or captured since the program began

/// Attributes are handed over as bytes, whose number must be that of the attribute.
template <typename Value>
cublasStatus_t assign(Value& to, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace cuda_emulation

// ── What a program describes ──

struct CudaEmulationCublasLt {};
using cublasLtHandle_t = CudaEmulationCublasLt*;

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const cublasStatus_t status = cuda_emulation::cublas_status_of_call();
  if (status == CUBLAS_STATUS_SUCCESS) *handle = new CudaEmulationCublasLt;
  return status;
}
/// Waits for all streams (cuBLAS documentation, "cublasLtCreate").
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!cuda_emulation::never_ends()) cuda_emulation::finish_all();
  delete handle;
  return cuda_emulation::cublas_status_of_call();
}

/// A matrix stored by columns, which begin `stride` elements apart.
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;

inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                               std::uint64_t rows, std::uint64_t columns,
                                               std::int64_t stride) {
  *layout = {type, rows, columns, stride};
  return stride < static_cast<std::int64_t>(rows) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a_operation = CUBLAS_OP_N, b_operation = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const float* bias = nullptr;
};
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;

inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                             cudaDataType_t scale) {
  *operation = {compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return cuda_emulation::assign(operation->a_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return cuda_emulation::assign(operation->b_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return cuda_emulation::assign(operation->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return cuda_emulation::assign(operation->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};  ///< of A, B, C and D
};
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void* value, std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return cuda_emulation::assign(preference->workspace, value, bytes);
  }
  return cuda_emulation::assign(
      preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

// ── Products ──

/// Takes all of the workspace that it may, and relies on the alignments that it was promised.
struct cublasLtMatmulAlgo_t {
  std::uint64_t workspace;
  std::uint32_t alignments[4];
};

struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
};

namespace cuda_emulation {

/// Whether D = alpha · op(A) op(B) + beta · C is one of the products in use (cuBLAS documentation, section
/// "cublasLtMatmul", the table of types). In these, the elements that are multiplied with each other are
/// adjacent in both matrices, A and B have one type, and C, D and the bias are float32.
inline cublasStatus_t status_of_product(const cublasLtMatmulDescOpaque_t& operation,
                                        const cublasLtMatrixLayoutOpaque_t& a,
                                        const cublasLtMatrixLayoutOpaque_t& b,
                                        const cublasLtMatrixLayoutOpaque_t& c,
                                        const cublasLtMatrixLayoutOpaque_t& d) {
  if (operation.a_operation != CUBLAS_OP_T || operation.b_operation != CUBLAS_OP_N || a.rows != b.rows ||
      a.columns != d.rows || b.columns != d.columns || c.rows != d.rows || c.columns != d.columns ||
      c.stride != d.stride) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool has_bias = operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (has_bias != (operation.bias != nullptr)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool known = operation.compute == CUBLAS_COMPUTE_32F && operation.scale == CUDA_R_32F &&
                     a.type == b.type && c.type == CUDA_R_32F && d.type == CUDA_R_32F;
  return known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace cuda_emulation

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int requested,
                                                     cublasLtMatmulHeuristicResult_t* results, int* count) {
  using cuda_emulation::EpilogueAnswer;
  *count = 0;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status = cuda_emulation::status_of_product(*operation, *a, *b, *c, *d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
      cuda_emulation::epilogue_answer != EpilogueAnswer::kAlgorithm) {
    return cuda_emulation::epilogue_answer == EpilogueAnswer::kNotSupported ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                            : CUBLAS_STATUS_SUCCESS;
  }
  *count = 1;
  results[0] = {};
  results[0].algo.workspace = results[0].workspaceSize = preference->workspace;
  std::copy_n(preference->alignments, 4, results[0].algo.alignments);
  return CUBLAS_STATUS_SUCCESS;
}

/// D = epilogue(alpha · op(A) op(B) + beta · C): the bias, one number for each row of D.
inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                                     const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                     cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                     cublasLtMatrixLayout_t c_layout, void* d,
                                     cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                                     void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const cublasStatus_t status =
      cuda_emulation::status_of_product(*operation, *a_layout, *b_layout, *c_layout, *d_layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  // In a graph or not, it allocates nothing.
  if (algorithm == nullptr || algorithm->workspace > workspace_bytes ||
      reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const void* const matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<std::uintptr_t>(matrices[i]) % algorithm->alignments[i] != 0) {
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
  }
  if (cuda_emulation::gpu_is_lost()) return CUBLAS_STATUS_EXECUTION_FAILED;
  ++cuda_emulation::products;
  const float factor = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  // What is described may be gone when a graph is launched.
  const auto multiply = [=, operation = *operation, a_layout = *a_layout, b_layout = *b_layout,
                         d_stride = d_layout->stride, used = algorithm->workspace] {
    std::memset(workspace, 0xff, used);
    const auto store = [&](std::ptrdiff_t row, std::ptrdiff_t column, float sum) {
      const std::ptrdiff_t place = column * d_stride + row;
      float value = factor * sum;
      // As in cuBLAS, beta 0 means that C is not read.
      if (keep != 0.0f) value += keep * static_cast<const float*>(c)[place];
      if (operation.bias != nullptr) value += operation.bias[row];
      static_cast<float*>(d)[place] = value;
    };
    const auto number = [](auto size) { return static_cast<int>(size); };
    cuda_emulation::multiply(a, a_layout.type, number(a_layout.stride), b, b_layout.type,
                             number(b_layout.stride), number(a_layout.columns), number(b_layout.columns),
                             number(a_layout.rows), store);
  };
  cuda_emulation::enqueue(stream, multiply);
  return CUBLAS_STATUS_SUCCESS;
}
