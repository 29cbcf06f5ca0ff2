// Numbers in 8 bits: 32 inputs form a group that shares a scale, the largest magnitude divided by 127.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/rungs/cpu/panels.h"

namespace staircase::rungs {

constexpr std::int64_t kGroup = 32;

constexpr std::int64_t groups_of(std::int64_t n_in) {
  return (n_in + kGroup - 1) / kGroup;
}

/// Rounds `count` numbers of one group, `stride` apart, to whole numbers: number ≈ scale · whole, |whole| <=
/// 127. The rest of the group becomes 0. Returns the scale. write(i, whole) must store number i.
template <typename Write>
float round_group(const float* numbers, std::int64_t stride, std::int64_t count, const Write& write) {
  float most = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(numbers[i * stride]));
  const float factor = most == 0.0f ? 0.0f : 127.0f / most;
  for (std::int64_t i = 0; i < kGroup; ++i) {
    write(i, i < count ? static_cast<int>(std::lrint(numbers[i * stride] * factor)) : 0);
  }
  return most / 127.0f;
}

/// Packs w [n_in, n_out] into panels of groups, [n_out / 64, n_in / 32]. store(group, i, column, whole) must
/// write a number.
template <typename Group, typename Store>
Memory<Group> packed_groups(const ProductShape& shape, const float* w, const Store& store) {
  Memory<Group> groups(panels_of(shape.n_out) * groups_of(shape.n_in));
  for (std::int64_t o = 0; o < shape.n_out; ++o) {
    for (std::int64_t i = 0; i < shape.n_in; i += kGroup) {
      Group& group = groups.data()[o / kPanel * groups_of(shape.n_in) + i / kGroup];
      group.scales[o % kPanel] =
          round_group(w + i * shape.n_out + o, shape.n_out, std::min(kGroup, shape.n_in - i),
                      [&](std::int64_t j, int whole) { store(group, j, o % kPanel, whole); });
    }
  }
  return groups;
}

/// A group of W for VPDPBUSD, which adds the products of four neighbouring bytes. Its first operand is
/// unsigned, so 128 is added to each number.
struct QuadGroup {
  float scales[kPanel];
  std::uint8_t wholes[kGroup / 4][kPanel][4];
};

inline Memory<QuadGroup> packed_quads(const ProductShape& shape, const float* w) {
  return packed_groups<QuadGroup>(
      shape, w, [](QuadGroup& group, std::int64_t i, std::int64_t column, int whole) {
        group.wholes[i / 4][column][i % 4] = static_cast<std::uint8_t>(whole + 128);
      });
}

/// A group of a row of x, for the signed operand.
struct RowGroup {
  float scale;
  std::int32_t start;  // -128 · the sum of the whole numbers: cancels the 128 added to W
  std::int8_t wholes[kGroup];

  /// Four neighbouring bytes as one number.
  std::int32_t quad(int q) const {
    std::int32_t four;
    std::memcpy(&four, wholes + 4 * q, sizeof(four));
    return four;
  }
};

inline void round_row(const float* x, std::int64_t n_in, RowGroup* groups) {
  for (std::int64_t i = 0; i < n_in; i += kGroup, ++groups) {
    groups->start = 0;
    groups->scale = round_group(x + i, 1, std::min(kGroup, n_in - i), [&](std::int64_t j, int whole) {
      groups->wholes[j] = static_cast<std::int8_t>(whole);
      groups->start -= 128 * whole;
    });
  }
}

/// Rounds all rows of x to groups [rows, n_in / 32].
inline void round_rows(ThreadTeam& team, const ProductShape& shape, const float* x, RowGroup* groups) {
  parallel_ranges(team, shape.rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      round_row(x + r * shape.n_in, shape.n_in, groups + r * groups_of(shape.n_in));
    }
  });
}

}  // namespace staircase::rungs
