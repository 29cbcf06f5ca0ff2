// The speed limit for data that is read from GPU memory once: a copy by the CUDA runtime itself.
#include "bench/gpu.h"

#ifdef STAIRCASE_HAVE_CUDA

#include "bench/gpu_events.h"

namespace staircase::bench {

double copy_gb_per_s(Device& device, std::size_t buffer_bytes) {
  constexpr int kCopies = 10;
  const auto floats = static_cast<std::int64_t>(buffer_bytes / sizeof(float));
  const Tensor from = device.allocate(DType::kFloat32, {floats}),
               to = device.allocate(DType::kFloat32, {floats});
  cudaStream_t stream = nullptr;
  const double seconds = fastest_seconds(stream, [&] {
    for (int i = 0; i < kCopies; ++i) {
      check(
          cudaMemcpyAsync(to.data<void>(), from.data<void>(), from.bytes(), cudaMemcpyDeviceToDevice, stream),
          "memory was copied");
    }
  });
  // Every byte is read once and written once.
  return 2.0 * kCopies * static_cast<double>(from.bytes()) / seconds / 1e9;
}

}  // namespace staircase::bench

#else

double staircase::bench::copy_gb_per_s(Device&, std::size_t) {
  return 0.0;  // without CUDA no GPU device exists, so nothing calls this
}

#endif
