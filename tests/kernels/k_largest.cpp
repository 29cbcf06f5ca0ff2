// The k largest numbers of rows, and the sum of their exponentials, against a sorted row in double precision.
#include <bit>
#include <cmath>

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

struct Found {
  std::vector<std::int32_t> indices;
  Values values;
  float log_sum;
};

/// What a device finds in each row. What follows the results must stay.
std::vector<Found> k_largest_of(Device& device, const Values& x, std::size_t width, std::size_t k) {
  const std::size_t rows = x.size() / width, own = 2 * k + 1;
  const Tensor memory = upload_ints(device, std::vector<std::int32_t>(rows * own + 1, -7));
  Tensor out = memory.rows(0, static_cast<std::int64_t>(rows * own))
                   .reshaped({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(own)});
  device.k_largest(upload(device, shape_of(rows, width), x), static_cast<std::int64_t>(k), out);
  std::vector<std::int32_t> results(rows * own + 1);
  device.copy_to_host(memory, std::as_writable_bytes(std::span(results)));
  CHECK(results.back() == -7);
  std::vector<Found> all;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span row(results.data() + r * own, own);
    Found& found = all.emplace_back();
    for (std::size_t i = 0; i < k; ++i) {
      found.indices.push_back(row[i]);
      found.values.push_back(std::bit_cast<float>(row[k + i]));
    }
    found.log_sum = std::bit_cast<float>(row[2 * k]);
  }
  return all;
}

/// Compares it for each row.
void check_rows(const Values& x, std::size_t width, std::size_t k) {
  CAPTURE(width);
  CAPTURE(k);
  on_every_device([&](Device& device) {
    const std::vector<Found> all = k_largest_of(device, x, width, k);
    for (std::size_t r = 0; r < all.size(); ++r) {
      CAPTURE(r);
      const std::span row(x.data() + r * width, width);
      std::vector<std::int32_t> order(width);
      for (std::size_t i = 0; i < width; ++i) order[i] = static_cast<std::int32_t>(i);
      std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
      });
      order.resize(k);
      CHECK(all[r].indices == order);
      bool same = true;
      for (std::size_t i = 0; i < k; ++i)
        same = same && all[r].values[i] == row[static_cast<std::size_t>(order[i])];
      CHECK(same);
      const double largest = row[static_cast<std::size_t>(order[0])];
      double sum = 0.0;
      for (const float value : row) sum += std::exp(value - largest);
      CHECK(std::abs(all[r].log_sum - (largest + std::log(sum))) < 2e-6 * (1.0 + std::abs(largest)));
    }
  });
}

TEST_CASE("k_largest finds the largest numbers of each row in order") {
  for (const auto& [width, k] : {std::pair<std::size_t, std::size_t>{1, 1},
                                 {2, 2},
                                 {33, 1},
                                 {257, 64},
                                 {1025, 1024},
                                 {5003, 64},
                                 {9001, 1024}}) {
    Values x = random_values(3 * width, 1);
    for (float& value : x) value *= 10.0f;
    check_rows(x, width, k);
  }
}

TEST_CASE("k_largest takes the lowest indices among equals, however many there are") {
  // All are equal; a few of two values; and numbers that only their last bits tell apart.
  constexpr std::size_t kWidth = 5000;
  Values x(4 * kWidth, -1.5f);
  for (std::size_t i = 0; i < kWidth; ++i) {
    x[kWidth + i] = static_cast<float>(i % 3);
    x[2 * kWidth + i] = std::bit_cast<float>(0x41200000u + static_cast<unsigned>(i * 7919 % 4096));
    x[3 * kWidth + i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  check_rows(x, kWidth, 70);
  check_rows(x, kWidth, 1024);
}

TEST_CASE("k_largest finds the largest of negative rows, of rising and of falling ones") {
  constexpr std::size_t kWidth = 3000;
  Values x;
  for (std::size_t i = 0; i < kWidth; ++i) x.push_back(-200.0f - static_cast<float>(i) / 100.0f);
  for (std::size_t i = 0; i < kWidth; ++i) x.push_back(static_cast<float>(i) / 100.0f);
  for (std::size_t i = 0; i < kWidth; ++i) x.push_back(i == 5 ? 3e38f : i == 6 ? -3e38f : 1e-40f);
  check_rows(x, kWidth, 100);
}

TEST_CASE("k_largest answers -1 for a row with a number that is not finite, and for no other") {
  for (const std::size_t width : {1u, 33u, 1025u}) {
    for (const float broken : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      for (const std::size_t place : {std::size_t{0}, width / 2, width - 1}) {
        CAPTURE(width);
        CAPTURE(broken);
        CAPTURE(place);
        Values x = random_values(3 * width, 1);
        for (std::size_t r = 0; r < 3; ++r) x[r * width] = 2.0f;
        x[width + place] = broken;
        on_every_device([&](Device& device) {
          const std::vector<Found> all = k_largest_of(device, x, width, 1);
          CHECK(all[0].indices[0] == 0);
          CHECK(all[1].indices[0] == -1);
          CHECK(all[2].indices[0] == 0);
        });
      }
    }
  }
}

}  // namespace
}  // namespace staircase
