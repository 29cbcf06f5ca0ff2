// The GPU itself: finding it, its memory, and copies to and from the host.
#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/cuda/launch.h"
#include "kernels/tuning.h"

namespace staircase {
namespace {

using cuda::check;

/// 1 MiB, enough for the tokens, positions and block tables of many passes.
constexpr std::int64_t kStagedNumbers = 1 << 18;

/// The size as a person writes it, such as "1.50 GB" or "23.4 MB".
std::string size_in_words(std::size_t bytes) {
  const double size = static_cast<double>(bytes);
  char text[32];
  std::snprintf(text, sizeof text, size < 1e9 ? "%.1f MB" : "%.2f GB",
                size < 1e9 ? size * 1e-6 : size * 1e-9);
  return text;
}

/// The version in words, such as "12.4", from CUDA's version number.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// The architectures that the kernels were compiled for, from nvcc: 750 is compute capability 7.5.
constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};

/// The compute capabilities that the kernels were compiled for, such as "7.5, 8.0, 9.0".
std::string architectures() {
  std::string text;
  for (const int architecture : kArchitectures) {
    if (!text.empty()) text += ", ";
    text += std::to_string(architecture / 100) + "." + std::to_string(architecture / 10 % 10);
  }
  return text;
}

/// Does nothing. A GPU that can run this kernel can also run all others.
__global__ void probe() {}

struct Gpu {
  cudaDeviceProp properties{};
  bool overlaps = false;  ///< a kernel may begin before the previous one ends
  bool has_tensor_cores = false;
};

/// Selects the first GPU. Throws std::runtime_error with a sentence that explains why no GPU can be used.
Gpu select_gpu() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    throw std::runtime_error("this machine has no NVIDIA driver");
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    throw std::runtime_error("the NVIDIA driver supports CUDA up to version " + cuda_version(driver) +
                             ", but this program was built with " + cuda_version(CUDART_VERSION) +
                             ": install a newer driver, or build with an older toolkit");
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    throw std::runtime_error(
        "the NVIDIA driver finds no GPU" +
        (visible == nullptr ? "" : std::string(" with CUDA_VISIBLE_DEVICES=") + visible));
  }
  check(status, "it was looked for");
  Gpu gpu;
  const cudaDeviceProp& properties = gpu.properties;
  check(cudaGetDeviceProperties(&gpu.properties, 0), "its properties were read");
  check(cudaSetDevice(0), "it was selected");
  cudaFuncAttributes attributes{};
  const cudaError_t usable = cudaFuncGetAttributes(&attributes, probe);
  if (usable == cudaErrorNoKernelImageForDevice || usable == cudaErrorInvalidDeviceFunction ||
      usable == cudaErrorUnsupportedPtxVersion) {
    throw std::runtime_error("the GPU " + std::string(properties.name) + " has compute capability " +
                             std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                             ", but this program was built for " + architectures() +
                             ": choose another with the build option gpu_arch");
  }
  check(usable, "the program was loaded");
  // Whether kernels can overlap depends on the architecture that they were compiled for. Whether a graph
  // preserves the overlap depends on the driver: from CUDA 12.3 on it does.
  gpu.overlaps = attributes.ptxVersion >= 90 && driver >= 12030;
  gpu.has_tensor_cores = attributes.ptxVersion >= 80;
  return gpu;
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(bool may_overlap) {
  return std::make_unique<CudaDevice>(may_overlap);
}

CudaDevice::CudaDevice(bool may_overlap) {
  const Gpu gpu = select_gpu();
  const cudaDeviceProp& properties = gpu.properties;
  overlaps_ = gpu.overlaps && may_overlap;
  has_tensor_cores_ = gpu.has_tensor_cores;
  card_ = properties.name;
  description_ = card_ + ", " + size_in_words(properties.totalGlobalMem);
  multiprocessors_ = properties.multiProcessorCount;
  l2_bytes_ = properties.l2CacheSize;
  has_bfloat16_ = properties.major >= 8;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "it was started");
  stream_.reset(stream);
  cublas_.emplace(*this);
  staging_ = page_locked(DType::kInt32, {kStagedNumbers});
  use({});
}

void CudaDevice::use(const cuda::Tuning& tuning) {
  wait_if_linked();
  tuning_ = std::make_unique<const cuda::Tuning>(tuning);
  recordings_.clear();  // they recorded launches of other forms
}

Tensor CudaDevice::page_locked(DType dtype, const Shape& shape) const {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes_of(dtype, shape)), "host memory was allocated");
  return Tensor(dtype, shape, std::shared_ptr<void>(memory, deleter(cudaFreeHost)));
}

Tensor CudaDevice::allocate(DType dtype, const Shape& shape) {
  wait_if_linked();
  const std::size_t bytes = bytes_of(dtype, shape);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which is reported here
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "its free memory was read");
    throw std::runtime_error("the GPU has too little memory: " + size_in_words(bytes) + " were requested, " +
                             size_in_words(free) + " of " + size_in_words(total) + " are free");
  }
  check(status, "memory was allocated");
  // The result of cudaFree does not matter: it fails only if the GPU is lost, and then the memory is lost
  // too.
  return Tensor(dtype, shape, std::shared_ptr<void>(memory, deleter(cudaFree)));
}

// CUDA may read the source of an asynchronous copy at any time until the copy is done. Whether it reads
// memory that is not page-locked before the call returns depends on the platform. A GPU that shares the
// host's page tables need not do so (CUDA Runtime API, "API synchronization behavior"). The caller may free
// or change its source at once, so the copy reads from memory that only this device writes.
void CudaDevice::copy_from_host(std::span<const std::int32_t> source, Tensor& destination) {
  check_not_running();
  ++given_;
  std::span<const std::byte> rest = std::as_bytes(source);
  for (std::byte* to = destination.data<std::byte>(); !rest.empty();) {
    if (staged_ == staging_.bytes()) wait();
    const std::size_t bytes = std::min(rest.size(), staging_.bytes() - staged_);
    std::byte* const from = staging_.data<std::byte>() + staged_;
    std::ranges::copy(rest.first(bytes), from);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()), "data was copied to it");
    staged_ += bytes;
    to += bytes;
    rest = rest.subspan(bytes);
  }
}

void CudaDevice::copy_to_host(const Tensor& source, std::span<std::byte> destination) {
  check_not_running();
  if (link_) wait();  // the copy itself would wait for the results without checking the other ranks
  check(cudaMemcpyAsync(destination.data(), source.data<void>(), destination.size_bytes(),
                        cudaMemcpyDeviceToHost, stream()),
        "results were copied from it");
  wait();
}

void CudaDevice::wait() {
  if (link_) link_->wait(stream());
  check(cudaStreamSynchronize(stream()), "it computed");
  staged_ = 0;
  started_ = 0;
}

std::span<float> CudaDevice::host_memory(const Tensor& source, Tensor& memory) {
  if (memory.size() < source.size()) {
    wait_if_linked();
    memory = Tensor();
    memory = page_locked(DType::kFloat32, source.shape());
  }
  return {memory.data<float>(), static_cast<std::size_t>(source.size())};
}

std::span<const float> CudaDevice::to_host(const Tensor& source, Tensor& memory) {
  const std::span<float> values = host_memory(source, memory);
  copy_to_host(source, std::as_writable_bytes(values));
  return values;
}

std::function<std::span<const std::int32_t>()> CudaDevice::start_to_host(const Tensor& source,
                                                                         Tensor& memory) {
  if (link_) return Device::start_to_host(source, memory);
  check_not_running();
  const std::span<float> values = host_memory(source, memory);
  check(cudaMemcpyAsync(values.data(), source.data<void>(), values.size_bytes(), cudaMemcpyDeviceToHost,
                        stream()),
        "results were copied from it");
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event was made");
  const std::shared_ptr<std::remove_pointer_t<cudaEvent_t>> copied(
      event, [](cudaEvent_t own) { cudaEventDestroy(own); });
  check(cudaEventRecord(event, stream()), "an event was recorded");
  return [copied, values] {
    check(cudaEventSynchronize(copied.get()), "it computed");
    return std::span(reinterpret_cast<const std::int32_t*>(values.data()), values.size());
  };
}

unsigned* CudaDevice::zeros(std::int64_t count) {
  if (zeros_.size() < count) {
    wait_if_linked();
    zeros_ = Tensor();
    zeros_ = allocate(DType::kInt32, {count});
    check(cudaMemsetAsync(zeros_.data<void>(), 0, zeros_.bytes(), stream()), "memory was set to 0");
  }
  return zeros_.data<unsigned>();
}

}  // namespace staircase
