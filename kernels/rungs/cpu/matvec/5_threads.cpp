// Each thread computes its share of the panels, so no two threads write the same outputs. One core alone
// cannot keep enough reads in flight to use the full memory bandwidth; several cores can.
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {
namespace {

class Threads final : public Product {
 public:
  Threads(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape), panels_(packed(shape, w)), team_(team) {}

  void run(const float* x, float* y) override {
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        multiply(x, panels_.data() + p * shape_.n_in * kPanel, columns_of(shape_, p), y + p * kPanel);
      }
    });
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  void multiply(const float* x, const float* panel, std::int64_t columns, float* y) const {
    const Floats d;
    Vector sums[kVectors];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (std::int64_t i = 0; i < shape_.n_in; ++i) {
      const Vector value = hn::Set(d, x[i]);
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = hn::MulAdd(value, hn::Load(d, panel + i * kPanel + v * kLanes), sums[v]);
      }
    }
    store(sums, columns, y);
  }

  ProductShape shape_;
  Memory<float> panels_;
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kThreads = rung<Threads>("5-threads", "every core reads its share of the panels");

}  // namespace staircase::rungs::matvec
