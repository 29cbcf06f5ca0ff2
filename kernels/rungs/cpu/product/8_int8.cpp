// VPDPBUSD multiplies bytes, as in the last rung of the matrix-vector product: four products for each sum.
// Scales add work: after every 32 inputs the sums become floats and are multiplied by the scales of x and W.
#include "kernels/rungs/cpu/int8_groups.h"
#include "kernels/rungs/cpu/product/product.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::product {

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
namespace {

constexpr int kRows = 4;

class Int8 final : public Product {
 public:
  Int8(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape),
        groups_(groups_of(shape.n_in)),
        panels_(packed_quads(shape, w)),
        x_((shape.rows + kRows) * groups_),
        team_(team) {}

  void run(const float* x, float* y) override {
    round_rows(team_, shape_, x, x_.data());
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        for (std::int64_t r = 0; r < shape_.rows; r += kRows) multiply_tile(p, r, y);
      }
    });
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  void multiply_tile(std::int64_t p, std::int64_t first, float* y) const {
    Vector sums[kRows][4] = {};
    for (std::int64_t g = 0; g < groups_; ++g) {
      const QuadGroup& w = panels_.data()[p * groups_ + g];
      const RowGroup* const x = x_.data() + first * groups_ + g;
      __m512i wholes[kRows][4];
      for (int r = 0; r < kRows; ++r) std::fill_n(wholes[r], 4, _mm512_set1_epi32(x[r * groups_].start));
      for (int q = 0; q < kGroup / 4; ++q) {
        for (int v = 0; v < 4; ++v) {
          const __m512i quads = _mm512_load_si512(w.wholes[q][v * 16]);
          for (int r = 0; r < kRows; ++r) {
            wholes[r][v] =
                _mm512_dpbusd_epi32(wholes[r][v], quads, _mm512_set1_epi32(x[r * groups_].quad(q)));
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const Vector scale = hn::Set(Floats(), x[r * groups_].scale);
        for (int v = 0; v < 4; ++v) {
          const Vector scales = hn::Mul(scale, hn::Load(Floats(), w.scales + v * 16));
          sums[r][v] = hn::MulAdd(Vector{_mm512_cvtepi32_ps(wholes[r][v])}, scales, sums[r][v]);
        }
      }
    }
    for (std::int64_t r = first; r < std::min(first + kRows, shape_.rows); ++r)
      store(sums[r - first], columns_of(shape_, p), y + r * shape_.n_out + p * kPanel);
  }

  ProductShape shape_;
  std::int64_t groups_;
  Memory<QuadGroup> panels_;
  Memory<RowGroup> x_;  // the rows of x, with room for a whole tile at the end
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kInt8 = rung<Int8>("8-int8", "four products for each sum of an instruction");

#else

constexpr Rung kInt8 = {"8-int8", "four products for each sum of an instruction", nullptr, "AVX-512 VNNI"};

#endif

}  // namespace staircase::rungs::product
