// split_heads: splits [q | k | v] of each token into its queries and its position in a cache. Queries and
// keys are normalized and rotated first.
//
// In an int8 cache a head is quantized as a whole, and its scale is stored after it. For an int4 cache the
// head is first rotated by a Hadamard matrix.
//
// projected [n_tokens, (n_head + 2 n_kv_head) head_size]. About 10 operations and 8 bytes for each element:
// limited by the bandwidth of the cache that holds the product's output.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/split_heads.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

#include <utility>

#include "kernels/cpu/hadamard-inl.h"
#include "kernels/cpu/quantize-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// out = x [head_size] with its first `rotary` features rotated. `rotations` holds rotary / 2 cosines, then
/// as many sines.
HWY_INLINE void rotate(const float* HWY_RESTRICT x, const float* HWY_RESTRICT rotations, std::int64_t rotary,
                       std::int64_t head_size, float* HWY_RESTRICT out) {
  const Floats d;
  const std::int64_t half = rotary / 2;
  const float* const sines = rotations + half;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    const auto cosine = hn::LoadU(d, rotations + i), sine = hn::LoadU(d, sines + i);
    hn::StoreU(hn::MulSub(a, cosine, hn::Mul(b, sine)), d, out + i);
    hn::StoreU(hn::MulAdd(b, cosine, hn::Mul(a, sine)), d, out + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    out[i] = a * rotations[i] - b * sines[i];
    out[half + i] = b * rotations[i] + a * sines[i];
  }
  std::copy(x + rotary, x + head_size, out + rotary);
}

/// Calls use(pointer) with the memory of a cache as a pointer to elements of its type.
template <typename Use>
HWY_INLINE void with_kept(const Tensor& kept, const Use& use) {
  if (kept.dtype() == DType::kInt8) return use(kept.data<std::int8_t>());
  if (kept.dtype() == DType::kInt4) return use(kept.data<Int4Byte>());
  with_elements(kept.dtype(), kept.data<void>(), use);
}

/// Computes split_heads for the tokens of `range`.
HWY_ATTR void split_tokens(const Tensor& projected, const HeadRule& rule,
                           const std::vector<TokenPlaces>& places, std::int64_t n_head, IndexRange range,
                           const KeysValues& keys_values) {
  const std::int64_t head_size = keys_values.head_size(), n_kv_head = keys_values.keys.dim(1),
                     head_stride = keys_values.keys.dim(2) * keys_values.keys.dim(3);
  const std::int64_t rotary = rule.rotations.size() == 0 ? 0 : rule.rotations.dim(1);
  std::vector<float> memory(static_cast<std::size_t>((std::max(n_head, n_kv_head) + 1) * head_size));
  float* const turned = memory.data();
  float* const normed = turned + head_size;
  for (std::int64_t t = range.first; t < range.last; ++t) {
    const float* x = projected.data<float>() + t * projected.dim(1);
    const TokenPlaces& place = places[static_cast<std::size_t>(t)];
    // Returns the next `heads` heads, normalized.
    const auto next_heads = [&](const Norm& norm, std::int64_t heads) {
      const std::int64_t all = heads * head_size, width = rule.heads_together ? all : head_size;
      const float* const own = std::exchange(x, x + all);
      if (norm.kind == NormKind::kNone) return own;
      for (std::int64_t i = 0; i < all; i += width) normalize_row(own + i, norm, width, normed + i);
      return static_cast<const float*>(normed);
    };
    const auto turn = [&](const float* head, float* out) HWY_ATTR {
      rotate(head, rule.rotations.data<float>() + t * rotary, rotary, head_size, out);
    };
    const float* const queries = next_heads(rule.query_norm, n_head);
    for (std::int64_t h = 0; h < n_head; ++h) turn(queries + h * head_size, place.query + h * head_size);
    with_kept(keys_values.keys, [&](auto* keys) HWY_ATTR {
      using T = std::remove_pointer_t<decltype(keys)>;
      auto* const values = keys_values.values.data<T>();
      const float* const own_keys = next_heads(rule.key_norm, n_kv_head);
      for (std::int64_t h = 0; h < n_kv_head; ++h) {
        turn(own_keys + h * head_size, turned);
        if constexpr (std::is_same_v<T, Int4Byte>) rotate_in_vectors(turned, head_size);
        narrow(turned, head_size, keys + place.key_value + h * head_stride);
      }
      for (std::int64_t h = 0; h < n_kv_head; ++h, x += head_size) {
        const float* value = x;
        if constexpr (std::is_same_v<T, Int4Byte>) {
          std::copy_n(x, head_size, turned);
          rotate_in_vectors(turned, head_size);
          value = turned;
        }
        narrow(value, head_size, values + place.key_value + h * head_stride);
      }
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(split_tokens);

void CpuDevice::split_heads(const Batch& batch, const Tensor& projected, const HeadRule& rule,
                            Tensor& queries, KeysValues& keys_values) {
  const std::vector<TokenPlaces> places = places_of(batch, queries, keys_values);
  const std::int64_t n_head = queries.dim(1) / keys_values.head_size();
  each_few_rows(projected, [&](IndexRange rows) {
    HWY_DYNAMIC_DISPATCH(split_tokens)(projected, rule, places, n_head, rows, keys_values);
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
