// The two inner loops are swapped: the innermost now goes along a row of W. The compiler itself computes 8 or
// 16 neighbouring elements per instruction, because they do not depend on each other.
//
// One waste remains: every row of x reads all of W again, from memory or a shared cache.
#include <algorithm>
#include <vector>

#include "kernels/rungs/cpu/product/product.h"

namespace staircase::rungs::product {
namespace {

class LoopOrder final : public Product {
 public:
  LoopOrder(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), w_(w, w + shape.n_in * shape.n_out) {}

  void run(const float* x, float* y) override {
    std::fill_n(y, shape_.rows * shape_.n_out, 0.0f);
    for (std::int64_t r = 0; r < shape_.rows; ++r) {
      float* const sums = y + r * shape_.n_out;
      for (std::int64_t i = 0; i < shape_.n_in; ++i) {
        const float value = x[r * shape_.n_in + i];
        const float* const row = w_.data() + i * shape_.n_out;
        for (std::int64_t o = 0; o < shape_.n_out; ++o) sums[o] += value * row[o];
      }
    }
  }

  std::int64_t weight_bytes() const override { return std::ssize(w_) * 4; }

 private:
  ProductShape shape_;
  std::vector<float> w_;  // [n_in, n_out]
};

}  // namespace

constexpr Rung kLoopOrder = rung<LoopOrder>("2-loop-order", "along the rows of W, as they lie in memory");

}  // namespace staircase::rungs::product
