// choose_experts: the k largest scores of each row, and their shares.
//
// scores [rows, n_experts], chosen and shares [rows, k]. n_experts is at most a few dozen, and the router's
// product precedes this operation, which takes a thousandth of the time of its block.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/cpu_device.h"

namespace staircase {
namespace {

/// Chooses the experts of one row. `order` is scratch memory with room for the numbers of all experts.
void choose_row(const float* scores, RouterSoftmax softmax, std::span<std::int32_t> order,
                std::span<std::int32_t> chosen, float* shares) {
  const auto value = [&](std::int32_t expert) {
    return std::isnan(scores[expert]) ? -std::numeric_limits<float>::infinity() : scores[expert];
  };
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort_copy(
      order.begin(), order.end(), chosen.begin(), chosen.end(),
      [&](std::int32_t a, std::int32_t b) { return value(a) > value(b) || (value(a) == value(b) && a < b); });
  const float largest = scores[chosen[0]];
  float sum = 0.0f;
  for (const std::int32_t expert : softmax == RouterSoftmax::kAll ? order : chosen) {
    sum += std::exp(scores[expert] - largest);
  }
  for (std::size_t j = 0; j < chosen.size(); ++j) shares[j] = std::exp(scores[chosen[j]] - largest) / sum;
}

}  // namespace

void CpuDevice::choose_experts(const Tensor& scores, RouterSoftmax softmax, Tensor& chosen, Tensor& shares) {
  const std::int64_t n_experts = scores.dim(1), k = chosen.dim(1);
  each_few_rows(scores, [&](IndexRange rows) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(n_experts));
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      choose_row(scores.data<float>() + r * n_experts, softmax, order,
                 {chosen.data<std::int32_t>() + r * k, static_cast<std::size_t>(k)},
                 shares.data<float>() + r * k);
    }
  });
}

}  // namespace staircase
