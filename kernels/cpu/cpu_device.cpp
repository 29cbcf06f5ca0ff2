// The CPU device itself: its name, its memory and its threads.
#include "kernels/cpu/cpu_device.h"

#include <hwy/detect_targets.h>
#include <hwy/targets.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace staircase {

int available_processors() {
#ifdef __linux__
  // The processors that this process may run on: taskset and containers restrict them.
  cpu_set_t processors;
  if (sched_getaffinity(0, sizeof processors, &processors) == 0) return CPU_COUNT(&processors);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
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
  std::size_t bytes = bytes_of(dtype, shape);
  // Big tensors in huge pages: a product reads its weights once from end to end, and looking up 4 KiB pages
  // would cost it a good part of the memory bandwidth.
  constexpr std::size_t kHugePage = std::size_t{2} << 20, kCacheLine = 64;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  bytes = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  void* memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return Tensor(dtype, std::move(shape), std::shared_ptr<void>(memory, std::free));
}

void CpuDevice::copy_from_host(std::span<const std::int32_t> source, Tensor& destination) {
  std::copy(source.begin(), source.end(), destination.data<std::int32_t>());
}

void CpuDevice::copy_to_host(const Tensor& source, std::span<float> destination) {
  std::copy_n(source.data<float>(), destination.size(), destination.begin());
}

}  // namespace staircase
