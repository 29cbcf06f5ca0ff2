// Where the key of a position is: the block by a multiplication in the place of a division.
#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/device_tensors.cuh"

using namespace staircase;
using cuda::Divisor;

TEST_CASE("a divisor returns the quotient of each whole number") {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const int by : {1, 2, 3, 16, 48, 1000, 1024, 65536, 65537, 131072, 1 << 30, kMost - 1, kMost}) {
    const Divisor divisor(by);
    CAPTURE(by);
    // Around the multiples of `by`, where an error of one would show.
    for (const int multiple : {0, 1, 2, 3, 1000, 65535, kMost / by - 1, kMost / by}) {
      if (multiple < 0 || multiple > kMost / by) continue;
      for (const int more : {-1, 0, 1}) {
        const std::int64_t number = std::int64_t{multiple} * by + more;
        if (number < 0 || number > kMost) continue;
        CAPTURE(number);
        CHECK(divisor.quotient(static_cast<int>(number)) == number / by);
      }
    }
    CHECK(divisor.quotient(kMost) == kMost / by);
  }
}

TEST_CASE("a position is found in its block, and without a table in its row") {
  constexpr int kRows = 3, kMost = 40, kHeads = 2;
  for (const int size : {16, 48, 1024}) {
    CAPTURE(size);
    std::vector<std::int32_t> table(kRows * kMost);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i * 7 % table.size());
    const auto nothing = std::make_shared<float>();
    const Tensor keys(DType::kFloat32, {kRows * kMost, kHeads, size, 4}, nothing);
    const Tensor blocks(DType::kInt32, {kRows, kMost}, std::shared_ptr<void>(table.data(), [](void*) {}));
    const cuda::Blocks in_blocks(KeysValues{keys, keys, blocks}), in_rows(KeysValues{keys, keys});
    for (const int row : {0, kRows - 1}) {
      for (int position = 0; position < kMost * size; ++position) {
        const int block = table[static_cast<std::size_t>(row * kMost + position / size)];
        const std::int64_t place = (block * kHeads + 1) * size + position % size;
        if (in_blocks.place(row, 1, kHeads, position) != place) FAIL_CHECK("position ", position);
        if (position < size)
          CHECK(in_rows.place(row, 1, kHeads, position) == (row * kHeads + 1) * size + position);
      }
    }
  }
}
