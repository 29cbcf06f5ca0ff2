// Weights, keys and values, and what products take and give, in 16 bits: against plain loops on the numbers
// as they were rounded.
//
// All arithmetic is in float32, so the tolerances are those of the float32 tests, with two exceptions. First,
// a product of many rows, or with bfloat16, may round its x to the type of the weights as well. Tensor cores
// and the CPU's bfloat16 instruction take two operands of one type. Each of K products of numbers below 1
// then errs by up to u, the rounding error of the type. The errors are independent and partly cancel. Their
// root mean square is below u/6, that of the sum below sqrt(K) · u/6, and u · sqrt(K) is six times that.
// Second, numbers stored in 16 bits are rounded once more.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

/// From that many rows on, a product may round x; with bfloat16 it always may.
constexpr std::size_t kManyRows = 9;

double tolerance(std::size_t rows, std::size_t in, DType dtype) {
  const double root = std::sqrt(static_cast<double>(in));
  return 1e-6 * (1.0 + root) +
         (rows < kManyRows && dtype != DType::kBFloat16 ? 0.0 : rounding_error(dtype) * root);
}

void check_product(std::size_t rows, std::size_t in, std::size_t out, Epilogue epilogue, DType dtype) {
  const Values x = random_values(rows * in, 1), w = random_values(in * out, 2), bias = random_values(out, 3),
               before = random_values(rows * out, 4);
  const auto want = naive::linear(x, rounded(w, dtype), bias, rows, in, out, epilogue, before);
  on_every_device([&](Device& device) {
    Tensor result = epilogue == Epilogue::kAdd ? upload(device, shape_of(rows, out), before)
                                               : result_tensor(device, shape_of(rows, out));
    device.linear(upload(device, shape_of(rows, in), x), {}, upload_weight(device, w, in, out, dtype),
                  upload(device, {static_cast<std::int64_t>(out)}, bias), epilogue, result);
    CAPTURE(rows);
    CAPTURE(in);
    CAPTURE(static_cast<int>(epilogue));
    INFO(to_string(dtype));
    CHECK(difference("out", download(device, result), want, out, tolerance(rows, in, dtype)) == "");
  });
}

TEST_CASE("a product with 16-bit weights agrees with its formula for every odd shape") {
  for (const DType dtype : kHalves) {
    for (const std::size_t rows : {1u, 2u, 3u, 8u, 9u, 24u, 25u, 48u, 49u, 67u}) {
      for (const std::size_t in : {1u, 2u, 31u, 33u, 64u, 100u, 264u}) {
        for (const std::size_t out : {1u, 2u, 31u, 33u, 257u}) {
          check_product(rows, in, out, Epilogue::kStore, dtype);
        }
      }
    }
  }
}

TEST_CASE("a product with 16-bit weights applies every epilogue") {
  for (const DType dtype : kHalves) {
    for (const std::size_t rows : {1u, 7u, 13u}) {
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kAdd}) {
        check_product(rows, 24, 17, epilogue, dtype);
      }
    }
  }
}

/// A product whose x, result or both have the type that products of many rows take on that device.
void check_stored_product(std::size_t rows, std::size_t in, std::size_t out, Epilogue epilogue, DType dtype) {
  // As they come back from the type of the weights, so that no product has anything to round.
  const Values x = rounded(random_values(rows * in, 1), dtype), w = random_values(in * out, 2),
               bias = random_values(out, 3), before = random_values(rows * out, 4);
  const auto want = naive::linear(x, rounded(w, dtype), bias, rows, in, out, epilogue, before);
  on_every_device([&](Device& device) {
    const DType narrow = device.operand_dtype(1000, dtype);
    const Weight weight = upload_weight(device, w, in, out, dtype);
    const Tensor device_bias = upload(device, {static_cast<std::int64_t>(out)}, bias);
    for (const DType x_dtype : {DType::kFloat32, narrow}) {
      for (const DType out_dtype : {DType::kFloat32, narrow}) {
        const bool adds = epilogue == Epilogue::kAdd;
        if (adds && out_dtype != DType::kFloat32) continue;
        Tensor result = adds ? upload(device, shape_of(rows, out), before)
                             : result_tensor(device, shape_of(rows, out), out_dtype);
        device.linear(upload_as(x_dtype, device, shape_of(rows, in), x), {}, weight, device_bias, epilogue,
                      result);
        CAPTURE(rows);
        CAPTURE(in);
        CAPTURE(static_cast<int>(epilogue));
        INFO("weights in ", to_string(dtype), ", x in ", to_string(x_dtype), ", out in ",
             to_string(out_dtype));
        CHECK(difference("out", download_any(device, result), want, out,
                         tolerance(1, in, DType::kFloat32) + rounding_of_largest(want, out_dtype)) == "");
      }
    }
  });
}

TEST_CASE("a product takes and gives rows in 16 bits, of every odd shape and with every epilogue") {
  for (const DType dtype : kTypes) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kAdd}) {
      for (const std::size_t rows : {0u, 1u, 4u, 8u, 9u, 33u, 49u}) {
        for (const std::size_t in : {1u, 31u, 64u, 100u}) {
          for (const std::size_t out : {1u, 2u, 33u, 257u}) {
            check_stored_product(rows, in, out, epilogue, dtype);
          }
        }
      }
    }
  }
}

TEST_CASE("on the CPU rows stored in 16 bits give the bits of those that a product rounds itself") {
  on_every_device([](Device& device) {
    if (!has_one_kernel(device)) return;
    for (const DType dtype : kHalves) {
      const DType narrow = device.operand_dtype(1000, dtype);
      for (const std::size_t rows : {1u, 7u, 67u}) {
        for (const std::size_t in : {31u, 64u}) {
          const std::size_t out = 33;
          const Values x = random_values(rows * in, 1);
          const Weight weight = upload_weight(device, random_values(in * out, 2), in, out, dtype);
          const Tensor bias = upload(device, {33}, random_values(out, 3));
          for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu}) {
            const auto product = [&](DType x_dtype, DType out_dtype) {
              Tensor result = result_tensor(device, shape_of(rows, out), out_dtype);
              device.linear(upload_as(x_dtype, device, shape_of(rows, in), x), {}, weight, bias, epilogue,
                            result);
              return download_any(device, result);
            };
            const Values wide = product(DType::kFloat32, DType::kFloat32);
            CAPTURE(rows);
            CAPTURE(in);
            CHECK(same_bits(product(narrow, DType::kFloat32), wide));
            CHECK(same_bits(product(narrow, narrow), rounded(wide, narrow)));
          }
        }
      }
    }
  });
}

TEST_CASE("the type in which a product takes its rows is float32 or that of its weights") {
  on_every_device([](const Device& device) {
    for (const std::int64_t rows : {1, 8, 9, 1000}) {
      CHECK(device.operand_dtype(rows, DType::kFloat32) == DType::kFloat32);
      for (const DType dtype : kHalves) {
        const DType operand = device.operand_dtype(rows, dtype);
        CHECK((operand == DType::kFloat32 || operand == dtype));
      }
    }
  });
}

TEST_CASE("the output layer of a large vocabulary agrees with its formula in every dtype") {
  for (const DType dtype : kTypes) check_product(1, 8, 4096, Epilogue::kStore, dtype);
  check_product(1, 8, 50257, Epilogue::kStore, DType::kBFloat16);
}

/// Every number that a float32 can be, some 65536 of them, with rounding ties of both formats among them.
Values numbers_of_every_kind() {
  Values values;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const std::uint32_t low[] = {0x0000, 0x1000, 0x3000, 0x8000, 0x7fff, 0x8001, i};
    values.push_back(std::bit_cast<float>(i * 40503u % 65536u << 16 | low[i % 7]));
  }
  return values;
}

TEST_CASE("load_weight rounds every number to nearest, ties to even") {
  const Values values = numbers_of_every_kind();
  const std::int64_t size = 256;
  std::vector<std::int32_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  for (const DType dtype : kHalves) {
    for (const WeightOrder order : {WeightOrder::kOutputFirst, WeightOrder::kInputFirst}) {
      Values want = rounded(values, dtype);
      if (order == WeightOrder::kInputFirst) {
        const Values turned = want;
        for (std::size_t i = 0; i < want.size(); ++i) want[i % 256 * 256 + i / 256] = turned[i];
      }
      on_every_device([&](Device& device) {
        const Weight weight = upload_weight(device, values, 256, 256, dtype, order);
        CHECK(weight.packed.dtype() == dtype);
        // An embedding with positions of minus zero shows the rows unchanged.
        Tensor out = result_tensor(device, {size, size});
        device.embedding(make_batch(device, {{0, 256}}, ids), weight,
                         upload(device, {size, size}, Values(values.size(), -0.0f)), out);
        INFO(to_string(dtype));
        CHECK(difference("weights", download(device, out), want, 256, 0.0) == "");
      });
    }
  }
}

TEST_CASE("query_key_value rounds keys and values to the nearest even, to the bit") {
  // x is 1 and the bias 0: each result is the weight itself, of which only keys and values are rounded.
  const std::size_t width = 512, head_size = 64;
  Values w = numbers_of_every_kind();
  w.erase(std::remove_if(w.begin(), w.end(), [](float value) { return !std::isfinite(value); }), w.end());
  for (const DType dtype : kHalves) {
    for (std::size_t first = 0; first + 3 * width <= w.size(); first += 60 * width) {
      const Values part(w.data() + first, w.data() + first + 3 * width);
      const Values queries(part.data(), part.data() + width),
          keys = rounded(Values(part.data() + width, part.data() + 2 * width), dtype),
          values = rounded(Values(part.data() + 2 * width, part.data() + 3 * width), dtype);
      on_every_device([&](Device& device) {
        const Shape cache{1, static_cast<std::int64_t>(width / head_size), 1,
                          static_cast<std::int64_t>(head_size)};
        KeysValues keys_values{upload_as(dtype, device, cache, Values(width, kNaN)),
                               upload_as(dtype, device, cache, Values(width, kNaN))};
        Tensor out = result_tensor(device, shape_of(1, width));
        device.query_key_value(make_batch(device, {{0, 1}}), upload(device, {1, 1}, {1.0f}), {},
                               upload_weight(device, part, 1, 3 * width, DType::kFloat32),
                               upload(device, {static_cast<std::int64_t>(3 * width)}, Values(3 * width)), out,
                               keys_values);
        INFO(to_string(dtype));
        CHECK(difference("queries", download(device, out), queries, width, 0.0) == "");
        CHECK(difference("keys", download_any(device, keys_values.keys), keys, width, 0.0) == "");
        CHECK(difference("values", download_any(device, keys_values.values), values, width, 0.0) == "");
      });
    }
  }
}

TEST_CASE("query_key_value puts each part in its place in every pair of dtypes") {
  const std::vector<Sequence> batches[] = {{{5, 1}, {0, 1}, {9, 1}}, {{0, 13}, {3, 2}, {0, 1}, {7, 6}}};
  const std::size_t capacity = 16, width = 48, n_head = 3;
  for (const auto& sequences : batches) {
    std::size_t n_tokens = 0;
    for (const Sequence& s : sequences) n_tokens += static_cast<std::size_t>(s.count);
    const Values x = random_values(n_tokens * width, 5), w = random_values(3 * width * width, 6),
                 bias = random_values(3 * width, 7);
    for (const DType weights : kTypes) {
      for (const DType dtype : kTypes) {
        const auto product = naive::linear(x, rounded(w, weights), bias, n_tokens, width, 3 * width);
        const auto want = naive::split(sequences, product, capacity, width, n_head,
                                       static_cast<double>(rounded(kCanary, dtype)));
        on_every_device([&](Device& device) {
          INFO("weights in ", to_string(weights));
          const double within = tolerance(n_tokens, width, weights);
          check_query_key_value(device, sequences, upload(device, shape_of(n_tokens, width), x), {},
                                upload_weight(device, w, width, 3 * width, weights),
                                upload(device, {static_cast<std::int64_t>(3 * width)}, bias), want, n_head,
                                dtype, within, within + rounding_of_largest(product, dtype));
        });
      }
    }
  }
}

}  // namespace
}  // namespace staircase
