// attention against plain loops.
//
// The tolerance: the result is a mean of values below 1. Its weights err by the relative error of exp of a
// score, some eps · |score|. That is 1e-6 for the ordinary scores here, and 1e-5 where queries and keys are
// large. If keys and values have 16 bits, a GPU rounds the weights of many queries to their type as well, as
// does a processor that multiplies in bfloat16. Their mean errs by no more than the largest relative error of
// a weight.
#include <array>

#include "tests/kernels/kernel_test.h"

#if defined(__linux__) && !defined(STAIRCASE_CUDA_EMULATION)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace staircase {
namespace {

struct Attention {
  std::vector<Sequence> sequences;
  std::size_t n_head, head_size;
  std::size_t spare = 5;          // positions of capacity that no sequence needs
  float scale = 1.0f;             // of queries and keys
  DType dtype = DType::kFloat32;  // of keys and values
  std::size_t group = 1;          // query heads per key head
  std::int32_t window = kNoWindow;

  std::size_t width = n_head * head_size, n_tokens = 0, capacity = spare, n_kv_head = n_head / group;
  Values queries, keys, values;

  /// In 16 bits all numbers are rounded here, the queries as well: tensor cores take no others.
  Attention(std::vector<Sequence> batch, std::size_t heads, std::size_t size, float query_scale = 1.0f,
            DType type = DType::kFloat32, std::size_t heads_of_group = 1)
      : sequences(std::move(batch)),
        n_head(heads),
        head_size(size),
        scale(query_scale),
        dtype(type),
        group(heads_of_group) {
    std::size_t longest = 0;
    for (const Sequence& s : sequences) {
      n_tokens += static_cast<std::size_t>(s.count);
      longest = std::max(longest, static_cast<std::size_t>(s.start + s.count));
    }
    capacity = longest + spare;
    queries = rounded(random_values(n_tokens * width, 1, scale), dtype);
    const std::size_t cached = sequences.size() * n_kv_head * capacity * head_size;
    keys = rounded(random_values(cached, 2, scale), dtype);
    values = rounded(random_values(cached, 3), dtype);
    // After the positions in use, a cache may hold anything, NaN too.
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto end = static_cast<std::size_t>(sequences[s].start + sequences[s].count);
      for (std::size_t head = s * n_kv_head; head < (s + 1) * n_kv_head; ++head) {
        for (std::size_t i = (head * capacity + end) * head_size; i < (head + 1) * capacity * head_size;
             ++i) {
          keys[i] = values[i] = kNaN;
        }
      }
    }
  }

  /// Of the only sequence, `count` queries from query `first` on: the others came before or come later.
  Attention piece(int first, int count) const {
    Attention piece = *this;
    piece.sequences = {{sequences[0].start + first, count}};
    piece.n_tokens = static_cast<std::size_t>(count);
    const float* const query = queries.data() + static_cast<std::size_t>(first) * width;
    piece.queries.assign(query, query + piece.n_tokens * width);
    return piece;
  }

  Values run(Device& device, DType out_type = DType::kFloat32) const {
    const auto rows = static_cast<std::int64_t>(n_tokens), columns = static_cast<std::int64_t>(width);
    const Shape cache{static_cast<std::int64_t>(sequences.size()), static_cast<std::int64_t>(n_kv_head),
                      static_cast<std::int64_t>(capacity), static_cast<std::int64_t>(head_size)};
    Tensor out = upload_as(out_type, device, {rows, columns}, Values(n_tokens * width, kNaN));
    const KeysValues keys_values{
        upload_as(dtype, device, cache, keys), upload_as(dtype, device, cache, values), {}, window};
    device.attention(make_batch(device, sequences), upload(device, {rows, columns}, queries), keys_values,
                     out);
    return download_any(device, out);
  }

  void check(double tolerance) const {
    const auto want = naive::attention(sequences, queries, keys, values, capacity, width, n_head, group,
                                       static_cast<std::size_t>(window));
    on_every_device([&](Device& device) {
      const bool on_vector_units =
          !has_one_kernel(device) && (n_tokens < 12 * sequences.size() || head_size % 16 != 0);
      const double rounding = dtype == DType::kFloat32 ? 0.0 : rounding_error(dtype);
      const double within = tolerance + (rounds_weights(device, dtype) && !on_vector_units ? rounding : 0.0);
      INFO(to_string(sequences));
      CAPTURE(n_head);
      CAPTURE(group);
      CAPTURE(head_size);
      CAPTURE(window);
      INFO(to_string(dtype));
      const Values got = run(device);
      CHECK(difference("out", got, want, width, within) == "");
      if (dtype == DType::kFloat32 || device.operand_dtype(1000, dtype) != dtype) return;
      const Values stored = run(device, dtype);
      // The values are below 1, and so is every result.
      CHECK(difference("16-bit out", stored, want, width, within + rounding) == "");
      if (has_one_kernel(device)) CHECK(stored == rounded(got, dtype));
    });
  }
};

TEST_CASE("attention agrees with its formula for one sequence of any length from any start") {
  for (const int count : {1, 2, 15, 16, 17, 33, 130}) {
    for (const int start : {0, 1, 7, 100}) Attention({{start, count}}, 3, 8).check(1e-6);
  }
}

TEST_CASE("attention agrees with its formula for every number and size of heads") {
  const std::vector<Sequence> batch = {{0, 17}, {7, 2}};
  for (const std::size_t n_head : {1u, 3u, 5u, 12u, 25u}) {
    for (const std::size_t head_size : {1u, 2u, 3u, 7u, 8u, 15u, 16u, 17u, 25u, 31u, 64u, 80u}) {
      Attention(batch, n_head, head_size).check(1e-6);
    }
  }
  for (const std::size_t head_size : {64u, 65u, 79u, 80u, 96u, 128u, 200u}) {
    Attention(batch, 1, head_size).check(1e-6);
  }
}

TEST_CASE("attention keeps sequences of different lengths and starts in one batch apart") {
  Attention({{0, 130}, {100, 1}, {7, 15}, {0, 1}, {1, 16}, {100, 33}, {0, 2}, {7, 17}}, 5, 15).check(1e-6);
  Attention({{100, 1}, {1, 1}, {0, 1}, {7, 1}}, 12, 8).check(1e-6);
  Attention({{0, 16}, {0, 17}, {0, 15}}, 3, 32).check(1e-6);
}

TEST_CASE("attention of a few queries agrees with its formula when the cache is long") {
  // On a GPU several blocks share the keys of a query; those of a short sequence have none to read.
  for (const int start : {127, 500, 959}) {
    for (const int count : {1, 2, 5}) Attention({{start, count}}, 1, 16).check(1e-6);
    Attention({{start, 1}, {0, 1}, {3, 2}}, 3, 8).check(1e-6);
  }
}

TEST_CASE("a sequence without new tokens changes nothing in a batch") {
  Attention({{3, 0}, {0, 17}, {5, 0}, {2, 3}, {0, 0}}, 3, 8).check(1e-6);
}

TEST_CASE("scores too large for exp do not overflow") {
  // Scores of up to 100² · 16 / 4 = 40000: all the weight is on one key, but for near-ties.
  for (const int count : {1, 40}) Attention({{20, count}}, 3, 16, 100.0f).check(2e-3);
  // Scores of up to 100 keep several weights alive.
  for (const int count : {1, 40}) Attention({{20, count}}, 3, 16, 5.0f).check(1e-5);
}

TEST_CASE("a score beyond all numbers weighs nothing if it is negative") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int count : {1, 40}) {
      Attention attention({{20, count}}, 1, 16, 1.0f, dtype);
      for (float& query : attention.queries) query = std::abs(query);
      std::fill_n(attention.keys.begin() + 5 * 16, 16, -3e38f);
      attention.keys = rounded(attention.keys, dtype);
      attention.check(1e-6);
    }
  }
}

TEST_CASE("equal keys give the mean of the values seen") {
  for (const int count : {3, 20}) {
    Attention attention({{0, count}}, 1, 4);
    for (float& key : attention.keys) key = std::isnan(key) ? key : 0.5f;
    on_every_device([&](Device& device) {
      const Values out = attention.run(device);
      naive::Doubles sum(4), want;
      for (std::size_t p = 0; p < attention.n_tokens; ++p) {
        for (std::size_t i = 0; i < 4; ++i) {
          sum[i] += static_cast<double>(attention.values[p * 4 + i]);
          want.push_back(sum[i] / static_cast<double>(p + 1));
        }
      }
      CHECK(difference("out", out, want, 4, 1e-6) == "");
    });
  }
}

TEST_CASE("attention on keys and values in 16 bits agrees with its formula") {
  for (const DType dtype : kHalves) {
    const auto check = [&](std::vector<Sequence> batch, std::size_t n_head, std::size_t head_size) {
      Attention(std::move(batch), n_head, head_size, 1.0f, dtype).check(1e-6);
    };
    for (const int count : {1, 2, 31, 33}) {
      for (const int start : {0, 1, 100}) check({{start, count}}, 3, 8);
    }
    for (const auto& [n_head, head_size] :
         {std::pair{1u, 12u}, {3u, 64u}, {12u, 64u}, {25u, 7u}, {1u, 1u}, {1u, 128u}, {1u, 200u}}) {
      check({{0, 17}}, n_head, head_size);
      check({{7, 2}, {0, 1}}, n_head, head_size);
    }
    check({{100, 1}, {3, 0}, {0, 33}, {7, 15}}, 5, 16);
  }
}

TEST_CASE("attention in tiles of 16-bit keys agrees with its formula at every edge of a tile") {
  for (const DType dtype : kHalves) {
    const auto check = [&](std::vector<Sequence> batch, std::size_t n_head, std::size_t head_size) {
      Attention(std::move(batch), n_head, head_size, 1.0f, dtype).check(1e-6);
    };
    for (const int count : {12, 15, 16, 17, 63, 64, 65, 130}) {
      for (const int start : {0, 1, 62, 64}) check({{start, count}}, 2, 16);
    }
    for (const std::size_t head_size : {32u, 48u, 64u, 80u, 96u, 112u, 128u}) {
      check({{0, 33}}, 2, head_size);
      check({{30, 35}}, 1, head_size);
    }
    check({{0, 70}, {3, 0}, {100, 1}, {64, 17}, {0, 65}}, 3, 32);
    // Weights from 1 down to nothing.
    Attention({{20, 40}}, 3, 16, 5.0f, dtype).check(1e-5);
  }
}

TEST_CASE("attention over 513 positions agrees with its formula in every dtype") {
  for (const DType dtype : kTypes) {
    Attention({{512, 1}}, 12, 64, 1.0f, dtype).check(1e-6);
    Attention({{0, 513}}, 1, 16, 1.0f, dtype).check(1e-6);
  }
}

/// Heads of queries and heads of keys.
constexpr std::pair<std::size_t, std::size_t> kGroupedHeads[] = {{4, 2}, {9, 3}, {4, 1}, {16, 2},
                                                                 {5, 1}, {6, 1}, {7, 1}, {12, 1}};

TEST_CASE("attention of heads that share keys agrees with its formula, in decoding and in prefill") {
  for (const DType dtype : kTypes) {
    for (const auto& [n_head, n_kv_head] : kGroupedHeads) {
      const auto check = [&, heads = n_head, group = n_head / n_kv_head](std::vector<Sequence> batch,
                                                                         std::size_t head_size) {
        Attention(std::move(batch), heads, head_size, 1.0f, dtype, group).check(1e-6);
      };
      for (const std::size_t head_size : {8u, 15u, 64u, 128u}) {
        check({{100, 1}, {0, 1}, {37, 2}, {5, 0}}, head_size);
        check({{3, 17}, {20, 1}, {0, 33}}, head_size);
      }
      for (const std::size_t head_size : {16u, 32u, 80u, 96u}) check({{20, 3}, {0, 18}}, head_size);
    }
  }
}

TEST_CASE(
    "attention of heads that share keys agrees with its formula thousands of positions from the start") {
  for (const DType dtype : kTypes) {
    Attention({{3000, 1}, {17, 1}, {2047, 4}}, 9, 64, 1.0f, dtype, 3).check(1e-6);
    Attention({{2500, 20}}, 4, 16, 1.0f, dtype, 2).check(1e-6);
  }
}

TEST_CASE("a query sees no more positions than the window has") {
  const std::vector<Sequence> batches[] = {
      {{0, 130}}, {{299, 1}, {62, 1}, {63, 1}, {64, 1}, {0, 1}, {5, 0}}, {{150, 3}, {0, 33}, {30, 70}}};
  for (const DType dtype : kTypes) {
    for (const auto& [n_head, group, head_size] :
         {std::tuple{3u, 1u, 15u}, {1u, 1u, 64u}, {4u, 2u, 16u}, {2u, 2u, 128u}, {1u, 1u, 200u}}) {
      for (const std::int32_t window : {1, 16, 63, 64, 65, 129}) {
        for (const auto& batch : batches) {
          Attention attention(batch, n_head, head_size, 1.0f, dtype, group);
          attention.window = window;
          attention.check(1e-6);
        }
      }
    }
    Attention far({{700, 1}, {959, 1}}, 1, 16, 1.0f, dtype);  // on a GPU several blocks share a long window
    for (const std::int32_t window : {130, 500}) {
      far.window = window;
      far.check(1e-6);
    }
  }
}

TEST_CASE("keys far before the window are not read") {
  for (const DType dtype : kTypes) {
    for (const int count : {1, 2, 17, 60}) {
      Attention attention({{400, count}}, 2, 16, 1.0f, dtype);
      attention.window = 30;
      on_every_device([&](Device& device) {
        const Values before = attention.run(device);
        Attention broken = attention;
        for (std::size_t head = 0; head < 2; ++head) {
          for (std::size_t i = head * attention.capacity * 16, end = i + 300 * 16; i < end; ++i) {
            broken.keys[i] = broken.values[i] = kNaN;
          }
        }
        CHECK(same_bits(broken.run(device), before));
      });
    }
  }
}

TEST_CASE("on the CPU queries with a window get the same bits alone, in parts and all together") {
  const std::unique_ptr<Device> device = make_cpu_device(2);
  for (const DType dtype : kTypes) {
    for (const std::size_t head_size : {15u, 64u, 80u}) {
      Attention all({{100, 90}}, 4, head_size, 1.0f, dtype, 2);
      for (const std::int32_t window : {1, 20, 64, 70}) {
        all.window = window;
        const Values together = all.run(*device);
        for (const int step : {1, 3, 16, 17, 40}) {
          Values pieces;
          for (int first = 0; first < 90; first += step) {
            Attention piece = all.piece(first, std::min(step, 90 - first));
            const Values out = piece.run(*device);
            pieces.insert(pieces.end(), out.begin(), out.end());
          }
          CAPTURE(to_string(dtype));
          CAPTURE(head_size);
          CAPTURE(window);
          CAPTURE(step);
          CHECK(same_bits(pieces, together));
        }
      }
    }
  }
}

TEST_CASE("queries one by one give the same as together") {
  const Attention all({{7, 130}}, 3, 25);
  on_every_device([&](Device& device) {
    const Values together = all.run(device);
    for (const int step : {1, 5}) {
      Values pieces;
      for (int first = 0; first < 130; first += step) {
        const Values out = all.piece(first, step).run(device);
        pieces.insert(pieces.end(), out.begin(), out.end());
      }
      CAPTURE(step);
      CHECK(difference("out", pieces, together, all.width, 1e-5) == "");
    }
  });
}

TEST_CASE("on the CPU queries get the same bits alone, in parts and all together") {
  const std::unique_ptr<Device> device = make_cpu_device(2);
  for (const DType dtype : kTypes) {
    for (const std::size_t head_size : {5u, 15u, 16u, 24u, 64u, 80u}) {
      const Attention all({{7, 61}}, 3, head_size, 1.0f, dtype);
      const Values together = all.run(*device);
      for (const int step : {1, 2, 4, 7, 15, 16, 17, 40}) {
        Values pieces;
        for (int first = 0; first < 61; first += step) {
          const Values out = all.piece(first, std::min(step, 61 - first)).run(*device);
          pieces.insert(pieces.end(), out.begin(), out.end());
        }
        CAPTURE(to_string(dtype));
        CAPTURE(head_size);
        CAPTURE(step);
        CHECK(same_bits(pieces, together));
      }
    }
  }
}

TEST_CASE("on the CPU queries that share keys get the same bits alone, in parts and all together") {
  const std::unique_ptr<Device> device = make_cpu_device(2);
  for (const DType dtype : kTypes) {
    for (const auto& heads : kGroupedHeads) {
      const auto n_head = heads.first, n_kv_head = heads.second;
      for (const std::size_t head_size : {15u, 64u, 80u, 128u}) {
        const Attention all({{7, 40}}, n_head, head_size, 1.0f, dtype, n_head / n_kv_head);
        const Values together = all.run(*device);
        for (const int step : {1, 2, 3, 5, 16, 17}) {
          Values pieces;
          for (int first = 0; first < 40; first += step) {
            const Values out = all.piece(first, std::min(step, 40 - first)).run(*device);
            pieces.insert(pieces.end(), out.begin(), out.end());
          }
          CAPTURE(to_string(dtype));
          CAPTURE(n_head);
          CAPTURE(n_kv_head);
          CAPTURE(head_size);
          CAPTURE(step);
          CHECK(same_bits(pieces, together));
        }
        // And those that each would get if it shared its keys with no other.
        Attention apart({{7, 40}}, n_head, head_size, 1.0f, dtype);
        apart.queries = all.queries;
        const std::size_t of_head = all.capacity * head_size;
        for (std::size_t head = 0; head < n_head; ++head) {
          const auto from = static_cast<std::ptrdiff_t>(head / all.group * of_head),
                     to = static_cast<std::ptrdiff_t>(head * of_head),
                     count = static_cast<std::ptrdiff_t>(of_head);
          std::copy_n(all.keys.begin() + from, count, apart.keys.begin() + to);
          std::copy_n(all.values.begin() + from, count, apart.values.begin() + to);
        }
        CHECK(same_bits(apart.run(*device), together));
      }
    }
  }
}

#ifndef STAIRCASE_CUDA_EMULATION
TEST_CASE("on the CPU products too small for a normal number count alone as in a prompt") {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  for (const DType dtype : kTypes) {
    // Each score is 8 times the first number of the key / 8. A quarter of exp(-87) is a subnormal number,
    // 4e-39.
    Attention all({{7, 61}}, 1, 64, 1.0f, dtype);
    std::fill(all.queries.begin(), all.queries.end(), 8.0f);
    std::fill(all.keys.begin(), all.keys.end(), 0.0f);
    std::fill(all.values.begin(), all.values.end(), 0.0f);
    for (std::size_t p = 0; p < 7; ++p) {
      all.keys[p * 64] = -87.0f;
      std::fill_n(all.values.begin() + static_cast<std::ptrdiff_t>(p) * 64, 64, 0.25f);
    }
    Values alone;
    for (int first = 0; first < 61; ++first) {
      const Values out = all.piece(first, 1).run(*device);
      alone.insert(alone.end(), out.begin(), out.end());
    }
    CAPTURE(to_string(dtype));
    CHECK(same_bits(alone, all.run(*device)));
  }
}

TEST_CASE("on the CPU threads that share the heads of a long text compute the bits of one thread") {
  const std::unique_ptr<Device> one = make_cpu_device(1), many = make_cpu_device(8);
  const std::vector<Sequence> batches[] = {
      {{1100, 1}}, {{1022, 1}}, {{1023, 1}}, {{1200, 5}}, {{1100, 2}, {20, 1}, {0, 30}}, {{1030, 1}, {1, 0}}};
  for (const DType dtype : kTypes) {
    for (const std::array<unsigned, 3>& shape :
         {std::array{9u, 3u, 64u}, {1u, 1u, 15u}, {10u, 10u, 80u}, {3u, 1u, 128u}}) {
      const unsigned n_head = shape[0], group = shape[1], head_size = shape[2];
      for (const std::vector<Sequence>& batch : batches) {
        for (const std::int32_t window : {kNoWindow, std::int32_t{700}}) {
          Attention attention(batch, n_head, head_size, 1.0f, dtype, group);
          attention.window = window;
          on_every_cpu([&](Device& device) {
            const Values alone = attention.run(*one);
            CAPTURE(to_string(dtype));
            INFO(to_string(batch));
            CAPTURE(n_head);
            CAPTURE(head_size);
            CHECK(same_bits(attention.run(device), alone));
            CHECK(same_bits(attention.run(*many), alone));
          });
        }
      }
    }
  }
}
#endif

TEST_CASE("a later token never changes an earlier one") {
  for (const DType dtype : kTypes) {
    const Attention before({{3, 40}}, 3, 16, 1.0f, dtype);
    Attention after = before;
    // From position 20 on other keys and values: the first 17 queries, at the positions 3 to 19, see none.
    for (std::size_t head = 0; head < before.n_head; ++head) {
      const std::size_t first = head * before.capacity;
      for (std::size_t i = (first + 20) * before.head_size; i < (first + 43) * before.head_size; ++i) {
        after.keys[i] = 1000.0f;
        after.values[i] = -1000.0f;
      }
    }
    on_every_device([&](Device& device) {
      const Values one = before.run(device), other = after.run(device);
      const auto end = static_cast<std::ptrdiff_t>(17 * before.width);
      CHECK(same_bits(Values(one.begin(), one.begin() + end), Values(other.begin(), other.begin() + end)));
      CHECK(!same_bits(one, other));
    });
  }
}

#if defined(__linux__) && !defined(STAIRCASE_CUDA_EMULATION)
/// The same numbers at the end of a page, and the program may not read the next one.
Tensor at_end_of_page(const Tensor& tensor) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = tensor.bytes(), whole = (bytes + page - 1) / page * page;
  void* const memory =
      mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::byte* const end = static_cast<std::byte*>(memory) + whole;
  REQUIRE(mprotect(end, page, PROT_NONE) == 0);
  std::memcpy(end - bytes, tensor.data<void>(), bytes);
  return {tensor.dtype(), tensor.shape(), {end - bytes, [=](void*) { munmap(memory, whole + page); }}};
}

TEST_CASE("on the CPU attention reads nothing after the end of its keys and values") {
  for (const DType dtype : kTypes) {
    for (const std::int64_t head_size : {8, 15, 64, 80, 128}) {
      for (const int count : {1, 3, 20}) {
        for (const int total : {20, 33}) {
          const Shape shape{1, 2, total, head_size}, of_queries{count, 2 * head_size};
          on_every_cpu([&](Device& device) {
            const Tensor queries = upload(device, of_queries, random_values(element_count(of_queries), 1));
            const auto attend = [&](const Tensor& keys, const Tensor& values) {
              Tensor out = result_tensor(device, of_queries);
              device.attention(make_batch(device, {{total - count, count}}), queries, {keys, values}, out);
              return download(device, out);
            };
            const Tensor keys = upload_as(dtype, device, shape, random_values(element_count(shape), 2)),
                         values = upload_as(dtype, device, shape, random_values(element_count(shape), 3));
            CHECK(same_bits(attend(keys, values), attend(at_end_of_page(keys), at_end_of_page(values))));
          });
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace staircase
