// W is packed into panels of 64 columns when it is loaded. A panel is one piece of 4 · 64 · n_in bytes, so no
// unused byte is fetched. 64 sums of a row stay in registers along the depth.
//
// One waste remains: each multiply-add loads a vector of W, mostly from the second-level cache. A core loads
// at most two vectors per cycle. It could do two multiply-adds per cycle on data that is already in
// registers.
#include "kernels/rungs/cpu/product/product.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::product {
namespace {

class PackedPanels final : public Product {
 public:
  PackedPanels(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), panels_(packed(shape, w)) {}

  void run(const float* x, float* y) override {
    for (std::int64_t p = 0; p < panels_of(shape_.n_out); ++p) {
      for (std::int64_t r = 0; r < shape_.rows; ++r) {
        multiply_row(x + r * shape_.n_in, panels_.data() + p * shape_.n_in * kPanel, columns_of(shape_, p),
                     y + r * shape_.n_out + p * kPanel);
      }
    }
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  void multiply_row(const float* x, const float* panel, std::int64_t columns, float* y) const {
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

constexpr Rung kPackedPanels =
    rung<PackedPanels>("4-packed-panels", "64 columns in one piece, 64 sums in registers");

}  // namespace staircase::rungs::product
