// A cache of few bits for the tests: its bytes on a device, and what operations write into it. A plain loop
// checks attention on the numbers that the bytes stand for.
#pragma once

#include "tests/kernels/kernel_test.h"

namespace staircase {

using Bytes = std::vector<std::int8_t>;

/// [rows, heads, positions, kept_size]
inline Shape shape_of_cache(DType dtype, std::size_t rows, std::size_t heads, std::size_t positions,
                            std::size_t head_size) {
  return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(heads),
          static_cast<std::int64_t>(positions), kept_size(dtype, static_cast<std::int64_t>(head_size))};
}

inline Tensor upload_bytes(Device& device, DType dtype, const Shape& shape, const Bytes& bytes) {
  REQUIRE(element_count(shape) == bytes.size());
  std::vector<std::int32_t> words((bytes.size() + 3) / 4);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  Tensor tensor = device.allocate(dtype, {static_cast<std::int64_t>(4 * words.size())});
  device.copy_from_host(words, tensor);
  return tensor.reshaped(shape);
}

inline Bytes download_bytes(Device& device, const Tensor& tensor) {
  Bytes bytes(element_count(tensor.shape()));
  device.copy_to_host(tensor, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Keys or values as operations write them into empty caches in float32 and in a type of few bits, for
/// `count` tokens of a single sequence from position 0 on.
struct Written {
  KeysValues floats, bytes;

  Written(Device& device, DType dtype, std::size_t heads, std::size_t count, std::size_t head_size) {
    const Shape shape = shape_of_cache(dtype, 1, heads, count, head_size);
    for (Tensor KeysValues::*part : {&KeysValues::keys, &KeysValues::values}) {
      floats.*part = result_tensor(device, {1, shape[1], shape[2], static_cast<std::int64_t>(head_size)});
      bytes.*part = upload_bytes(device, dtype, shape, Bytes(element_count(shape), 77));
    }
  }

  /// check(floats, bytes) for the keys, and for the values.
  template <typename Check>
  void check(Device& device, const Check& check) const {
    for (Tensor KeysValues::*part : {&KeysValues::keys, &KeysValues::values}) {
      check(download(device, floats.*part), download_bytes(device, bytes.*part));
    }
  }
};

/// What split_heads writes for heads that are hard to round.
template <typename Check>
void check_split_heads(DType dtype, const std::vector<std::size_t>& head_sizes, const Check& check) {
  for (const std::size_t head_size : head_sizes) {
    for (const std::size_t count : {1u, 5u, 40u}) {
      on_every_device([&](Device& device) {
        const Shape shape = shape_of(count, 6 * head_size);
        Values projected = random_values(element_count(shape), 1, 3.0f);
        // A head of zeros, one of numbers too small for a scale, and one with a number that sticks out.
        std::fill_n(projected.begin() + static_cast<std::ptrdiff_t>(2 * head_size), head_size, 0.0f);
        std::fill_n(projected.begin() + static_cast<std::ptrdiff_t>(3 * head_size), head_size, 1e-44f);
        projected[5 * head_size - 1] = -1000.0f;
        HeadRule rule;
        rule.rotations = upload(device, shape_of(count, 8), random_values(count * 8, 2));
        Written written(device, dtype, 2, count, head_size);
        const Batch batch = make_batch(device, {{0, static_cast<int>(count)}});
        for (KeysValues* cache : {&written.floats, &written.bytes}) {
          Tensor queries = result_tensor(device, shape_of(count, 2 * head_size));
          device.split_heads(batch, upload(device, shape, projected), rule, queries, *cache);
        }
        CAPTURE(head_size);
        written.check(device,
                      [&](const Values& floats, const Bytes& bytes) { check(floats, bytes, head_size); });
      });
    }
  }
}

/// What query_key_value writes, for pairs of a number of heads and their size.
template <typename Check>
void check_query_key_value(DType dtype, const std::vector<std::pair<std::size_t, std::size_t>>& shapes,
                           const Check& check) {
  for (const DType weights : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    for (const auto& pair : shapes) {
      const std::size_t heads = pair.first,
                        head_size = pair.second;  // clang 14 captures no structured binding
      for (const std::size_t count : {1u, 7u, 40u}) {
        on_every_device([&](Device& device) {
          const std::size_t width = heads * head_size;
          const Weight weight =
              upload_weight(device, random_values(3 * width * width, 1), width, 3 * width, weights);
          const Tensor bias = upload(device, {static_cast<std::int64_t>(3 * width)},
                                     random_values(3 * width, 2)),
                       x = upload(device, shape_of(count, width), random_values(count * width, 3));
          const Norm norm{NormKind::kLayer,
                          upload(device, {static_cast<std::int64_t>(width)}, random_values(width, 4)),
                          upload(device, {static_cast<std::int64_t>(width)}, random_values(width, 5)), 1e-5f};
          Written written(device, dtype, heads, count, head_size);
          const Batch batch = make_batch(device, {{0, static_cast<int>(count)}});
          for (KeysValues* cache : {&written.floats, &written.bytes}) {
            Tensor queries = result_tensor(device, shape_of(count, width));
            device.query_key_value(batch, x, norm, weight, bias, queries, *cache);
          }
          CAPTURE(to_string(weights));
          CAPTURE(head_size);
          written.check(device,
                        [&](const Values& floats, const Bytes& bytes) { check(floats, bytes, head_size); });
        });
      }
    }
  }
}

/// How a type of few bits keeps heads, written down apart from the kernels.
struct KeptType {
  DType dtype;
  /// Heads of float32 numbers, [heads, head_size], as a cache keeps them.
  Bytes (*kept)(const Values& heads, std::size_t head_size);
  /// The numbers that such heads stand for, still rotated if the type rotates them.
  naive::Doubles (*numbers)(const Bytes& bytes, std::size_t head_size);
  /// Rotates heads, and a second time back.
  naive::Doubles (*rotated)(const naive::Doubles& heads, std::size_t head_size);
};

struct KeptAttention {
  KeptType type;
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
    return type.kept(heads, head_size);
  }

  /// Numbers of bfloat16 once they are rotated, since matrix instructions take no others.
  Values queries() const {
    std::size_t count = 0;
    for (const Sequence& s : sequences) count += static_cast<std::size_t>(s.count);
    const Values drawn = rounded(random_values(count * width, 1), DType::kBFloat16);
    const naive::Doubles turned = type.rotated({drawn.begin(), drawn.end()}, head_size);
    return {turned.begin(), turned.end()};
  }

  Values run(Device& device, const KeysValues& cache) const {
    const Values all = queries();
    const Shape shape = shape_of(all.size() / width, width);
    Tensor out = result_tensor(device, shape);
    device.attention(make_batch(device, sequences), upload(device, shape, all), cache, out);
    return download(device, out);
  }

  KeysValues in_rows(Device& device) const {
    const Shape shape = shape_of_cache(type.dtype, sequences.size(), n_kv_head, capacity, head_size);
    return {upload_bytes(device, type.dtype, shape, keys),
            upload_bytes(device, type.dtype, shape, values),
            {},
            window};
  }

  /// All blocks of 16 positions, the last one first.
  KeysValues in_blocks(Device& device) const {
    const std::size_t of_row = capacity / 16, count = sequences.size() * of_row;
    const Shape shape = shape_of_cache(type.dtype, count, n_kv_head, 16, head_size);
    const auto piece = static_cast<std::size_t>(16 * shape[3]);
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
      return upload_bytes(device, type.dtype, shape, all);
    };
    return {blocks(keys), blocks(values),
            upload_ints(device, table).reshaped(shape_of(sequences.size(), of_row)), window};
  }

  /// From a cache in float32: what its integers stand for errs there by a rounding. With `halves`, int4
  /// rounds these numbers to bfloat16 first.
  naive::Doubles wanted(bool halves) const {
    const auto floats = [&](const Bytes& bytes) {
      naive::Doubles numbers = type.numbers(bytes, head_size);
      for (double& number : numbers) {
        if (halves && type.dtype == DType::kInt4)
          number = static_cast<double>(rounded(static_cast<float>(number), DType::kBFloat16));
      }
      const naive::Doubles turned = type.rotated(numbers, head_size);
      return Values(turned.begin(), turned.end());
    };
    return naive::attention(sequences, queries(), floats(keys), floats(values), capacity, width,
                            n_kv_head * group, group, static_cast<std::size_t>(window));
  }

  void check() const {
    const naive::Doubles exact = wanted(false), rounds = wanted(true);
    on_every_device([&](Device& device) {
      INFO(to_string(sequences));
      CAPTURE(head_size);
      CAPTURE(window);
      const Values got = run(device, in_rows(device));
      const bool halves = multiplies_halves(device, type.dtype);
      // The weights are rounded as well.
      const double within = 1e-6 + (halves ? rounding_error(DType::kBFloat16) : 0.0);
      CHECK(difference("out", got, halves ? rounds : exact, width, within) == "");
      CHECK(same_bits(got, run(device, in_blocks(device))));
    });
  }

#ifndef STAIRCASE_CUDA_EMULATION
  /// Whether several threads, which share heads after a long text, compute the same bits as one.
  void check_threads() const {
    const std::unique_ptr<Device> one = make_cpu_device(1), many = make_cpu_device(8);
    on_every_cpu([&](Device& device) {
      const Values alone = run(*one, in_rows(*one));
      INFO(to_string(sequences));
      CAPTURE(head_size);
      for (Device* const other : {&device, many.get()}) {
        CHECK(same_bits(run(*other, in_rows(*other)), alone));
        CHECK(same_bits(run(*other, in_blocks(*other)), alone));
      }
    });
  }
#endif

  /// Whether a token of a sequence of 40 gets the same bits alone, in parts and with all the others.
  void check_parts() const {
    const std::unique_ptr<Device> device = make_cpu_device(2);
    const Values together = run(*device, in_rows(*device)), all = queries();
    for (const int step : {1, 2, 3, 5, 16, 17}) {
      for (int first = 0; first < 40; first += step) {
        const int count = std::min(step, 40 - first);
        const auto from = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * width),
                   to = from + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * width);
        const Shape shape = shape_of(static_cast<std::size_t>(count), width);
        Tensor out = result_tensor(*device, shape);
        device->attention(make_batch(*device, {{sequences[0].start + first, count}}),
                          upload(*device, shape, Values(all.begin() + from, all.begin() + to)),
                          in_rows(*device), out);
        CAPTURE(step);
        CHECK(same_bits(download(*device, out), Values(together.begin() + from, together.begin() + to)));
      }
    }
  }
};

/// Whether copy_positions moves whole heads, with what belongs to their bytes.
inline void check_copy_positions(DType dtype, std::size_t head_size) {
  const Shape shape = shape_of_cache(dtype, 2, 3, 20, head_size);
  const auto size = static_cast<std::size_t>(shape[3]);
  Bytes bytes(2 * 3 * 20 * size);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::int8_t>(i * 37 % 251);
  on_every_device([&](Device& device) {
    Tensor cache = upload_bytes(device, dtype, shape, bytes);
    device.copy_positions(cache, 4, 15, cache, 1);
    Bytes want = bytes;
    for (std::size_t head = 0; head < 6; ++head) {
      std::copy_n(bytes.data() + (head * 20 + 4) * size, 15 * size, want.data() + (head * 20 + 1) * size);
    }
    CHECK(download_bytes(device, cache) == want);
  });
}

/// Whether a result that depends on a broken number is not finite.
inline void check_broken_number(DType dtype, std::size_t head_size) {
  for (const float broken : {kNaN, kInfinity, -kInfinity}) {
    on_every_device([&](Device& device) {
      Values projected = random_values(3 * head_size, 1);
      projected[2 * head_size + 8] = broken;  // among the values
      Written written(device, dtype, 1, 1, head_size);
      const auto width = static_cast<std::int64_t>(head_size);
      Tensor queries = result_tensor(device, {1, width}), out = result_tensor(device, {1, width});
      const Batch batch = make_batch(device, {{0, 1}});
      device.split_heads(batch, upload(device, {1, 3 * width}, projected), {}, queries, written.bytes);
      device.attention(batch, queries, written.bytes, out);
      CHECK(!std::isfinite(download(device, out)[8]));
    });
  }
}

}  // namespace staircase
