// bfloat16 is the upper half of a float: the same exponents, 8 bits of precision. W takes half the bytes, and
// memory is the limit, so a product takes half the time. When a number is loaded into a register, it becomes
// a float again by appending 16 zero bits.
#include "kernels/half.h"
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {
namespace {

constexpr std::int64_t kAhead = 2048;  // numbers of 2 bytes; a prefetch beyond the last panel reads nothing

class BFloat16 final : public Product {
 public:
  BFloat16(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape), panels_(packed<std::uint16_t>(shape, w, bfloat16_from_float32)), team_(team) {}

  void run(const float* x, float* y) override {
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        multiply(x, panels_.data() + p * shape_.n_in * kPanel, columns_of(shape_, p), y + p * kPanel);
      }
    });
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  void multiply(const float* x, const std::uint16_t* panel, std::int64_t columns, float* y) const {
    const Floats d;
    Vector sums[kVectors];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (std::int64_t i = 0; i < shape_.n_in; ++i) {
      for (std::int64_t line = 0; line < kPanel; line += 32)
        __builtin_prefetch(panel + i * kPanel + line + kAhead);
      const Vector value = hn::Set(d, x[i]);
      for (int v = 0; v < kVectors; ++v) {
        const auto halves = hn::Load(hn::Rebind<std::uint16_t, Floats>(), panel + i * kPanel + v * kLanes);
        const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(hn::Rebind<std::uint32_t, Floats>(), halves));
        sums[v] = hn::MulAdd(value, hn::BitCast(d, bits), sums[v]);
      }
    }
    store(sums, columns, y);
  }

  ProductShape shape_;
  Memory<std::uint16_t> panels_;
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kBFloat16 = rung<BFloat16>("7-bfloat16", "W in half the bytes");

}  // namespace staircase::rungs::matvec
