// The CPU device itself: its name, its memory and its threads.
#include "kernels/cpu/cpu_device.h"

#include <hwy/detect_targets.h>
#include <hwy/targets.h>

#include "kernels/platform.h"

namespace staircase {

int available_processors() {
  return platform::processors();
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

std::string CpuDevice::description() const {
  // Highway lists targets as bits, the best one lowest: those of this machine that the kernels were compiled
  // for.
  const std::int64_t targets = hwy::SupportedTargets() & (HWY_TARGETS);
  return "CPU, " + std::to_string(team_.size()) + (team_.size() == 1 ? " thread, " : " threads, ") +
         hwy::TargetName(targets & -targets);
}

Tensor CpuDevice::allocate(DType dtype, std::vector<std::int64_t> shape) {
  const std::size_t bytes = bytes_of(dtype, shape);
  return Tensor(dtype, std::move(shape), platform::allocate(bytes));
}

void CpuDevice::copy_from_host(std::span<const std::int32_t> source, Tensor& destination) {
  std::copy(source.begin(), source.end(), destination.data<std::int32_t>());
}

void CpuDevice::copy_to_host(const Tensor& source, std::span<std::byte> destination) {
  std::copy_n(source.data<std::byte>(), destination.size(), destination.begin());
}

std::span<float> CpuDevice::to_host(const Tensor& source, Tensor&) {
  return {source.data<float>(), static_cast<std::size_t>(source.size())};
}

}  // namespace staircase
