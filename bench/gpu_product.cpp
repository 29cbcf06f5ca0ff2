// The speed limit for prefill: products by cuBLAS alone.
#include "bench/gpu.h"

#ifdef STAIRCASE_HAVE_CUDA

#include <cublas_v2.h>

#include <random>

#include "bench/gpu_events.h"

namespace staircase::bench {
namespace {

constexpr const char* kWhat = "products by cuBLAS were measured";

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error("the GPU failed while {}: {}", kWhat, cublasGetStatusString(status));
}

void check(cudaError_t status) {
  bench::check(status, kWhat);
}

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Cublas = Owned<cublasHandle_t, cublasDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using ExecutableGraph = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

/// Returns a cuBLAS handle that works on `stream` with `workspace` as scratch memory.
Cublas make_cublas(cudaStream_t stream, const Tensor& workspace) {
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle));
  Cublas cublas(handle);
  check(cublasSetStream(handle, stream));
  check(cublasSetWorkspace(handle, workspace.data<void>(), workspace.bytes()));
  return cublas;
}

/// Records the operations that `work` puts on `stream` as a graph, so no product waits for the host to start
/// it.
template <typename Work>
ExecutableGraph record(cudaStream_t stream, const Work& work) {
  work();  // cuBLAS loads its kernels at their first call, which is not allowed during a recording
  check(cudaStreamSynchronize(stream));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  cudaGraph_t captured = nullptr;
  check(cudaStreamEndCapture(stream, &captured));
  const Graph graph(captured);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, captured, 0));
  return ExecutableGraph(executable);
}

/// Returns a matrix [rows, columns] of random numbers between -1 and 1. With zeros, a GPU would draw less
/// power and run faster.
Tensor random_matrix(Device& device, std::mt19937& random, std::int64_t rows, std::int64_t columns,
                     DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (float& value : values) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
  const HostArray array{values.data(), DType::kFloat32, rows, columns};
  return device.load_weight(array, WeightOrder::kOutputFirst, dtype).packed;
}

/// y = x Wᵀ. x [rows, in], W [out, in] and y [rows, out] have the same type; the sums are float32.
void multiply(cublasHandle_t cublas, const Tensor& x, const Tensor& weight, const Tensor& y) {
  const float one = 1.0f, zero = 0.0f;
  const auto rows = static_cast<int>(x.dim(0)), in = static_cast<int>(x.dim(1)),
             out = static_cast<int>(weight.dim(0));
  const cudaDataType_t type = x.dtype() == DType::kFloat16    ? CUDA_R_16F
                              : x.dtype() == DType::kBFloat16 ? CUDA_R_16BF
                                                              : CUDA_R_32F;
  // cuBLAS stores matrices by columns, so our matrices appear transposed to it.
  check(cublasGemmEx(cublas, CUBLAS_OP_T, CUBLAS_OP_N, out, rows, in, &one, weight.data<void>(), type, in,
                     x.data<void>(), type, in, &zero, y.data<void>(), type, out, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT));
}

}  // namespace

double cublas_tflop_per_s(Device& device, DType dtype, std::int64_t rows,
                          const std::vector<Product>& products, int copies) {
  constexpr int kPasses = 10;
  std::mt19937 random;
  std::vector<Tensor> x, y, weights;
  double operations = 0.0;
  for (const Product& product : products) {
    x.push_back(random_matrix(device, random, rows, product.in, dtype));
    y.push_back(device.allocate(dtype, {rows, product.out}));
    operations += 2.0 * static_cast<double>(copies * rows * product.in * product.out);
  }
  for (int copy = 0; copy < copies; ++copy) {
    for (const Product& product : products) {
      weights.push_back(random_matrix(device, random, product.out, product.in, dtype));
    }
  }
  // 32 MiB, as NVIDIA recommends for its newest GPUs.
  const Tensor workspace = device.allocate(DType::kFloat32, {std::int64_t{8} << 20});
  check(cudaDeviceSynchronize());  // the device fills the matrices on its own stream

  const Stream stream = make_stream();
  const Cublas cublas = make_cublas(stream.get(), workspace);
  const ExecutableGraph pass = record(stream.get(), [&] {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::size_t product = i % products.size();
      multiply(cublas.get(), x[product], weights[i], y[product]);
    }
  });
  const double seconds = fastest_seconds(stream.get(), [&] {
    for (int i = 0; i < kPasses; ++i) check(cudaGraphLaunch(pass.get(), stream.get()));
  });
  return kPasses * operations / seconds / 1e12;
}

}  // namespace staircase::bench

#else

double staircase::bench::cublas_tflop_per_s(Device&, DType, std::int64_t, const std::vector<Product>&, int) {
  return 0.0;  // without CUDA no GPU device exists, so nothing calls this
}

#endif
