// A block of W, 64 inputs by 1,024 outputs, is 256 KB. It stays in the second-level cache while all rows of x
// pass, so W is read from memory once, not once per row.
//
// One waste remains: each multiply-add still reads and writes its sum, and reads a weight from the
// second-level cache.
#include <algorithm>
#include <vector>

#include "kernels/rungs/cpu/product/product.h"

namespace staircase::rungs::product {
namespace {

constexpr std::int64_t kInputs = 64, kOutputs = 1024;  // size of a block

class CacheBlocks final : public Product {
 public:
  CacheBlocks(const ProductShape& shape, const float* w, ThreadTeam&)
      : shape_(shape), w_(w, w + shape.n_in * shape.n_out) {}

  void run(const float* x, float* y) override {
    std::fill_n(y, shape_.rows * shape_.n_out, 0.0f);
    for (std::int64_t o = 0; o < shape_.n_out; o += kOutputs) {
      for (std::int64_t i = 0; i < shape_.n_in; i += kInputs) {
        for (std::int64_t r = 0; r < shape_.rows; ++r)
          add_block(x + r * shape_.n_in, i, o, y + r * shape_.n_out);
      }
    }
  }

  std::int64_t weight_bytes() const override { return std::ssize(w_) * 4; }

 private:
  /// Adds the products of the block at (first, o) to one row of sums.
  void add_block(const float* x, std::int64_t first, std::int64_t o, float* sums) const {
    const std::int64_t last = std::min(first + kInputs, shape_.n_in),
                       end = std::min(o + kOutputs, shape_.n_out);
    for (std::int64_t i = first; i < last; ++i) {
      const float* const row = w_.data() + i * shape_.n_out;
      for (std::int64_t c = o; c < end; ++c) sums[c] += x[i] * row[c];
    }
  }

  ProductShape shape_;
  std::vector<float> w_;  // [n_in, n_out]
};

}  // namespace

constexpr Rung kCacheBlocks =
    rung<CacheBlocks>("3-cache-blocks", "a block of W serves all rows while it is in the cache");

}  // namespace staircase::rungs::product
