// A float32 cache whose numbers are rounded as in a cache of 8 or fewer bits.
#pragma once

#include <algorithm>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/measure/cache_trial.h"
#include "few_bits.h"
#include "quantize.h"
#include "static_kv_cache.h"

namespace staircase {

/// Rounds the keys and values of a pass before the next pass reads them. `size` neighbouring numbers of a
/// head share a scale, or all of a smaller head. The model's cache_dtype must be float32.
class RoundedKvCache final : public StaticKvCache {
 public:
  RoundedKvCache(Model& model, std::size_t size, int bits = 8)
      : StaticKvCache(model),
        model_(model),
        size_(std::min<std::size_t>(size, model.config().head_size)),
        bits_(bits) {}

  void append(int row, int count) override {
    for (int l = 0; l < model_.config().n_layer && rounded_ < length(row); ++l) {
      round(layer(l).keys, length(row));
      round(layer(l).values, length(row));
    }
    rounded_ = length(row);
    StaticKvCache::append(row, count);
  }

  /// Memory: each number's bits, and 4 bytes per group: a scale, or a least number and a step in bfloat16.
  CacheUse use() const override {
    const std::size_t numbers = StaticKvCache::use().bytes / sizeof(float);
    return {.bytes = numbers * bits_ / 8 + numbers / size_ * sizeof(float)};
  }

 private:
  /// Rounds the positions from `rounded_` up to `end`. kept [1, n_kv_head, n_positions, head_size].
  void round(const Tensor& kept, int end) {
    const Tensor all = kept.reshaped({kept.dim(1) * kept.dim(2), kept.dim(3)});
    for (std::int64_t head = 0; head < kept.dim(1); ++head) {
      Tensor own = all.rows(head * kept.dim(2) + rounded_, end - rounded_);
      std::vector<float> numbers(own.size());
      model_.device().copy_to_host(own, numbers);
      const auto rounded = bits_ == 8 ? dequantize(quantize(numbers, kept.dim(3), size_))
                                      : on_levels(numbers, kept.dim(3), size_, bits_);
      model_.device().copy_from_host(rounded, own);
    }
  }

  Model& model_;
  std::size_t size_;
  int bits_;
  int rounded_ = 0;  // positions
};

/// A cache of each type that the device supports, the exact one first. Then 8-bit caches with a scale for 16,
/// 32 or 64 numbers, and 4-bit caches.
inline std::vector<TriedCache> caches_of(Model& model) {
  std::vector<TriedCache> caches;
  const DType chosen = model.kv_dtype();
  for (const DType dtype : cache_dtypes()) {
    try {
      model.use_cache_dtype(dtype);
      caches.push_back({std::string(to_string(dtype)), std::make_unique<StaticKvCache>(model)});
    } catch (const UsageError& error) {
      warn("{} is left out: {}", to_string(dtype), error.what());
    }
  }
  model.use_cache_dtype(DType::kFloat32);
  for (const int bits : {8, 4}) {
    for (const int size : {16, 32, 64})
      caches.push_back({fmt::format("{} bits by {}", bits, size),
                        std::make_unique<RoundedKvCache>(model, size, bits), false});
  }
  model.use_cache_dtype(chosen);
  return caches;
}

}  // namespace staircase
