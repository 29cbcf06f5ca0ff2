// The two loops are swapped. Now the inner loop goes along a row of W, so every byte of a cache line is used.
//
// The compiler does the rest: neighbouring outputs do not depend on each other, so one instruction computes 8
// or 16 of them. One waste remains: y is read and written again for each input.
#include <algorithm>

#include "kernels/rungs/cpu/matvec/matvec.h"

namespace staircase::rungs::matvec {
namespace {

class LoopOrder final : public Product {
 public:
  LoopOrder(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), w_(w, w + shape.n_in * shape.n_out) {}

  void run(const float* x, float* y) override {
    std::fill_n(y, shape_.n_out, 0.0f);
    for (std::int64_t i = 0; i < shape_.n_in; ++i) {
      const float* const row = w_.data() + i * shape_.n_out;
      for (std::int64_t o = 0; o < shape_.n_out; ++o) y[o] += x[i] * row[o];
    }
  }

  std::int64_t weight_bytes() const override { return std::ssize(w_) * 4; }

 private:
  ProductShape shape_;
  std::vector<float> w_;  // [n_in, n_out]
};

}  // namespace

constexpr Rung kLoopOrder = rung<LoopOrder>("2-loop-order", "along the rows of W, as they lie in memory");

}  // namespace staircase::rungs::matvec
