// 8 bits per weight halve the bytes again. 32 inputs of a column share a scale, so a product is
//
//   y = Σ over groups of  scale · Σ over 32 inputs of x · whole
//
// Each whole number is converted to a float when it is loaded into a register. With 2 threads this
// conversion, not the memory, may now be the limit.
#include "kernels/rungs/cpu/int8_groups.h"
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/simd.h"

namespace staircase::rungs::matvec {
namespace {

struct Group {
  float scales[kPanel];
  std::int8_t wholes[kGroup][kPanel];
};

class Int8 final : public Product {
 public:
  Int8(const ProductShape& shape, const float* w, ThreadTeam& team)
      : shape_(shape),
        groups_(packed_groups<Group>(shape, w,
                                     [](Group& group, std::int64_t i, std::int64_t column, int whole) {
                                       group.wholes[i][column] = static_cast<std::int8_t>(whole);
                                     })),
        team_(team) {}

  void run(const float* x, float* y) override {
    parallel_ranges(team_, panels_of(shape_.n_out), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        multiply(x, groups_.data() + p * groups_of(shape_.n_in), columns_of(shape_, p), y + p * kPanel);
      }
    });
  }

  std::int64_t weight_bytes() const override { return groups_.bytes(); }

 private:
  void multiply(const float* x, const Group* groups, std::int64_t columns, float* y) const {
    const Floats d;
    Vector sums[kVectors];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (std::int64_t i = 0; i < shape_.n_in; i += kGroup, ++groups) {
      __builtin_prefetch(groups + 2);
      Vector of_group[kVectors];
      for (auto& sum : of_group) sum = hn::Zero(d);
      for (std::int64_t j = 0; j < std::min(kGroup, shape_.n_in - i); ++j) {
        const Vector value = hn::Set(d, x[i + j]);
        for (int v = 0; v < kVectors; ++v) {
          const auto bytes = hn::LoadU(hn::Rebind<std::int8_t, Floats>(), groups->wholes[j] + v * kLanes);
          const auto wholes = hn::ConvertTo(d, hn::PromoteTo(hn::Rebind<std::int32_t, Floats>(), bytes));
          of_group[v] = hn::MulAdd(value, wholes, of_group[v]);
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = hn::MulAdd(of_group[v], hn::LoadU(d, groups->scales + v * kLanes), sums[v]);
      }
    }
    store(sums, columns, y);
  }

  ProductShape shape_;
  Memory<Group> groups_;
  ThreadTeam& team_;
};

}  // namespace

constexpr Rung kInt8 = rung<Int8>("8-int8", "W in a quarter of the bytes, a scale for 32 inputs");

}  // namespace staircase::rungs::matvec
