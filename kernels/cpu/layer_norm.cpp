// layer_norm: out[r] = (x[r] - mean) / sqrt(variance + epsilon) · weight + bias.
//
// x and out [rows, width]. About 8 operations and 8 bytes for each element: limited by the bandwidth of
// whichever cache holds x. The mean comes first and the variance from the differences to it: the sum of
// squares minus the squared mean would cancel, and the residual stream of a GPT-2 has a few features that are
// hundreds of times larger than the others.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cpp"
#include <hwy/foreach_target.h>
// The target comes first.
#include <hwy/highway.h>

#include <cmath>

#include "kernels/cpu/cpu_device.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR void layer_norm_row(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight,
                             const float* HWY_RESTRICT bias, float epsilon, std::int64_t width,
                             float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = width / lanes * lanes;

  auto sums = hn::Zero(d);
  for (std::int64_t i = 0; i < whole; i += lanes) sums = hn::Add(sums, hn::LoadU(d, x + i));
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (std::int64_t i = whole; i < width; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(width);

  auto squares = hn::Zero(d);
  for (std::int64_t i = 0; i < whole; i += lanes) {
    const auto difference = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    squares = hn::MulAdd(difference, difference, squares);
  }
  float square = hn::GetLane(hn::SumOfLanes(d, squares));
  for (std::int64_t i = whole; i < width; ++i) square += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(square / static_cast<float>(width) + epsilon);

  for (std::int64_t i = 0; i < whole; i += lanes) {
    const auto normal = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, scale));
    hn::StoreU(hn::MulAdd(normal, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, out + i);
  }
  for (std::int64_t i = whole; i < width; ++i) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(layer_norm_row);

void normalize_rows(const Tensor& x, const LayerNorm& norm, Range rows, Tensor& out) {
  const std::int64_t width = x.dim(1);
  for (std::int64_t r = rows.first; r < rows.last; ++r) {
    HWY_DYNAMIC_DISPATCH(layer_norm_row)
    (x.data<float>() + r * width, norm.weight.data<float>(), norm.bias.data<float>(), norm.epsilon, width,
     out.data<float>() + r * width);
  }
}

void CpuDevice::layer_norm(const Tensor& x, const LayerNorm& norm, Tensor& out) {
  each_few_rows(x, [&](Range rows) { normalize_rows(x, norm, rows, out); });
}

}  // namespace staircase
#endif  // HWY_ONCE
