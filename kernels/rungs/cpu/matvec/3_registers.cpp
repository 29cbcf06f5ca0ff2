// The sums of 64 outputs stay in registers while all inputs pass: y is written once.
//
// But W is now read in pieces of 64 numbers, each in another row: 256 bytes here, and the next ones a whole
// row further. The processor prefetches neighbours in memory, and the next piece is none.
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {
namespace {

class Registers final : public Product {
 public:
  Registers(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), w_(w, w + shape.n_in * shape.n_out) {}

  void run(const float* x, float* y) override {
    std::int64_t o = 0;
    for (; o + kPanel <= shape_.n_out; o += kPanel) multiply(x, w_.data() + o, y + o);
    for (; o < shape_.n_out; ++o) {
      y[o] = 0.0f;
      for (std::int64_t i = 0; i < shape_.n_in; ++i)
        y[o] += x[i] * w_[static_cast<std::size_t>(i * shape_.n_out + o)];
    }
  }

  std::int64_t weight_bytes() const override { return std::ssize(w_) * 4; }

 private:
  /// 64 outputs from `w` on.
  void multiply(const float* x, const float* w, float* y) const {
    const Floats d;
    Vector sums[kVectors];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (std::int64_t i = 0; i < shape_.n_in; ++i) {
      const Vector value = hn::Set(d, x[i]);
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = hn::MulAdd(value, hn::LoadU(d, w + i * shape_.n_out + v * kLanes), sums[v]);
      }
    }
    store(sums, kPanel, y);
  }

  ProductShape shape_;
  std::vector<float> w_;  // [n_in, n_out]
};

}  // namespace

constexpr Rung kRegisters = rung<Registers>("3-registers", "64 sums stay in registers");

}  // namespace staircase::rungs::matvec
