// A cache in int8: what arrives is rounded as a plain loop rounds it, to the bit, and attention agrees with
// plain loops on the rounded numbers. The tolerance is that of attention.cpp.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

using Bytes = std::vector<std::int8_t>;

/// Heads of float32 numbers, [heads, head_size], as a cache keeps them: integers, and then their scale.
Bytes kept(const Values& heads, std::size_t head_size) {
  Bytes all;
  for (std::size_t first = 0; first < heads.size(); first += head_size) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < head_size; ++i) largest = std::max(largest, std::abs(heads[first + i]));
    const float scale = largest / 127.0f;
    for (std::size_t i = 0; i < head_size; ++i) {
      const float steps = scale > 0.0f ? std::nearbyint(heads[first + i] / scale) : 0.0f;
      all.push_back(static_cast<std::int8_t>(std::clamp(steps, -127.0f, 127.0f)));
    }
    all.resize(all.size() + sizeof scale);
    std::memcpy(all.data() + all.size() - sizeof scale, &scale, sizeof scale);
  }
  return all;
}

float scale_of(const Bytes& all, std::size_t head, std::size_t head_size) {
  float scale = 0.0f;
  std::memcpy(&scale, all.data() + head * (head_size + sizeof scale) + head_size, sizeof scale);
  return scale;
}

/// The numbers that such heads stand for.
naive::Doubles numbers(const Bytes& all, std::size_t head_size) {
  naive::Doubles heads;
  for (std::size_t head = 0; head < all.size() / (head_size + sizeof(float)); ++head) {
    for (std::size_t i = 0; i < head_size; ++i) {
      heads.push_back(static_cast<double>(scale_of(all, head, head_size)) *
                      all[head * (head_size + sizeof(float)) + i]);
    }
  }
  return heads;
}

/// [rows, heads, positions, kept_size]
Shape shape_of_cache(std::size_t rows, std::size_t heads, std::size_t positions, std::size_t head_size) {
  return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(heads),
          static_cast<std::int64_t>(positions),
          kept_size(DType::kInt8, static_cast<std::int64_t>(head_size))};
}

Tensor upload_bytes(Device& device, const Shape& shape, const Bytes& bytes) {
  REQUIRE(element_count(shape) == bytes.size());
  std::vector<std::int32_t> words((bytes.size() + 3) / 4);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  Tensor tensor = device.allocate(DType::kInt8, {static_cast<std::int64_t>(4 * words.size())});
  device.copy_from_host(words, tensor);
  return tensor.reshaped(shape);
}

Bytes download_bytes(Device& device, const Tensor& tensor) {
  Bytes bytes(element_count(tensor.shape()));
  device.copy_to_host(tensor, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Keys or values as operations write them into empty caches of both types, for `count` tokens of a single
/// sequence from position 0 on.
struct Written {
  KeysValues floats, bytes;

  Written(Device& device, std::size_t heads, std::size_t count, std::size_t head_size) {
    const Shape shape = shape_of_cache(1, heads, count, head_size);
    for (Tensor KeysValues::*part : {&KeysValues::keys, &KeysValues::values}) {
      floats.*part = result_tensor(device, {1, shape[1], shape[2], static_cast<std::int64_t>(head_size)});
      bytes.*part = upload_bytes(device, shape, Bytes(element_count(shape), 77));
    }
  }

  void check(Device& device, std::size_t head_size) const {
    for (Tensor KeysValues::*part : {&KeysValues::keys, &KeysValues::values}) {
      CHECK(download_bytes(device, bytes.*part) == kept(download(device, floats.*part), head_size));
    }
  }
};

TEST_CASE("split_heads rounds each head at each position to 8 bits with a scale of its own") {
  for (const std::size_t head_size : {16u, 32u, 64u, 80u, 128u}) {
    for (const std::size_t count : {1u, 5u, 40u}) {
      on_every_cpu([&](Device& device) {
        const Shape shape = shape_of(count, 6 * head_size);
        Values projected = random_values(element_count(shape), 1, 3.0f);
        // A head of zeros, one of numbers too small for a scale, and one with a number that sticks out.
        std::fill_n(projected.begin() + static_cast<std::ptrdiff_t>(2 * head_size), head_size, 0.0f);
        std::fill_n(projected.begin() + static_cast<std::ptrdiff_t>(3 * head_size), head_size, 1e-44f);
        projected[5 * head_size - 1] = -1000.0f;
        HeadRule rule;
        rule.rotations = upload(device, shape_of(count, 8), random_values(count * 8, 2));
        Written written(device, 2, count, head_size);
        const Batch batch = make_batch(device, {{0, static_cast<int>(count)}});
        for (KeysValues* cache : {&written.floats, &written.bytes}) {
          Tensor queries = result_tensor(device, shape_of(count, 2 * head_size));
          device.split_heads(batch, upload(device, shape, projected), rule, queries, *cache);
        }
        CAPTURE(head_size);
        written.check(device, head_size);
      });
    }
  }
}

TEST_CASE("query_key_value rounds to 8 bits what it writes to a cache in float32") {
  for (const DType weights : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    for (const auto& pair : {std::pair{3u, 16u}, {2u, 48u}, {1u, 64u}}) {
      const std::size_t heads = pair.first,
                        head_size = pair.second;  // clang 14 captures no structured binding
      for (const std::size_t count : {1u, 7u, 40u}) {
        on_every_cpu([&](Device& device) {
          const std::size_t width = heads * head_size;
          const Weight weight =
              upload_weight(device, random_values(3 * width * width, 1), width, 3 * width, weights);
          const Tensor bias = upload(device, {static_cast<std::int64_t>(3 * width)},
                                     random_values(3 * width, 2)),
                       x = upload(device, shape_of(count, width), random_values(count * width, 3));
          const Norm norm{NormKind::kLayer,
                          upload(device, {static_cast<std::int64_t>(width)}, random_values(width, 4)),
                          upload(device, {static_cast<std::int64_t>(width)}, random_values(width, 5)), 1e-5f};
          Written written(device, heads, count, head_size);
          const Batch batch = make_batch(device, {{0, static_cast<int>(count)}});
          for (KeysValues* cache : {&written.floats, &written.bytes}) {
            Tensor queries = result_tensor(device, shape_of(count, width));
            device.query_key_value(batch, x, norm, weight, bias, queries, *cache);
          }
          CAPTURE(to_string(weights));
          CAPTURE(head_size);
          written.check(device, head_size);
        });
      }
    }
  }
}

struct Int8Attention {
  std::vector<Sequence> sequences;
  std::size_t n_kv_head, group, head_size, capacity;
  std::int32_t window = kNoWindow;
  std::size_t width = n_kv_head * group * head_size;
  std::size_t cached = sequences.size() * n_kv_head * capacity;  // heads
  Bytes keys = random_cache(2), values = random_cache(3);

  /// Magnitudes differ from head to head by up to a thousand times.
  Bytes random_cache(std::uint32_t seed) const {
    Values heads = random_values(cached * head_size, seed);
    const Values sizes = random_values(cached, seed + 10);
    for (std::size_t i = 0; i < heads.size(); ++i) heads[i] *= std::abs(sizes[i / head_size]);
    return kept(heads, head_size);
  }

  Values queries() const {
    std::size_t count = 0;
    for (const Sequence& s : sequences) count += static_cast<std::size_t>(s.count);
    return random_values(count * width, 1);
  }

  Values run(Device& device, const KeysValues& cache) const {
    const Values all = queries();
    const Shape shape = shape_of(all.size() / width, width);
    Tensor out = result_tensor(device, shape);
    device.attention(make_batch(device, sequences), upload(device, shape, all), cache, out);
    return download(device, out);
  }

  KeysValues in_rows(Device& device) const {
    const Shape shape = shape_of_cache(sequences.size(), n_kv_head, capacity, head_size);
    return {upload_bytes(device, shape, keys), upload_bytes(device, shape, values), {}, window};
  }

  /// All blocks of 16 positions, the last one first.
  KeysValues in_blocks(Device& device) const {
    const std::size_t of_row = capacity / 16, count = sequences.size() * of_row;
    const std::size_t piece = 16 * (head_size + sizeof(float));
    std::vector<std::int32_t> table(count);
    std::iota(table.rbegin(), table.rend(), 0);
    const auto blocks = [&](const Bytes& rows) {
      Bytes all(rows.size());
      for (std::size_t row = 0; row < sequences.size(); ++row) {
        for (std::size_t head = 0; head < n_kv_head; ++head) {
          for (std::size_t b = 0; b < of_row; ++b) {
            const auto to = static_cast<std::size_t>(table[row * of_row + b]) * n_kv_head + head;
            const std::size_t from = (row * n_kv_head + head) * of_row + b;
            std::copy_n(rows.data() + from * piece, piece, all.data() + to * piece);
          }
        }
      }
      return upload_bytes(device, shape_of_cache(count, n_kv_head, 16, head_size), all);
    };
    return {blocks(keys), blocks(values),
            upload_ints(device, table).reshaped(shape_of(sequences.size(), of_row)), window};
  }

  void check() const {
    // The cache in float32: what its integers stand for errs there by a rounding.
    const auto floats = [&](const Bytes& bytes) {
      const naive::Doubles doubles = numbers(bytes, head_size);
      return Values(doubles.begin(), doubles.end());
    };
    const auto want = naive::attention(sequences, queries(), floats(keys), floats(values), capacity, width,
                                       n_kv_head * group, group, static_cast<std::size_t>(window));
    on_every_cpu([&](Device& device) {
      INFO(to_string(sequences));
      CAPTURE(head_size);
      CAPTURE(window);
      const Values got = run(device, in_rows(device));
      CHECK(difference("out", got, want, width, 1e-6) == "");
      CHECK(same_bits(got, run(device, in_blocks(device))));
    });
  }
};

TEST_CASE("attention multiplies an int8 cache by its scales, in rows and in blocks") {
  for (const std::size_t head_size : {16u, 32u, 64u, 80u, 128u}) {
    for (const int count : {1, 2, 3, 15, 16, 40}) {
      Int8Attention{{{7, count}, {50, 1}, {0, count}}, 2, 3, head_size, 96}.check();
    }
  }
  for (const std::size_t group : {1u, 2u, 7u, 8u, 9u}) Int8Attention{{{70, 5}}, 2, group, 64, 96}.check();
  Int8Attention{{{600, 1}, {900, 20}}, 3, 3, 64, 1024}.check();
}

TEST_CASE("attention within a window leaves out earlier positions of an int8 cache") {
  for (const int count : {1, 20}) Int8Attention{{{200, count}, {3, 1}}, 2, 2, 32, 256, 33}.check();
}

TEST_CASE("a token gets the same bits from an int8 cache alone, in parts and in its prompt") {
  const std::unique_ptr<Device> device = make_cpu_device(2);
  for (const std::size_t group : {1u, 3u}) {
    const Int8Attention all{{{7, 40}}, 2, group, 64, 48};
    const Values together = all.run(*device, all.in_rows(*device)), queries = all.queries();
    for (const int step : {1, 2, 3, 5, 16, 17}) {
      for (int first = 0; first < 40; first += step) {
        const int count = std::min(step, 40 - first);
        const auto from = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * all.width),
                   to = from + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * all.width);
        const Shape shape = shape_of(static_cast<std::size_t>(count), all.width);
        Tensor out = result_tensor(*device, shape);
        device->attention(make_batch(*device, {{7 + first, count}}),
                          upload(*device, shape, Values(queries.begin() + from, queries.begin() + to)),
                          all.in_rows(*device), out);
        CAPTURE(step);
        CHECK(same_bits(download(*device, out), Values(together.begin() + from, together.begin() + to)));
      }
    }
  }
}

TEST_CASE("copy_positions copies the scales of an int8 cache with their positions") {
  const std::size_t head_size = 32, size = head_size + sizeof(float);
  Bytes bytes(2 * 3 * 20 * size);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::int8_t>(i * 37 % 251);
  on_every_cpu([&](Device& device) {
    Tensor cache = upload_bytes(device, shape_of_cache(2, 3, 20, head_size), bytes);
    device.copy_positions(cache, 4, 15, cache, 1);
    Bytes want = bytes;
    for (std::size_t head = 0; head < 6; ++head) {
      std::copy_n(bytes.data() + (head * 20 + 4) * size, 15 * size, want.data() + (head * 20 + 1) * size);
    }
    CHECK(download_bytes(device, cache) == want);
  });
}

TEST_CASE("a number that is not finite in an int8 cache does not become an ordinary one") {
  for (const float broken : {kNaN, HUGE_VALF, -HUGE_VALF}) {
    on_every_cpu([&](Device& device) {
      Values projected = random_values(3 * 16, 1);
      projected[40] = broken;  // among the values
      Written written(device, 1, 1, 16);
      Tensor queries = result_tensor(device, {1, 16}), out = result_tensor(device, {1, 16});
      const Batch batch = make_batch(device, {{0, 1}});
      device.split_heads(batch, upload(device, {1, 48}, projected), {}, queries, written.bytes);
      device.attention(batch, queries, written.bytes, out);
      CHECK(!std::isfinite(download(device, out)[8]));
    });
  }
}

TEST_CASE("the CPU keeps heads in int8 if they fill whole vectors") {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  for (const std::int64_t head_size : {16, 64, 80}) CHECK(device->keeps(DType::kInt8, head_size));
  for (const std::int64_t head_size : {1, 8, 24, 65}) CHECK(!device->keeps(DType::kInt8, head_size));
  for (const DType dtype : kTypes) CHECK(device->keeps(dtype, 65));
  for (const DType dtype : {DType::kInt4, DType::kInt32}) CHECK(!device->keeps(dtype, 64));
}

}  // namespace
}  // namespace staircase
