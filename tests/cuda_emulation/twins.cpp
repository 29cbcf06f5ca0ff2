// The operations of models after GPT-2 on a GPU, compared with the CPU's answer to the same call.
// tests/kernels checks the formulas for both; here shapes choose each kernel, and each way through it.
//
// The tolerance: both sum in float32, in another order, so they differ by a few eps of the terms' sizes.
// Where one of them may round to 16 bits before it multiplies, they differ by that as well.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr DType kWeightTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                                  DType::kInt4};

Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device(2);
  return *device;
}

/// Checks what run(device) gives on the GPU, in every order, against what it gives on the CPU. `tolerance` is
/// relative to the largest number.
template <typename Run>
void check_twins(std::size_t columns, double tolerance, const Run& run) {
  const Values want = run(cpu());
  double largest = 0.0;
  for (const float value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
  on_every_device([&](Device& device) {
    CHECK(difference("out", run(device), want, columns, tolerance * largest) == "");
  });
}

/// A norm of that kind, with a weight and, unless it is an RMS norm, a bias; or without.
Norm make_norm(Device& device, NormKind kind, std::size_t width, bool weighted, std::uint32_t seed = 11) {
  Norm norm{kind, {}, {}, kEpsilon};
  const Shape shape{static_cast<std::int64_t>(width)};
  if (weighted) norm.weight = upload(device, shape, random_values(width, seed));
  if (weighted && kind == NormKind::kLayer) norm.bias = upload(device, shape, random_values(width, seed + 1));
  return norm;
}

TEST_CASE("twins normalize rows alike, by every kind of norm") {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    for (const bool weighted : {false, true}) {
      for (const std::size_t width : {1u, 7u, 64u, 75u, 576u}) {
        // So small that epsilon counts.
        const Values x = random_values(5 * width, 1, 0.01f);
        CAPTURE(width);
        CAPTURE(weighted);
        check_twins(width, 3e-6, [&](Device& device) {
          Tensor out = result_tensor(device, shape_of(5, width));
          device.normalize(upload(device, shape_of(5, width), x), make_norm(device, kind, width, weighted),
                           out);
          return download(device, out);
        });
        check_twins(width, 3e-6, [&](Device& device) {
          Tensor out = upload(device, shape_of(5, width), random_values(5 * width, 4));
          device.add_normalized(upload(device, shape_of(5, width), x),
                                make_norm(device, kind, width, weighted), out);
          return download(device, out);
        });
      }
    }
  }
}

TEST_CASE("twins normalize twice, by parameters that were loaded just before") {
  const Values x = random_values(3 * 64, 1), weight = random_values(64, 2);
  check_twins(64, 3e-6, [&](Device& device) {
    const Norm norm{NormKind::kRms, device.load({weight.data(), DType::kFloat32, 1, 64}), {}, kEpsilon};
    // To release a tensor would wait for the first kernel.
    Tensor first = upload(device, {3, 64}, x), once = result_tensor(device, {3, 64}),
           twice = result_tensor(device, {3, 64});
    device.normalize(first, norm, once);
    device.normalize(once, norm, twice);
    return download(device, twice);
  });
}

/// epilogue(norm(x) W + b) on both. With a gate, the last 5 pairs of columns only fill up a turn.
void check_linear(std::size_t rows, std::size_t in, std::size_t out, DType dtype, NormKind kind,
                  Epilogue epilogue, bool with_bias) {
  const std::size_t width = is_gated(epilogue) ? out / 2 - 5 : out;
  const Values x = random_values(rows * in, 1), w = random_values(in * out, 2),
               bias = random_values(with_bias ? out : 0, 3);
  CAPTURE(rows);
  CAPTURE(in);
  CAPTURE(out);
  CAPTURE(static_cast<int>(epilogue));
  INFO(to_string(dtype));
  // In few bits the CPU rounds x as well, by half of a step of 127.
  const double rounding = is_quantized(dtype) ? 0.02 : 3 * rounding_error(dtype);
  for (const bool narrow : {false, true}) {
    check_twins(width, 1e-5 + (dtype == DType::kFloat32 ? 0.0 : rounding), [&](Device& device) {
      const DType stored =
          narrow ? device.operand_dtype(static_cast<std::int64_t>(rows), dtype) : DType::kFloat32;
      Tensor result = result_tensor(device, shape_of(rows, width), stored);
      const Tensor device_bias = with_bias ? upload(device, shape_of(1, out), bias) : Tensor();
      device.linear(upload(device, shape_of(rows, in), x), make_norm(device, kind, in, true),
                    upload_weight(device, w, in, out, dtype), device_bias, epilogue, result);
      return download_any(device, result);
    });
  }
}

TEST_CASE("twins multiply rows alike that they normalize by their mean square") {
  for (const DType dtype : kWeightTypes) {
    for (const std::size_t rows : {1u, 2u, 4u, 5u, 9u, 33u}) {
      for (const std::size_t in : {64u, 100u, 576u}) {
        check_linear(rows, in, 33, dtype, NormKind::kRms, Epilogue::kStore, true);
      }
    }
  }
}

TEST_CASE("twins gate products alike, and apply the exact GELU") {
  for (const DType dtype : kWeightTypes) {
    for (const std::size_t rows : {1u, 2u, 3u, 5u, 8u, 9u, 33u}) {
      for (const std::size_t pairs : {16u, 176u}) {
        for (const NormKind kind : {NormKind::kNone, NormKind::kRms}) {
          check_linear(rows, 64, 2 * pairs, dtype, kind, Epilogue::kSiluGate, kind == NormKind::kNone);
        }
      }
      check_linear(rows, 33, 32, dtype, NormKind::kNone, Epilogue::kSiluGate, true);
      check_linear(rows, 64, 64, dtype, NormKind::kRms, Epilogue::kGeluGate, false);
      check_linear(rows, 64, 31, dtype, NormKind::kNone, Epilogue::kGeluErf, true);
    }
  }
}

TEST_CASE("twins hold a matrix of several parts alike, to the bit") {
  const std::size_t in = 96;
  const std::size_t rows[] = {16, 16, 1, 40, 7};
  const Values all = random_values(80 * in, 1);
  for (const DType dtype : kWeightTypes) {
    const auto rows_of = [&](Device& device) {
      std::vector<HostArray> parts;
      std::size_t first = 0;
      for (const std::size_t count : rows) {
        parts.push_back({all.data() + first * in, DType::kFloat32, static_cast<std::int64_t>(count), in});
        first += count;
      }
      const Weight weight = device.load_weight(parts, WeightOrder::kOutputFirst, dtype);
      CHECK(weight.in_features == 96);
      CHECK(weight.out_features == 80);
      std::vector<std::int32_t> tokens(80);
      std::iota(tokens.begin(), tokens.end(), 0);
      Tensor out = result_tensor(device, {80, 96});
      device.embedding(make_batch(device, {{3, 80}}, tokens), weight, Tensor(), out);
      return download(device, out);
    };
    INFO(to_string(dtype));
    check_twins(in, 0.0, rows_of);
    if (dtype == DType::kFloat32) CHECK(rows_of(cpu()) == all);
  }
}

// ── Heads ──

/// A cache for rows of a batch, contiguous or in blocks in another order.
KeysValues make_cache(Device& device, std::size_t rows, std::int64_t n_kv_head, std::int64_t capacity,
                      std::int64_t size, DType dtype, bool in_blocks, const Values& keys,
                      const Values& values) {
  const auto count = static_cast<std::int64_t>(rows);
  if (!in_blocks) {
    const Shape shape{count, n_kv_head, capacity, size};
    return {upload_as(dtype, device, shape, keys), upload_as(dtype, device, shape, values)};
  }
  const std::int64_t most = capacity / 16;
  std::vector<std::int32_t> table(static_cast<std::size_t>(count * most));
  std::iota(table.rbegin(), table.rend(), 0);
  const Shape shape{count * most, n_kv_head, 16, size};
  return {upload_as(dtype, device, shape, keys), upload_as(dtype, device, shape, values),
          upload_ints(device, table).reshaped({count, most})};
}

std::size_t tokens_of(const std::vector<Sequence>& sequences) {
  std::size_t count = 0;
  for (const Sequence& s : sequences) count += static_cast<std::size_t>(s.count);
  return count;
}

struct Split {
  std::size_t n_head, n_kv_head, size, rotary;
  NormKind query_kind = NormKind::kNone, key_kind = NormKind::kNone;
  DType dtype = DType::kFloat32;
  bool in_blocks = false;

  void check() const {
    // Far after position 20, from different starts.
    const std::vector<Sequence> sequences = {{0, 3}, {40, 1}, {5, 0}, {21, 17}};
    constexpr std::int64_t kCapacity = 48;
    const std::size_t n_tokens = tokens_of(sequences), width = (n_head + 2 * n_kv_head) * size;
    const Values projected = random_values(n_tokens * width, 1);
    Values rotations;
    for (const Sequence& s : sequences) {
      for (int i = 0; i < s.count; ++i) {
        for (const bool sines : {false, true}) {
          for (std::size_t pair = 0; pair < rotary / 2; ++pair) {
            const double exponent = static_cast<double>(2 * pair) / static_cast<double>(rotary),
                         angle = (s.start + i) * std::pow(10000.0, -exponent);
            rotations.push_back(static_cast<float>(sines ? std::sin(angle) : std::cos(angle)));
          }
        }
      }
    }
    CAPTURE(n_head);
    CAPTURE(n_kv_head);
    CAPTURE(size);
    CAPTURE(rotary);
    CAPTURE(in_blocks);
    INFO(to_string(dtype));
    // A number between two of 16 bits may become either.
    const double rounding = dtype == DType::kFloat32 ? 0.0 : 2 * rounding_error(dtype);
    check_twins(size, 2e-6 + rounding, [&](Device& device) {
      const Values empty(sequences.size() * n_kv_head * static_cast<std::size_t>(kCapacity) * size, 2.0f);
      KeysValues cache = make_cache(device, sequences.size(), static_cast<std::int64_t>(n_kv_head), kCapacity,
                                    static_cast<std::int64_t>(size), dtype, in_blocks, empty, empty);
      HeadRule rule{
          make_norm(device, query_kind, size, true, 21), make_norm(device, key_kind, size, true, 31), {}};
      if (rotary > 0) rule.rotations = upload(device, shape_of(n_tokens, rotary), rotations);
      Tensor queries = result_tensor(device, shape_of(n_tokens, n_head * size));
      device.split_heads(make_batch(device, sequences), upload(device, shape_of(n_tokens, width), projected),
                         rule, queries, cache);
      Values all = download(device, queries);
      for (const Tensor& part : {cache.keys, cache.values}) {
        const Values stored = download_any(device, part);
        all.insert(all.end(), stored.begin(), stored.end());
      }
      return all;
    });
  }
};

TEST_CASE("twins split heads alike, normalized or not, rotated or not, into rows and into blocks") {
  for (const bool in_blocks : {false, true}) {
    for (const DType dtype : kTypes) {
      for (const auto& [n_head, n_kv_head] : {std::pair{4u, 4u}, {9u, 3u}, {8u, 1u}}) {
        for (const NormKind kind : {NormKind::kNone, NormKind::kRms}) {
          Split{n_head, n_kv_head, 64, 64, kind, kind, dtype, in_blocks}.check();
        }
      }
      Split{4, 2, 64, 16, NormKind::kNone, NormKind::kRms, dtype, in_blocks}.check();
      Split{4, 2, 64, 0, NormKind::kRms, NormKind::kNone, dtype, in_blocks}.check();
      Split{3, 1, 6, 2, NormKind::kNone, NormKind::kNone, dtype, in_blocks}.check();
      Split{2, 1, 80, 40, NormKind::kRms, NormKind::kRms, dtype, in_blocks}.check();
    }
  }
}

void check_attention(const std::vector<Sequence>& sequences, std::size_t n_head, std::size_t n_kv_head,
                     std::size_t size, DType dtype, std::int64_t capacity = 160) {
  const std::size_t n_tokens = tokens_of(sequences), width = n_head * size,
                    kept = sequences.size() * n_kv_head * static_cast<std::size_t>(capacity) * size;
  const Values queries = rounded(random_values(n_tokens * width, 1), dtype),
               keys = random_values(kept, 2, 2.0f), values = random_values(kept, 3);
  CAPTURE(n_head);
  CAPTURE(n_kv_head);
  CAPTURE(size);
  INFO(to_string(dtype), ", ", to_string(sequences));
  for (const bool in_blocks : {false, true}) {
    CAPTURE(in_blocks);
    const double rounding = dtype == DType::kFloat32 ? 0.0 : 3 * rounding_error(dtype);
    check_twins(size, 5e-6 + rounding, [&](Device& device) {
      const KeysValues cache =
          make_cache(device, sequences.size(), static_cast<std::int64_t>(n_kv_head), capacity,
                     static_cast<std::int64_t>(size), dtype, in_blocks, keys, values);
      Tensor out = result_tensor(device, shape_of(n_tokens, width));
      device.attention(make_batch(device, sequences), upload(device, shape_of(n_tokens, width), queries),
                       cache, out);
      return download(device, out);
    });
  }
}

TEST_CASE("twins let query heads share keys alike, in groups of any size and by every kernel") {
  for (const DType dtype : kTypes) {
    // Groups of 1, 2, 3, 4, 7, 8 and 12.
    for (const auto& [n_head, n_kv_head] :
         {std::pair{3u, 3u}, {4u, 2u}, {9u, 3u}, {8u, 2u}, {14u, 2u}, {8u, 1u}, {24u, 2u}}) {
      check_attention({{100, 1}, {0, 2}, {7, 0}, {33, 3}}, n_head, n_kv_head, 16, dtype);
      check_attention({{20, 40}, {0, 17}}, n_head, n_kv_head, 16, dtype);
    }
    check_attention({{150, 1}}, 9, 3, 64, dtype);
    check_attention({{3, 33}}, 9, 3, 64, dtype);
    check_attention({{9, 2}}, 6, 2, 15, dtype);  // of no whole vectors
    check_attention({{9, 20}}, 6, 2, 15, dtype);
    // Shared out among blocks.
    check_attention({{900, 1}, {5, 1}}, 6, 2, 32, dtype, 1024);
    check_attention({{900, 1}}, 24, 2, 16, dtype, 1024);
  }
}

TEST_CASE("twins agree once in every kernel of today's models") {
  for (const DType dtype : {DType::kFloat32, DType::kInt4}) {
    for (const std::size_t rows : {1u, 9u}) {
      check_linear(rows, 64, 96, dtype, NormKind::kRms, Epilogue::kSiluGate, true);
      check_linear(rows, 64, 96, dtype, NormKind::kRms, Epilogue::kGeluGate, true);
      check_linear(rows, 64, 31, dtype, NormKind::kLayer, Epilogue::kGeluErf, true);
    }
  }
  for (const bool in_blocks : {false, true}) {
    Split{9, 3, 32, 16, NormKind::kRms, NormKind::kRms, DType::kBFloat16, in_blocks}.check();
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    check_attention({{300, 1}, {20, 2}}, 9, 3, 32, dtype, 512);
    check_attention({{20, 17}}, 9, 3, 32, dtype);
  }
}

TEST_CASE("query heads get the same as from their own copies of the keys, to the bit on tiles") {
  // What shares keys must not differ from what has the same ones for itself.
  const std::size_t n_head = 6, n_kv_head = 2, size = 16, capacity = 48;
  for (const DType dtype : kTypes) {
    for (const int count : {2, 40}) {
      const std::size_t n_tokens = static_cast<std::size_t>(count), head = capacity * size;
      const Values keys = random_values(n_kv_head * head, 1), values = random_values(n_kv_head * head, 2);
      const auto copied = [&](const Values& from) {
        Values all;
        for (std::size_t h = 0; h < n_head; ++h) {
          const auto first = from.begin() + static_cast<std::ptrdiff_t>(h / (n_head / n_kv_head) * head);
          all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(head));
        }
        return all;
      };
      on_every_device([&](Device& device) {
        const auto run = [&](std::size_t heads, const Values& k, const Values& v) {
          const KeysValues cache =
              make_cache(device, 1, static_cast<std::int64_t>(heads), capacity, size, dtype, false, k, v);
          const Shape shape = shape_of(n_tokens, n_head * size);
          Tensor out = result_tensor(device, shape);
          device.attention(make_batch(device, {{4, count}}),
                           upload(device, shape, random_values(n_tokens * n_head * size, 3)), cache, out);
          return download(device, out);
        };
        const Values shared = run(n_kv_head, keys, values), alone = run(n_head, copied(keys), copied(values));
        CHECK(difference("out", shared, alone, n_head * size, count > 12 ? 0.0 : 1e-6) == "");
      });
    }
  }
}

}  // namespace
}  // namespace staircase
