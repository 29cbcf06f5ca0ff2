// VDPBF16PS multiplies 32 pairs of bfloat16 numbers and adds every two neighbouring products to a sum: twice
// the multiply-adds of an instruction on floats. So two inputs of a column lie together in a panel, and x is
// rounded first.
#include <cstring>

#include "kernels/rungs/cpu/product/product.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::product {

#if defined(__AVX512BF16__) && defined(__AVX512F__)
namespace {

constexpr int kRows = 6, kColumns = 4;

class BFloat16 final : public Product {
 public:
  BFloat16(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape),
        pairs_((shape.n_in + 1) / 2),
        panels_(packed_pairs(shape, w, 2 * pairs_)),
        x_((shape.rows + kRows) * pairs_ * 2),
        team_(team) {}

  void run(const float* x, float* y) override {
    round_rows(team_, shape_, x, 2 * pairs_, x_.data());
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        for (std::int64_t r = 0; r < shape_.rows; r += kRows) multiply_tile(p, r, y);
      }
    });
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  /// Multiplies one tile. Rows of zeros follow the rows of x, so a tile always has six rows.
  void multiply_tile(std::int64_t p, std::int64_t first, float* y) const {
    const std::uint16_t* const panel = panels_.data() + p * pairs_ * kPanel * 2;
    const std::uint16_t* const x = x_.data() + first * pairs_ * 2;
    Vector sums[kRows][kColumns] = {};
    for (std::int64_t i = 0; i < pairs_; ++i) {
      __m512bh w[kColumns];
      for (int v = 0; v < kColumns; ++v)
        w[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + (i * kPanel + v * 16) * 2));
      for (int r = 0; r < kRows; ++r) {
        std::int32_t pair;
        std::memcpy(&pair, x + (r * pairs_ + i) * 2, sizeof(pair));
        const auto value = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int v = 0; v < kColumns; ++v) sums[r][v].raw = _mm512_dpbf16_ps(sums[r][v].raw, value, w[v]);
      }
    }
    for (std::int64_t r = first; r < std::min(first + kRows, shape_.rows); ++r) {
      store(sums[r - first], columns_of(shape_, p), y + r * shape_.n_out + p * kPanel);
    }
  }

  ProductShape shape_;
  std::int64_t pairs_;
  Memory<std::uint16_t> panels_, x_;
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kBFloat16 = rung<BFloat16>("7-bfloat16", "two products for each sum of an instruction");

#else

constexpr Rung kBFloat16 = {"7-bfloat16", "two products for each sum of an instruction", nullptr,
                            "AVX-512 BF16"};

#endif

}  // namespace staircase::rungs::product
