// The GPU itself: whether there is one, its memory, and its copies.
#include "kernels/cuda/cuda_device.h"

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace staircase {
namespace {

using cuda::check;

/// The oldest GPUs that the kernels are compiled for: Turing.
constexpr int kOldestMajor = 7, kOldestMinor = 5;

/// "1.50 GB"
std::string gigabytes(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) * 1e-9);
  return text;
}

/// Selects the first GPU, or throws a sentence that says why there is none to use.
cudaDeviceProp select_gpu() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    throw std::runtime_error("this machine has no NVIDIA driver");
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    throw std::runtime_error("the NVIDIA driver knows CUDA up to version " + std::to_string(driver / 1000) +
                             "." + std::to_string(driver % 1000 / 10) +
                             ", which is too old for this program");
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    throw std::runtime_error("the NVIDIA driver finds no GPU");
  }
  check(status, "it was looked for");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "it was asked for its properties");
  if (properties.major * 10 + properties.minor < kOldestMajor * 10 + kOldestMinor) {
    throw std::runtime_error("the GPU " + std::string(properties.name) + " has compute capability " +
                             std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                             ", which is too old: 7.5 or newer is needed");
  }
  check(cudaSetDevice(0), "it was selected");
  return properties;
}

}  // namespace

std::unique_ptr<Device> make_cuda_device() {
  return std::make_unique<CudaDevice>();
}

CudaDevice::CudaDevice() {
  const cudaDeviceProp properties = select_gpu();
  description_ = std::string(properties.name) + ", " + gigabytes(properties.totalGlobalMem);
  multiprocessors_ = properties.multiProcessorCount;
  has_bfloat16_ = properties.major >= 8;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "it was started");
  stream_.reset(stream);
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS ||
      cublasSetStream(handle, stream) != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error("cuBLAS does not start on the GPU " + std::string(properties.name));
  }
  cublas_.reset(handle);
}

Tensor CudaDevice::allocate(DType dtype, std::vector<std::int64_t> shape) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t dim : shape) bytes *= static_cast<std::size_t>(dim);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is told here and not again
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "it was asked for its free memory");
    throw std::runtime_error("the GPU has too little memory: " + gigabytes(bytes) + " were asked for, " +
                             gigabytes(free) + " of " + gigabytes(total) + " are free");
  }
  check(status, "memory was asked for");
  // A lost GPU fails here too, and its memory is gone anyway.
  return Tensor(dtype, std::move(shape), std::shared_ptr<void>(memory, [](void* m) { cudaFree(m); }));
}

void CudaDevice::copy_from_host(std::span<const std::int32_t> source, Tensor& destination) {
  check(cudaMemcpyAsync(destination.data<void>(), source.data(), source.size_bytes(), cudaMemcpyHostToDevice,
                        stream()),
        "data was copied to it");
}

void CudaDevice::copy_to_host(const Tensor& source, std::span<float> destination) {
  check(cudaMemcpyAsync(destination.data(), source.data<void>(), destination.size_bytes(),
                        cudaMemcpyDeviceToHost, stream()),
        "results were copied from it");
  // Kernels run behind the host's back: whatever went wrong in them is known here at the latest.
  check(cudaStreamSynchronize(stream()), "it computed");
}

float* CudaDevice::grown(Tensor& memory, std::int64_t floats) {
  if (memory.size() < floats) {
    memory = Tensor();
    memory = allocate(DType::kFloat32, {floats});
  }
  return memory.data<float>();
}

}  // namespace staircase
