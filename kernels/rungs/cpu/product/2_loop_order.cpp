// The two inner loops change places: along a row of W, with 8 or 16 neighbours an instruction. The compiler
// does that by itself, since neighbouring elements do not depend on each other.
//
// What is left to save: every row of x reads all of W again, from beyond the caches.
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
