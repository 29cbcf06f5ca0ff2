// A read from memory takes about 100 ns, in which a core could process thousands of bytes. The processor's
// own prefetcher stays within a page of 4 KB and starts again in the next page. So each step prefetches the
// lines that are needed 4 KB later, and the next page is in flight before this one ends.
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {
namespace {

constexpr std::int64_t kAhead = 1024;  // numbers of 4 bytes; a prefetch beyond the last panel reads nothing

class Prefetch final : public Product {
 public:
  Prefetch(const ProductShape& shape, const float* w, ThreadTeam& team)
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
      for (std::int64_t line = 0; line < kPanel; line += 16)
        __builtin_prefetch(panel + i * kPanel + line + kAhead);
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

constexpr Rung kPrefetch = rung<Prefetch>("6-prefetch", "ask for memory 4 KB ahead");

}  // namespace staircase::rungs::matvec
