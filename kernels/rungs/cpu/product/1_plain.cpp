// The definition: element (r, o) is the sum over all inputs of x [r, i] · w [i, o].
//
// The inner loop goes down a column of W, as in the first rung of the matrix-vector product. Of each cache
// line of 64 bytes it uses only 4, and every addition waits for the previous one.
#include <vector>

#include "kernels/rungs/cpu/product/product.h"

namespace staircase::rungs::product {
namespace {

class Plain final : public Product {
 public:
  Plain(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), w_(w, w + shape.n_in * shape.n_out) {}

  void run(const float* x, float* y) override {
    for (std::int64_t r = 0; r < shape_.rows; ++r) {
      for (std::int64_t o = 0; o < shape_.n_out; ++o) {
        float sum = 0.0f;
        for (std::int64_t i = 0; i < shape_.n_in; ++i) {
          sum += x[r * shape_.n_in + i] * w_[static_cast<std::size_t>(i * shape_.n_out + o)];
        }
        y[r * shape_.n_out + o] = sum;
      }
    }
  }

  std::int64_t weight_bytes() const override { return std::ssize(w_) * 4; }

 private:
  ProductShape shape_;
  std::vector<float> w_;  // [n_in, n_out]
};

}  // namespace

constexpr Rung kPlain = rung<Plain>("1-plain", "a sum for each element, down a column of W");

}  // namespace staircase::rungs::product
