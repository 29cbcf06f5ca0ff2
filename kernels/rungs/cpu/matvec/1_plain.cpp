// The definition: each output is a sum over all inputs.
//
// The inner loop goes down a column of W. Neighbours in a column lie n_out numbers apart, so each one fetches
// a cache line of 64 bytes and uses 4 of them. In addition, each sum waits for the previous addition.
#include "kernels/rungs/cpu/matvec/matvec.h"

namespace staircase::rungs::matvec {
namespace {

class Plain final : public Product {
 public:
  Plain(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), w_(w, w + shape.n_in * shape.n_out) {}

  void run(const float* x, float* y) override {
    for (std::int64_t o = 0; o < shape_.n_out; ++o) {
      float sum = 0.0f;
      for (std::int64_t i = 0; i < shape_.n_in; ++i) {
        sum += x[i] * w_[static_cast<std::size_t>(i * shape_.n_out + o)];
      }
      y[o] = sum;
    }
  }

  std::int64_t weight_bytes() const override { return std::ssize(w_) * 4; }

 private:
  ProductShape shape_;
  std::vector<float> w_;  // [n_in, n_out]
};

}  // namespace

constexpr Rung kPlain = rung<Plain>("1-plain", "a sum for each output, down a column of W");

}  // namespace staircase::rungs::matvec
