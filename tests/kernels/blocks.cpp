// Keys and values in blocks, which a table names: the operations that read and write them give the same bits
// as with contiguous rows, and agree with plain loops. The tolerance is that of attention.cpp.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr std::size_t kBlockSize = 16;

/// A batch on rows of `most` blocks each, in any order; all rows share the first `shared` of them.
struct Paged {
  std::vector<Sequence> sequences;
  std::size_t n_head, head_size;
  std::size_t most, shared = 0;
  DType dtype = DType::kFloat32;
  std::size_t block_size = kBlockSize;
  std::size_t group = 1;  // heads of queries to each of the n_head heads of keys

  std::size_t rows = sequences.size(), width = n_head * head_size, capacity = most * block_size;
  std::size_t n_blocks = rows * most + 3;  // with some that belong to no row
  std::vector<std::int32_t> table = shuffled_table();

  std::vector<std::int32_t> shuffled_table() const {
    std::vector<std::int32_t> numbers(n_blocks);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(4));
    for (std::size_t row = 1; row < rows; ++row) {
      for (std::size_t b = 0; b < shared; ++b) numbers[row * most + b] = numbers[b];
    }
    numbers.resize(rows * most);
    return numbers;
  }

  std::size_t n_tokens() const {
    std::size_t count = 0;
    for (const Sequence& s : sequences) count += static_cast<std::size_t>(s.count);
    return count;
  }

  /// side_by_side [rows, n_head, capacity, head_size] as [n_blocks, n_head, block_size, head_size]; `others`
  /// is in the blocks of no row.
  Values in_blocks(const Values& side_by_side, float others) const {
    Values blocks(n_blocks * block_size * width, others);
    for_each_position([&](std::size_t from, std::size_t to) {
      std::copy_n(side_by_side.data() + from, head_size, blocks.data() + to);
    });
    return blocks;
  }

  Values side_by_side(const Values& blocks) const {
    Values rows_of_positions(rows * capacity * width);
    for_each_position([&](std::size_t to, std::size_t from) {
      std::copy_n(blocks.data() + from, head_size, rows_of_positions.data() + to);
    });
    return rows_of_positions;
  }

  /// action(its first element side by side, its first element in blocks) for every position of a head.
  template <typename Action>
  void for_each_position(const Action& action) const {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t head = 0; head < n_head; ++head) {
        for (std::size_t p = 0; p < capacity; ++p) {
          const auto block = static_cast<std::size_t>(table[row * most + p / block_size]);
          action(((row * n_head + head) * capacity + p) * head_size,
                 ((block * n_head + head) * block_size + p % block_size) * head_size);
        }
      }
    }
  }

  KeysValues upload_rows(Device& device, const Values& keys, const Values& values) const {
    const Shape shape = shape_of_cache(rows, capacity);
    return {upload_as(dtype, device, shape, keys), upload_as(dtype, device, shape, values)};
  }

  KeysValues upload_blocks(Device& device, const Values& keys, const Values& values, float others) const {
    const Shape shape = shape_of_cache(n_blocks, block_size);
    return {upload_as(dtype, device, shape, in_blocks(keys, others)),
            upload_as(dtype, device, shape, in_blocks(values, others)),
            upload_ints(device, table).reshaped(shape_of(rows, most))};
  }

  Shape shape_of_cache(std::size_t count, std::size_t positions) const {
    return {static_cast<std::int64_t>(count), static_cast<std::int64_t>(n_head),
            static_cast<std::int64_t>(positions), static_cast<std::int64_t>(head_size)};
  }

  /// Random numbers where some sequence reads, NaN after its last position; rows agree where they share.
  Values random_cache(std::uint32_t seed) const {
    const Values numbers = rounded(random_values(rows * capacity * width, seed), dtype);
    Values all = side_by_side(in_blocks(numbers, kNaN));
    for (std::size_t row = 0; row < rows; ++row) {
      const auto end = static_cast<std::size_t>(sequences[row].start + sequences[row].count);
      for (std::size_t head = 0; head < n_head; ++head) {
        const std::size_t first = (row * n_head + head) * capacity;
        std::fill(all.begin() + static_cast<std::ptrdiff_t>((first + end) * head_size),
                  all.begin() + static_cast<std::ptrdiff_t>((first + capacity) * head_size), kNaN);
      }
    }
    return all;
  }

  void check_attention(std::int32_t window = kNoWindow) const {
    const Values queries = rounded(random_values(n_tokens() * group * width, 1), dtype);
    const Values keys = random_cache(2), values = random_cache(3);
    const auto want = naive::attention(sequences, queries, keys, values, capacity, group * width,
                                       group * n_head, group, static_cast<std::size_t>(window));
    on_every_device([&](Device& device) {
      const auto run = [&](KeysValues keys_values) {
        keys_values.window = window;
        Tensor out = result_tensor(device, shape_of(n_tokens(), group * width));
        device.attention(make_batch(device, sequences),
                         upload(device, shape_of(n_tokens(), group * width), queries), keys_values, out);
        return download(device, out);
      };
      INFO(to_string(sequences));
      INFO(to_string(dtype));
      CAPTURE(n_head);
      CAPTURE(group);
      CAPTURE(head_size);
      CAPTURE(shared);
      const Values in_blocks = run(upload_blocks(device, keys, values, kNaN));
      CHECK(same_bits(in_blocks, run(upload_rows(device, keys, values))));
      const double rounding = rounds_weights(device, dtype) ? rounding_error(dtype) : 0.0;
      CHECK(difference("out", in_blocks, want, group * width, 1e-6 + rounding) == "");
    });
  }

  /// A single sequence whose few blocks come round: a block holds the newest positions that belong to it.
  void check_ring(std::int32_t window) const {
    const auto end = static_cast<std::size_t>(sequences[0].start + sequences[0].count);
    const std::size_t seen = static_cast<std::size_t>(window - 1 + sequences[0].count);
    const std::size_t n = (seen + block_size - 1) / block_size;
    const Values queries = rounded(random_values(n_tokens() * group * width, 1), dtype);
    const Values keys = random_cache(2), values = random_cache(3);
    const auto round = [&](const Values& contiguous) {
      Values ring(n * block_size * width, kCanary);
      for (std::size_t p = 0; p < end; ++p) {
        for (std::size_t head = 0; head < n_head; ++head) {
          const std::size_t block = p / block_size % n * n_head + head;
          std::copy_n(contiguous.data() + (head * capacity + p) * head_size, head_size,
                      ring.data() + (block * block_size + p % block_size) * head_size);
        }
      }
      return ring;
    };
    std::vector<std::int32_t> comes_round(most);
    for (std::size_t b = 0; b < most; ++b) comes_round[b] = static_cast<std::int32_t>(b % n);
    on_every_device([&](Device& device) {
      const auto run = [&](KeysValues keys_values) {
        keys_values.window = window;
        Tensor out = result_tensor(device, shape_of(n_tokens(), group * width));
        device.attention(make_batch(device, sequences),
                         upload(device, shape_of(n_tokens(), group * width), queries), keys_values, out);
        return download(device, out);
      };
      INFO(to_string(sequences));
      INFO(to_string(dtype));
      CAPTURE(window);
      CAPTURE(group);
      const Shape shape = shape_of_cache(n, block_size);
      const KeysValues ring{upload_as(dtype, device, shape, round(keys)),
                            upload_as(dtype, device, shape, round(values)),
                            upload_ints(device, comes_round).reshaped(shape_of(1, most))};
      CHECK(same_bits(run(ring), run(upload_rows(device, keys, values))));
    });
  }

  void check_query_key_value() const {
    const Values x = random_values(n_tokens() * width, 5), w = random_values(3 * width * width, 6),
                 bias = random_values(3 * width, 7);
    const Values before(rows * capacity * width, kCanary);
    on_every_device([&](Device& device) {
      const auto run = [&](KeysValues& keys_values) {
        Tensor queries = result_tensor(device, shape_of(n_tokens(), width));
        device.query_key_value(make_batch(device, sequences), upload(device, shape_of(n_tokens(), width), x),
                               {}, upload_weight(device, w, width, 3 * width),
                               upload(device, {static_cast<std::int64_t>(3 * width)}, bias), queries,
                               keys_values);
        return download(device, queries);
      };
      KeysValues paged = upload_blocks(device, before, before, kCanary),
                 plain = upload_rows(device, before, before);
      INFO(to_string(sequences));
      INFO(to_string(dtype));
      CAPTURE(n_head);
      CAPTURE(head_size);
      CHECK(same_bits(run(paged), run(plain)));
      const float canary = rounded(kCanary, dtype);
      CHECK(same_bits(download_any(device, paged.keys), in_blocks(download_any(device, plain.keys), canary)));
      CHECK(same_bits(download_any(device, paged.values),
                      in_blocks(download_any(device, plain.values), canary)));
    });
  }
};

TEST_CASE("attention in blocks gives the same bits as in contiguous rows, for every size of heads") {
  for (const DType dtype : kTypes) {
    for (const std::size_t head_size : {1u, 7u, 15u, 16u, 25u, 64u, 80u}) {
      Paged{{{0, 40}, {37, 3}, {14, 1}, {15, 1}, {16, 1}}, 3, head_size, 3, 0, dtype}.check_attention();
      Paged{{{47, 1}, {0, 1}, {30, 2}}, 3, head_size, 3, 0, dtype}.check_attention();
      Paged{{{0, 17}}, 1, head_size, 2, 0, dtype}.check_attention();
    }
  }
}

TEST_CASE("attention in blocks gives the same bits as in contiguous rows, whatever the block's size") {
  for (const std::size_t block_size : {16u, 32u, 48u}) {
    Paged{{{90, 1}, {0, 50}, {20, 5}}, 2, 20, 6, 0, DType::kFloat32, block_size}.check_attention();
  }
}

TEST_CASE("attention in blocks agrees with its formula when the cache is long") {
  for (const DType dtype : kTypes) {
    Paged{{{700, 1}, {959, 1}, {3, 1}}, 3, 16, 60, 0, dtype}.check_attention();
    Paged{{{512, 1}}, 12, 64, 33, 0, dtype}.check_attention();
    Paged{{{256, 130}}, 2, 64, 25, 0, dtype}.check_attention();
  }
}

TEST_CASE("attention with a window in blocks gives the same bits as in contiguous rows") {
  for (const DType dtype : kTypes) {
    for (const std::int32_t window : {1, 17, 64, 100}) {
      for (const std::size_t block_size : {16u, 48u, 64u}) {
        const std::size_t most = 384 / block_size;
        Paged{{{290, 1}, {0, 150}, {220, 5}}, 1, 24, most, 0, dtype, block_size}.check_attention(window);
        Paged{{{200, 1}, {330, 20}}, 1, 64, most, 0, dtype, block_size, 3}.check_attention(window);
      }
    }
  }
}

TEST_CASE("attention with a window gives the same bits in a ring, where older positions are overwritten") {
  for (const DType dtype : kTypes) {
    for (const std::int32_t window : {1, 17, 64, 100}) {
      for (const Sequence& sequence : {Sequence{290, 1}, {200, 64}, {0, 90}, {130, 5}, {255, 33}}) {
        for (const std::size_t group : {1u, 2u}) {
          Paged{{sequence}, 2, 24, 24, 0, dtype, kBlockSize, group}.check_ring(window);
        }
      }
    }
  }
}

TEST_CASE("heads that share keys in blocks get the same bits as in contiguous rows") {
  for (const DType dtype : kTypes) {
    for (const std::size_t group : {2u, 3u, 4u, 8u}) {
      for (const std::size_t head_size : {7u, 64u, 128u}) {
        Paged{{{0, 40}, {37, 3}, {14, 1}, {16, 1}}, 2, head_size, 3, 0, dtype, kBlockSize, group}
            .check_attention();
      }
      Paged{{{90, 1}, {0, 50}, {20, 5}}, 1, 16, 6, 0, dtype, 48, group}.check_attention();
    }
  }
}

TEST_CASE("rows that share blocks read the same keys and values") {
  for (const DType dtype : kTypes) {
    Paged{{{32, 1}, {40, 1}, {47, 1}}, 3, 24, 3, 2, dtype}.check_attention();
    Paged{{{32, 16}, {33, 12}}, 3, 24, 3, 2, dtype}.check_attention();
  }
}

TEST_CASE("query_key_value writes each position into its block, and nothing else") {
  for (const DType dtype : kTypes) {
    for (const std::size_t head_size : {1u, 7u, 16u, 25u}) {
      Paged{{{0, 33}, {15, 2}, {31, 1}, {20, 0}}, 3, head_size, 3, 0, dtype}.check_query_key_value();
      Paged{{{47, 1}, {16, 1}, {0, 1}}, 3, head_size, 3, 0, dtype}.check_query_key_value();
    }
  }
}

}  // namespace
}  // namespace staircase
