// The sums of 64 outputs stay in registers during the loop over all inputs, so y is written once.
//
// But W is now read in pieces of 64 numbers, 256 bytes, each in another row. The processor prefetches
// neighbours in memory, but the next piece is a whole row away.
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
  /// Computes 64 outputs, whose columns of W begin at `w`.
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
