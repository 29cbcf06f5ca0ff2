// normalize: out[r] = (x[r] - mean) / sqrt(variance + epsilon) · weight + bias. An RMS norm uses 0 instead of
// the mean. add_normalized adds the result to out[r].
//
// x and out [rows, width]. About 8 operations (5 without a mean) and 8 bytes for each element: limited by the
// bandwidth of the cache that holds x. The mean is computed first, then the variance from the differences to
// it. The mean of the squares minus the squared mean would lose precision to cancellation: in the residual
// stream of a GPT-2, a few features are hundreds of times larger than the others.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/normalize.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

#include <cmath>

#include "kernels/cpu/cpu_device.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Normalizes one row. If `weight` or `bias` is nullptr, it counts as 1 or 0.
HWY_ATTR void normalize_row(NormKind kind, const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight,
                            const float* HWY_RESTRICT bias, float epsilon, std::int64_t width, bool adds,
                            float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = width / lanes * lanes;

  float mean = 0.0f;
  if (kind == NormKind::kLayer) {
    auto sums = hn::Zero(d);
    for (std::int64_t i = 0; i < whole; i += lanes) sums = hn::Add(sums, hn::LoadU(d, x + i));
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (std::int64_t i = whole; i < width; ++i) sum += x[i];
    mean = sum / static_cast<float>(width);
  }

  auto squares = hn::Zero(d);
  for (std::int64_t i = 0; i < whole; i += lanes) {
    const auto difference = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    squares = hn::MulAdd(difference, difference, squares);
  }
  float square = hn::GetLane(hn::SumOfLanes(d, squares));
  for (std::int64_t i = whole; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(square / static_cast<float>(width) + epsilon);

  for (std::int64_t i = 0; i < whole; i += lanes) {
    auto value = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, scale));
    const auto factor = weight == nullptr ? hn::Set(d, 1.0f) : hn::LoadU(d, weight + i);
    value = bias == nullptr ? hn::Mul(value, factor) : hn::MulAdd(value, factor, hn::LoadU(d, bias + i));
    if (adds) value = hn::Add(value, hn::LoadU(d, out + i));
    hn::StoreU(value, d, out + i);
  }
  for (std::int64_t i = whole; i < width; ++i) {
    const float value =
        (x[i] - mean) * scale * (weight == nullptr ? 1.0f : weight[i]) + (bias == nullptr ? 0.0f : bias[i]);
    out[i] = adds ? out[i] + value : value;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(normalize_row);

void normalize_row(const float* x, const Norm& norm, std::int64_t width, float* out, bool adds) {
  HWY_DYNAMIC_DISPATCH(normalize_row)
  (norm.kind, x, norm.weight.data<float>(), norm.bias.data<float>(), norm.epsilon, width, adds, out);
}

void CpuDevice::normalize_rows(const Tensor& x, const Norm& norm, Tensor& out, bool adds) {
  const std::int64_t width = x.dim(1);
  each_few_rows(x, [&](IndexRange rows) {
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      normalize_row(x.data<float>() + r * width, norm, width, out.data<float>() + r * width, adds);
    }
  });
}

void CpuDevice::normalize(const Tensor& x, const Norm& norm, Tensor& out) {
  normalize_rows(x, norm, out, false);
}

void CpuDevice::add_normalized(const Tensor& x, const Norm& norm, Tensor& out) {
  normalize_rows(x, norm, out, true);
}

}  // namespace staircase
#endif  // HWY_ONCE
