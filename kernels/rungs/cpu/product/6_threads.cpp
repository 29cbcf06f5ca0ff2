// Each thread multiplies its share of the panels, so it reads its own part of W and writes its own columns.
// All threads read the same x, which the shared cache holds only once.
#include "kernels/rungs/cpu/product/product.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::product {
namespace {

constexpr int kRows = 6, kColumns = kLanes == 16 ? 4 : 2;  // columns counted in vectors

class Threads final : public Product {
 public:
  Threads(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape), panels_(packed(shape, w)), team_(team) {}

  void run(const float* x, float* y) override {
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) multiply_panel(x, p, y + p * kPanel);
    });
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
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kThreads = rung<Threads>("6-threads", "every core multiplies its share of the panels");

}  // namespace staircase::rungs::product
