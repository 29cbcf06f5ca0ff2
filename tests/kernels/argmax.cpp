// argmax of a row of logits on the host, and of rows on a device.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

void check_argmax(const Values& row, int want) {
  CAPTURE(row.size());
  CHECK(argmax(row) == want);
}

constexpr std::size_t kWidths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257};

TEST_CASE("argmax finds the largest value wherever it is") {
  for (const std::size_t width : kWidths) {
    for (std::size_t place = 0; place<width; place += width> 33 ? 13 : 1) {
      Values row = random_values(width, 1);
      row[place] = 2.0f;
      check_argmax(row, static_cast<int>(place));
    }
  }
}

TEST_CASE("argmax takes the lowest index among equals") {
  for (const std::size_t width : kWidths) {
    check_argmax(Values(width, -1.5f), 0);
    for (std::size_t first = 0; first<width; first += width> 33 ? 31 : 3) {
      for (std::size_t second = first; second<width; second += width> 33 ? 17 : 5) {
        Values row = random_values(width, 2);
        row[first] = row[second] = 3.0f;
        check_argmax(row, static_cast<int>(first));
      }
    }
  }
}

TEST_CASE("argmax takes minus and plus zero for equal") {
  check_argmax({-1.0f, -0.0f, 0.0f}, 1);
  check_argmax({-1.0f, 0.0f, -0.0f}, 1);
}

TEST_CASE("argmax skips minus infinity, and takes the first if there is nothing else") {
  for (const std::size_t width : kWidths) {
    Values row(width, -kInfinity);
    check_argmax(row, 0);
    row.back() = -1e38f;
    check_argmax(row, static_cast<int>(width) - 1);
    row.front() = kInfinity;
    check_argmax(row, 0);
  }
}

/// What Device::argmax returns for rows of that width. What follows the results must stay.
std::vector<std::int32_t> largest_of(Device& device, const Values& x, std::size_t width) {
  const std::size_t rows = x.size() / width;
  const Tensor memory = upload_ints(device, std::vector<std::int32_t>(rows + 1, -7));
  Tensor out = memory.rows(0, static_cast<std::int64_t>(rows));
  device.argmax(upload(device, shape_of(rows, width), x), out);
  std::vector<std::int32_t> results(rows + 1);
  device.copy_to_host(memory, std::as_writable_bytes(std::span(results)));
  CHECK(results.back() == -7);
  results.pop_back();
  return results;
}

TEST_CASE("a device's argmax takes the lowest index among equals in every row") {
  for (const std::size_t width : {1u, 2u, 31u, 33u, 257u, 1023u, 1024u, 1025u, 9001u}) {
    CAPTURE(width);
    constexpr std::size_t kRows = 7;
    Values x = random_values(kRows * width, 1);
    std::vector<std::int32_t> want;
    for (std::size_t r = 0; r < kRows; ++r) {
      // Equals: with the same thread of a block, in the same warp, in others, and nowhere.
      const std::size_t places[][2] = {{5, 1029}, {0, 1024}, {3, 4}, {0, width - 1}, {width - 1, width - 1},
                                       {31, 32},  {700, 40}};
      const auto [a, b] = std::pair(places[r][0] % width, places[r][1] % width);
      x[r * width + a] = x[r * width + b] = 2.0f;
      want.push_back(static_cast<std::int32_t>(std::min(a, b)));
    }
    on_every_device([&](Device& device) { CHECK(largest_of(device, x, width) == want); });
  }
}

TEST_CASE("a device's argmax takes minus and plus zero for equal, and negative rows as they are") {
  const float most = std::numeric_limits<float>::max();
  const Values x = {-1.0f, -0.0f, 0.0f,  -1.0f, 0.0f, -0.0f, -3.0f, -2.0f,
                    -2.5f, -most, -most, -most, most, -most, most};
  on_every_device([&](Device& device) {
    CHECK(largest_of(device, x, 3) == std::vector<std::int32_t>{1, 1, 1, 0, 0});
  });
}

TEST_CASE("a device's argmax answers -1 for a row with a number that is not finite, and for no other") {
  for (const std::size_t width : {1u, 33u, 1025u, 9001u}) {
    for (const float broken : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      for (const std::size_t place : {std::size_t{0}, width / 2, width - 1}) {
        CAPTURE(width);
        CAPTURE(broken);
        CAPTURE(place);
        Values x = random_values(3 * width, 1);
        for (std::size_t r = 0; r < 3; ++r) x[r * width] = 2.0f;
        x[width + place] = broken;
        on_every_device([&](Device& device) {
          CHECK(largest_of(device, x, width) == std::vector<std::int32_t>{0, -1, 0});
        });
      }
    }
  }
}

TEST_CASE("a device's argmax makes the next batch, also of rows without a largest number") {
  Values x = random_values(4 * 1025, 1);
  x[1024] = x[1025 + 7] = x[2 * 1025] = x[3 * 1025 + 3] = 2.0f;
  x[2 * 1025 + 5] = kNaN;
  on_every_device([&](Device& device) {
    Batch batch = make_batch(device, {{3, 1}, {0, 1}, {7, 1}, {36, 1}});
    Tensor out = upload_ints(device, {0, 0, 0, 0});
    const auto ints = [&](const Tensor& tensor) {
      std::vector<std::int32_t> values(static_cast<std::size_t>(tensor.size()));
      device.copy_to_host(tensor, std::as_writable_bytes(std::span(values)));
      return values;
    };
    const std::vector<std::int32_t> offsets = ints(batch.offsets);
    device.argmax(upload(device, shape_of(4, 1025), x), out, &batch);
    CHECK(ints(out) == std::vector<std::int32_t>{1024, 7, -1, 3});
    CHECK(ints(batch.tokens) == std::vector<std::int32_t>{1024, 7, 0, 3});
    CHECK(ints(batch.starts) == std::vector<std::int32_t>{4, 1, 8, 37});
    CHECK(ints(batch.offsets) == offsets);
  });
}

}  // namespace
}  // namespace staircase
