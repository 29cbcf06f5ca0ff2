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
  // The bits of the targets that this machine supports and the kernels were compiled for. The lowest bit is
  // the best target.
  const std::int64_t targets = hwy::SupportedTargets() & (HWY_TARGETS);
  return "CPU, " + std::to_string(team_.size()) + (team_.size() == 1 ? " thread, " : " threads, ") +
         hwy::TargetName(targets & -targets);
}

Tensor CpuDevice::allocate(DType dtype, const Shape& shape) {
  const std::size_t bytes = bytes_of(dtype, shape);
  return Tensor(dtype, shape, platform::allocate(bytes));
}

void CpuDevice::copy_from_host(std::span<const std::int32_t> source, Tensor& destination) {
  std::copy(source.begin(), source.end(), destination.data<std::int32_t>());
}

void CpuDevice::copy_to_host(const Tensor& source, std::span<std::byte> destination) {
  std::copy_n(source.data<std::byte>(), destination.size(), destination.begin());
}

std::span<const float> CpuDevice::to_host(const Tensor& source, Tensor&) {
  return {source.data<float>(), static_cast<std::size_t>(source.size())};
}

std::vector<TokenPlaces> places_of(const Batch& batch, const Tensor& queries, const KeysValues& keys_values) {
  const std::int64_t n_kv_head = keys_values.keys.dim(1), block_size = keys_values.keys.dim(2);
  const std::int64_t step = keys_values.keys.dim(3);
  const auto* const offsets = batch.offsets.data<std::int32_t>();
  const auto* const starts = batch.starts.data<std::int32_t>();
  std::vector<TokenPlaces> places;
  places.reserve(static_cast<std::size_t>(batch.n_tokens()));
  for (std::int32_t s = 0; s < batch.n_sequences(); ++s) {
    const std::int32_t* const blocks = blocks_of(keys_values, s);
    for (std::int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
      const std::int64_t position = starts[s] + t - offsets[s], block = blocks[position / block_size];
      places.push_back({queries.data<float>() + t * queries.dim(1),
                        (block * n_kv_head * block_size + position % block_size) * step});
    }
  }
  return places;
}

}  // namespace staircase
