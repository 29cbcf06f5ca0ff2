// W is packed once, when it is loaded: 64 columns become a panel, whose rows follow each other in memory. The
// loop of rung 3 then reads memory from front to back, which the processor prefetches by itself.
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {
namespace {

class PackedPanels final : public Product {
 public:
  PackedPanels(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), panels_(packed(shape, w)) {}

  void run(const float* x, float* y) override {
    for (std::int64_t p = 0; p < panels_of(shape_.n_out); ++p) {
      multiply(x, panels_.data() + p * shape_.n_in * kPanel, columns_of(shape_, p), y + p * kPanel);
    }
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
};

}  // namespace

constexpr Rung kPackedPanels = rung<PackedPanels>("4-packed-panels", "64 columns lie together in memory");

}  // namespace staircase::rungs::matvec
