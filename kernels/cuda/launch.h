// Turns errors of the CUDA runtime into exceptions, and launches kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace staircase::cuda {

/// The number of threads that run in lockstep. Lane masks have one bit for each of them.
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

template <typename Integer>
__host__ __device__ constexpr Integer divide_up(Integer a, Integer b) {
  return (a + b - 1) / b;
}

/// Throws std::runtime_error unless `status` is success: "the GPU failed while attention was started: ...".
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which is reported here; otherwise NCCL would report it as its own
  throw std::runtime_error(std::string("the GPU failed while ") + what + ": " + cudaGetErrorString(status));
}

/// A CUDA stream. Kernels run on it in order.
struct Stream {
  cudaStream_t handle = nullptr;
  bool overlaps = false;  ///< a kernel may begin before the previous one ends, see wait_for_previous

  operator cudaStream_t() const { return handle; }
};

/// Starts kernel(arguments...) on a grid of blocks; does nothing for an empty grid. `what` completes the
/// sentence of an error, see `check`.
template <typename... Parameters, typename... Arguments>
void launch(const char* what, Stream stream, dim3 grid, int threads, std::size_t shared_bytes,
            void (*kernel)(Parameters...), Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = stream.overlaps ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

/// Converts a dimension of a tensor to a dimension of a grid.
inline unsigned blocks(std::int64_t count) {
  return static_cast<unsigned>(count);
}

}  // namespace staircase::cuda
