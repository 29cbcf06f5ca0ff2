// A register of AMX holds a matrix of 16 rows of 64 bytes. TDPBF16PS multiplies two of them, 8,192
// multiply-adds where VDPBF16PS does 32. Each of two matrices of x and two of W is loaded for two products.
#include "kernels/rungs/cpu/panels.h"
#include "kernels/rungs/cpu/product/product.h"
#if defined(__x86_64__)
#include "kernels/cpu/amx_shapes.h"
#endif

namespace staircase::rungs::product {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kRows = 2 * kTile, kColumns = 2 * kTile, kDepth = 32;

class Amx final : public Product {
 public:
  Amx(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape),
        depth_((shape.n_in + kDepth - 1) / kDepth * kDepth),
        panels_(packed_pairs(shape, w, depth_)),
        x_((shape.rows + kRows) * depth_),
        team_(team) {}

  void run(const float* x, float* y) override {
    round_rows(team_, shape_, x, depth_, x_.data());
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      shape_tiles(kRows);
      for (std::int64_t p = first; p < last; ++p)
        for (std::int64_t r = 0; r < shape_.rows; r += kRows)
          for (std::int64_t c = 0; c < columns_of(shape_, p); c += kColumns) multiply(p, r, c, y);
      release_tiles();
    });
  }

  std::int64_t weight_bytes() const override { return panels_.bytes(); }

 private:
  /// Multiplies 32 rows of x by 32 columns of panel p. Zeros follow the rows of x.
  STAIRCASE_AMX_TARGET void multiply(std::int64_t p, std::int64_t first, std::int64_t c, float* y) const {
    const std::uint16_t* x = x_.data() + first * depth_;
    const std::uint16_t* w = panels_.data() + p * depth_ * kPanel + c * 2;
    alignas(64) float sums[kRows][kColumns];
    compiler_barrier();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t i = 0; i < depth_; i += kDepth, x += kDepth, w += kDepth * kPanel) {
      _tile_loadd(4, x, depth_ * 2);  // the last operand: the bytes from one row to the next
      _tile_loadd(5, x + kTile * depth_, depth_ * 2);
      _tile_loadd(6, w, kPanel * 4);
      _tile_loadd(7, w + kTile * 2, kPanel * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums[0], sizeof(sums[0]));
    _tile_stored(1, sums[0] + kTile, sizeof(sums[0]));
    _tile_stored(2, sums[kTile], sizeof(sums[0]));
    _tile_stored(3, sums[kTile] + kTile, sizeof(sums[0]));
    compiler_barrier();
    const std::int64_t count = std::min(kColumns, columns_of(shape_, p) - c);
    for (std::int64_t r = first; r < std::min(first + kRows, shape_.rows); ++r)
      std::copy_n(sums[r - first], count, y + r * shape_.n_out + p * kPanel + c);
  }

  ProductShape shape_;
  std::int64_t depth_;  // n_in, rounded up to whole matrices
  Memory<std::uint16_t> panels_, x_;
  ThreadTeam& team_;
};

}  // namespace
const Rung kAmx = rung<Amx>("9-amx", "one instruction multiplies two matrices", has_amx() ? "" : "AMX");
#else
const Rung kAmx = {"9-amx", "one instruction multiplies two matrices", nullptr, "AMX"};
#endif
}  // namespace staircase::rungs::product
