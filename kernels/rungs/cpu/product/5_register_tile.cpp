// A tile of sums stays in registers: 6 rows by 4 vectors fill 24 of the 32 registers of AVX-512. For 24
// multiply-adds, four vectors of W and six numbers of x are loaded. Rung 4 needed five loads for four
// multiply-adds; now arithmetic is the limit. With 16 registers, a tile has 6 rows by 2 vectors (Goto and van
// de Geijn 2008, section 4).
#include "kernels/rungs/cpu/product/product.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::product {
namespace {

constexpr int kRows = 6, kColumns = kLanes == 16 ? 4 : 2;  // columns counted in vectors

class RegisterTile final : public Product {
 public:
  RegisterTile(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), panels_(packed(shape, w)) {}

  void run(const float* x, float* y) override {
    for (std::int64_t p = 0; p < panels_of(shape_.n_out); ++p) multiply_panel(x, p, y + p * kPanel);
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  void multiply_panel(const float* x, std::int64_t p, float* y) const {
    const float* const panel = panels_.data() + p * shape_.n_in * kPanel;
    for (std::int64_t r = 0; r < shape_.rows; r += kRows) {
      for (std::int64_t c = 0; c < columns_of(shape_, p); c += kColumns * kLanes) {
        const std::int64_t count = std::min<std::int64_t>(kRows, shape_.rows - r);
        HWY_ALIGN float sums[kRows][kColumns * kLanes];
        multiply_tile(x + r * shape_.n_in, count, panel + c, sums);
        for (std::int64_t row = 0; row < count; ++row) {
          std::copy_n(sums[row], std::min<std::int64_t>(kColumns * kLanes, columns_of(shape_, p) - c),
                      y + (r + row) * shape_.n_out + c);
        }
      }
    }
  }

  /// With fewer than 6 rows, the last row is computed several times, which costs no more than a test would.
  void multiply_tile(const float* x, std::int64_t count, const float* panel,
                     float (*out)[kColumns * kLanes]) const {
    const Floats d;
    const float* rows[kRows];
    for (std::int64_t r = 0; r < kRows; ++r) rows[r] = x + std::min(r, count - 1) * shape_.n_in;
    Vector sums[kRows][kColumns];
    for (auto& row : sums) {
      for (auto& sum : row) sum = hn::Zero(d);
    }
    for (std::int64_t i = 0; i < shape_.n_in; ++i) {
      Vector w[kColumns];
      for (int v = 0; v < kColumns; ++v) w[v] = hn::Load(d, panel + i * kPanel + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vector value = hn::Set(d, rows[r][i]);
        for (int v = 0; v < kColumns; ++v) sums[r][v] = hn::MulAdd(value, w[v], sums[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kColumns; ++v) hn::Store(sums[r][v], d, out[r] + v * kLanes);
    }
  }

  ProductShape shape_;
  Memory<float> panels_;
};

}  // namespace

constexpr Rung kRegisterTile = rung<RegisterTile>("5-register-tile", "a loaded weight serves 6 rows");

}  // namespace staircase::rungs::product
