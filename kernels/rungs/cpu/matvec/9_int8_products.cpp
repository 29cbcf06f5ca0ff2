// x is also rounded to 8 bits. Then VPDPBUSD multiplies 64 pairs of bytes at once, and adds every four
// neighbouring products to a sum of 32 bits. Only one sum per group is converted to a float. That is why four
// inputs of a column lie together.
//
// One operand of the instruction is unsigned, so W is stored as whole + 128, and Σ x · 128 must be
// subtracted. This number is the same for all columns, so all sums start at -Σ x · 128.
#include <vector>

#include "kernels/rungs/cpu/int8_groups.h"
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
namespace {

class Int8Products final : public Product {
 public:
  Int8Products(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape), groups_(packed_quads(shape, w)), team_(team) {}

  void run(const float* x, float* y) override {
    std::vector<RowGroup> rounded(static_cast<std::size_t>(groups_of(shape_.n_in)));
    round_row(x, shape_.n_in, rounded.data());
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        multiply(rounded, groups_.data() + p * groups_of(shape_.n_in), columns_of(shape_, p), y + p * kPanel);
      }
    });
  }

  std::int64_t weight_bytes() const override { return groups_.bytes(); }

 private:
  static void multiply(const std::vector<RowGroup>& x, const QuadGroup* groups, std::int64_t columns,
                       float* y) {
    const Floats d;
    Vector sums[4] = {};
    for (const RowGroup& of_x : x) {
      for (int line = 0; line < 36; ++line)
        __builtin_prefetch(reinterpret_cast<const char*>(groups + 2) + line * 64);
      __m512i wholes[4];
      for (auto& sum : wholes) sum = _mm512_set1_epi32(of_x.start);
      for (int q = 0; q < kGroup / 4; ++q) {
        const __m512i quad = _mm512_set1_epi32(of_x.quad(q));
        for (int v = 0; v < 4; ++v)
          wholes[v] = _mm512_dpbusd_epi32(wholes[v], _mm512_load_si512(groups->wholes[q][v * 16]), quad);
      }
      for (int v = 0; v < 4; ++v) {
        const Vector scale = hn::Mul(hn::Set(d, of_x.scale), hn::Load(d, groups->scales + v * 16));
        sums[v] = hn::MulAdd(Vector{_mm512_cvtepi32_ps(wholes[v])}, scale, sums[v]);
      }
      ++groups;
    }
    store(sums, columns, y);
  }

  ProductShape shape_;
  Memory<QuadGroup> groups_;
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kInt8Products = rung<Int8Products>("9-int8-products", "bytes times bytes, four to a sum");

#else

constexpr Rung kInt8Products = {"9-int8-products", "bytes times bytes, four to a sum", nullptr,
                                "AVX-512 VNNI"};

#endif

}  // namespace staircase::rungs::matvec
