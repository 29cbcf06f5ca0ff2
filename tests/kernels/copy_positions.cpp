// copy_positions copies, so it must be equal to the bit.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

struct Cache {
  std::size_t n_rows, n_head, capacity, head_size;
  Values values;

  Shape shape() const {
    return {static_cast<std::int64_t>(n_rows), static_cast<std::int64_t>(n_head),
            static_cast<std::int64_t>(capacity), static_cast<std::int64_t>(head_size)};
  }
  float& at(std::size_t head, std::size_t position, std::size_t i) {
    return values[(head * capacity + position) * head_size + i];
  }
};

Cache some_cache(std::size_t n_rows, std::size_t n_head, std::size_t capacity, std::size_t head_size,
                 std::uint32_t seed, DType dtype) {
  Cache cache{n_rows, n_head, capacity, head_size,
              random_values(n_rows * n_head * capacity * head_size, seed)};
  for (float& value : cache.values) value = rounded(value, dtype);
  return cache;
}

/// The result by the formula.
Values copied(Cache from, std::size_t from_first, std::size_t count, Cache to, std::size_t to_first) {
  for (std::size_t head = 0; head < to.n_rows * to.n_head; ++head) {
    for (std::size_t p = 0; p < count; ++p) {
      for (std::size_t i = 0; i < to.head_size; ++i)
        to.at(head, to_first + p, i) = from.at(head, from_first + p, i);
    }
  }
  return to.values;
}

TEST_CASE("copy_positions copies from one cache to another of any size, and nothing else") {
  for (const DType dtype : kTypes) {
    for (const std::size_t head_size : {1u, 5u, 8u, 64u}) {
      const Cache from = some_cache(2, 3, 41, head_size, 1, dtype),
                  to = some_cache(2, 3, 50, head_size, 2, dtype);
      for (const std::size_t count : {0u, 1u, 33u}) {
        on_every_device([&](Device& device) {
          Tensor out = upload_as(dtype, device, to.shape(), to.values);
          device.copy_positions(upload_as(dtype, device, from.shape(), from.values), 4,
                                static_cast<std::int64_t>(count), out, 7);
          CAPTURE(to_string(dtype));
          CAPTURE(head_size);
          CAPTURE(count);
          CHECK(same_bits(download_any(device, out), copied(from, 4, count, to, 7)));
        });
      }
    }
  }
}

TEST_CASE("copy_positions moves entries inside a cache towards its start, however far") {
  for (const DType dtype : kTypes) {
    for (const std::size_t head_size : {3u, 64u}) {
      const Cache cache = some_cache(2, 5, 97, head_size, 3, dtype);
      for (const std::size_t distance : {0u, 1u, 2u, 50u, 96u}) {
        on_every_device([&](Device& device) {
          Tensor moved = upload_as(dtype, device, cache.shape(), cache.values);
          device.copy_positions(moved, static_cast<std::int64_t>(distance),
                                static_cast<std::int64_t>(97 - distance), moved, 0);
          CAPTURE(to_string(dtype));
          CAPTURE(head_size);
          CAPTURE(distance);
          CHECK(same_bits(download_any(device, moved), copied(cache, distance, 97 - distance, cache, 0)));
        });
      }
    }
  }
}

TEST_CASE("copy_positions reaches one row of a cache through a view") {
  const Cache cache = some_cache(3, 2, 7, 16, 4, DType::kFloat32);
  Cache want = cache;
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t p = 0; p < 5; ++p) {
      for (std::size_t i = 0; i < 16; ++i) want.at(head, p, i) = want.at(4 + head, p, i);
    }
  }
  on_every_device([&](Device& device) {
    const Tensor all = upload(device, cache.shape(), cache.values);
    Tensor first = all.rows(0, 1);
    device.copy_positions(all.rows(2, 1), 0, 5, first, 0);
    CHECK(same_bits(download(device, all), want.values));
  });
}

}  // namespace
}  // namespace staircase
