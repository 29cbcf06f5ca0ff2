// Weights in 8 and 4 bits on a GPU, or on the emulated one. They are compared with plain loops in double
// precision on the rounded numbers, and with the numbers that the CPU stores.
//
// Up to eight rows compute in float32; more take x and the weights as they come back from few bits, both
// rounded to 16. These roundings are known, so the reference makes them as well, and the tolerance is that of
// the products of float32 (linear.cpp).
#include "kernels/cpu/int8_int4_tile.h"
#include "tests/kernels/few_bits.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

double tolerance(std::size_t in) {
  return 1e-6 * (1.0 + std::sqrt(static_cast<double>(in)));
}

/// Weights [in, out] as a product of that many rows takes them.
Values as_multiplied(const Device& device, DType dtype, const Values& w, std::size_t rows, std::size_t in,
                     std::size_t out) {
  const DType operand = device.operand_dtype(static_cast<std::int64_t>(rows), dtype);
  return rounded(turned(rounded(turned(w, out), in, dtype), in), operand);
}

struct Product {
  DType dtype;
  std::size_t rows, in, out;
  bool with_bias = true;
  Values x = random_values(rows * in, 1), w = random_values(in * out, 2),
         bias = random_values(with_bias ? out : 0, 3), before = random_values(rows * out, 4);

  Tensor device_bias(Device& device) const {
    return with_bias ? upload(device, shape_of(1, out), bias) : Tensor();
  }

  Values run(Device& device, const Norm& norm = {}) const {
    Tensor result = result_tensor(device, shape_of(rows, out));
    device.linear(upload(device, shape_of(rows, in), x), norm, upload_weight(device, w, in, out, dtype),
                  device_bias(device), Epilogue::kStore, result);
    return download(device, result);
  }

  /// With x and the result in every type that the device takes.
  void check(Epilogue epilogue, double within) const {
    on_every_gpu([&](Device& device) {
      const DType operand = device.operand_dtype(static_cast<std::int64_t>(rows), dtype);
      const auto want = naive::linear(rounded(x, operand), as_multiplied(device, dtype, w, rows, in, out),
                                      bias, rows, in, out, epilogue, before);
      const Weight weight = upload_weight(device, w, in, out, dtype);
      const Tensor bias_there = device_bias(device);
      for (const DType stored : {DType::kFloat32, operand}) {
        const bool adds = epilogue == Epilogue::kAdd;
        const DType out_dtype = adds ? DType::kFloat32 : stored;
        Tensor result = adds ? upload(device, shape_of(rows, out), before)
                             : result_tensor(device, shape_of(rows, out), out_dtype);
        device.linear(upload_as(stored, device, shape_of(rows, in), x), {}, weight, bias_there, epilogue,
                      result);
        CAPTURE(to_string(dtype));
        CAPTURE(rows);
        CAPTURE(in);
        CAPTURE(static_cast<int>(epilogue));
        INFO("x in ", to_string(stored), ", out in ", to_string(out_dtype));
        CHECK(difference("out", download_any(device, result), want, out,
                         within + rounding_of_largest(want, out_dtype)) == "");
        if (operand == DType::kFloat32) break;
      }
    });
  }
  void check(Epilogue epilogue = Epilogue::kStore) const { check(epilogue, tolerance(in)); }
};

TEST_CASE("on a GPU a product with weights of few bits agrees with its formula for every odd shape") {
  for (const DType dtype : kFewBits) {
    for (const std::size_t rows : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u, 33u}) {
      for (const std::size_t in : {1u, 2u, 7u, 8u, 31u, 32u, 33u, 64u, 65u, 72u, 264u, 592u}) {
        for (const std::size_t out : {1u, 2u, 31u, 33u, 65u}) Product{dtype, rows, in, out}.check();
      }
    }
  }
}

TEST_CASE("on a GPU a product with weights of few bits applies every epilogue") {
  for (const DType dtype : kFewBits) {
    for (const std::size_t rows : {1u, 7u, 13u}) {
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kAdd}) {
        for (const bool with_bias : {false, true}) Product{dtype, rows, 80, 17, with_bias}.check(epilogue);
      }
    }
  }
}

TEST_CASE("on a GPU an output layer in few bits that is widened piece by piece agrees with its formula") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    // More than 2^24 weights: 8,192 outputs at a time, and 3 are left.
    const std::size_t rows = 9, in = 2048, out = 8195;
    for (const bool with_bias : {false, true}) {
      Product product{dtype, rows, in, out, with_bias};
      on_every_gpu([&](Device& device) {
        Tensor result = upload(device, shape_of(rows, out), product.before);
        device.linear(upload(device, shape_of(rows, in), product.x), {},
                      upload_weight(device, product.w, in, out, dtype), product.device_bias(device),
                      Epilogue::kAdd, result);
        const Values got = download(device, result);
        // Of the columns some from each piece, and those where they meet.
        const DType operand = device.operand_dtype(rows, dtype);
        const Values x = rounded(product.x, operand);
        for (const std::size_t column : {0u, 1u, 4097u, 8190u, 8191u, 8192u, 8193u, 8194u}) {
          Values w(in), bias(with_bias ? 1 : 0), before(rows), column_got(rows);
          for (std::size_t i = 0; i < in; ++i) w[i] = product.w[i * out + column];
          if (with_bias) bias[0] = product.bias[column];
          for (std::size_t r = 0; r < rows; ++r) {
            before[r] = product.before[r * out + column];
            column_got[r] = got[r * out + column];
          }
          const auto want = naive::linear(x, as_multiplied(device, dtype, w, rows, in, 1), bias, rows, in, 1,
                                          Epilogue::kAdd, before);
          CAPTURE(column);
          CHECK(difference("out", column_got, want, 1, tolerance(in)) == "");
        }
      });
    }
  }
}

/// Checks that the GPU has the integers and scales of the CPU, and zeros after the last input. Its memory is
/// read directly: values [out, groups, inputs of a group], in 4 bits two in a byte, and after them scales
/// [out, groups].
template <typename Panel>
void check_kept_as(DType dtype, const HostArray& array, WeightOrder order) {
  using Scale = std::remove_reference_t<decltype(Panel::scales[0])>;
  const std::unique_ptr<Device> cpu = make_cpu_device(2);
  const Weight want = cpu->load_weight(array, order, dtype);
  const std::int64_t in = want.in_features, out = want.out_features, groups = groups_of<Panel>(in),
                     inputs = groups * Panel::kInputs;
  on_every_gpu([&](Device& device) {
    const Weight weight = device.load_weight(array, order, dtype);
    CHECK(weight.in_features == in);
    CHECK(weight.out_features == out);
    const auto scales = static_cast<std::size_t>(out * groups);
    const std::size_t bytes = scales * (Panel::kInputs / Panel::kInByte + sizeof(Scale));
    CHECK(weight.packed.bytes() == bytes);
    // Copies are of whole floats; a part of one after the last of them can only be the last scale.
    Values memory(bytes / sizeof(float));
    device.copy_to_host(weight.packed.viewed_as(DType::kFloat32, {static_cast<std::int64_t>(memory.size())}),
                        memory);
    const auto* const values = reinterpret_cast<const std::uint8_t*>(memory.data());
    const auto whole = [&](std::int64_t o, std::int64_t i) {
      const int byte = values[(o * inputs + i) / Panel::kInByte];
      if constexpr (Panel::kInByte == 1) return static_cast<int>(static_cast<std::int8_t>(byte));
      return (i % 2 == 0 ? byte % 16 : byte / 16) - 8;
    };
    int wrong_values = 0, wrong_scales = 0, wrong_zeros = 0;
    for (std::int64_t o = 0; o < out; ++o) {
      const Panel* const panel = want.packed.data<Panel>() + o / kPanel * groups;
      for (std::int64_t i = 0; i < inputs; ++i) {
        if (i >= in) wrong_zeros += whole(o, i) != 0;
        if (i < in) wrong_values += whole(o, i) != whole_of(panel, i, o % kPanel);
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::size_t place = bytes - (scales - static_cast<std::size_t>(o * groups + g)) * sizeof(Scale);
        if (place + sizeof(Scale) > memory.size() * sizeof(float)) continue;
        Scale scale;
        std::memcpy(&scale, values + place, sizeof scale);
        wrong_scales += scale != panel[g].scales[o % kPanel];
      }
    }
    INFO(to_string(array.dtype), " [", array.rows, ", ", array.columns, "], order ", static_cast<int>(order));
    CHECK(wrong_values == 0);
    CHECK(wrong_scales == 0);
    CHECK(wrong_zeros == 0);
  });
}

void check_kept(DType dtype, const HostArray& array, WeightOrder order) {
  dtype == DType::kInt8 ? check_kept_as<Int8Panel>(dtype, array, order)
                        : check_kept_as<Int4Panel>(dtype, array, order);
}

constexpr WeightOrder kOrders[] = {WeightOrder::kOutputFirst, WeightOrder::kInputFirst};

TEST_CASE("on a GPU weights of few bits, both orders, every format and odd shape are those of the CPU") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    for (const std::int64_t rows : {1, 3, 63, 64, 65, 200, 300}) {
      for (const std::int64_t columns : {1, 31, 64, 65, 130, 257}) {
        const Values values = random_values(static_cast<std::size_t>(rows * columns), 6);
        for (const WeightOrder order : kOrders) {
          check_kept(dtype, {values.data(), DType::kFloat32, rows, columns}, order);
          for (const DType half : kHalves) {
            std::vector<std::uint16_t> halves;
            for (const float value : values) halves.push_back(half_from_float32(value, half));
            check_kept(dtype, {halves.data(), half, rows, columns}, order);
          }
        }
      }
    }
  }
}

TEST_CASE("on a GPU ties, zeros, huge numbers and tiny ones become the whole numbers of the CPU") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    const bool eight = dtype == DType::kInt8;
    const float tiny = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::max(),
                most = eight ? 127.0f : 8.0f;
    // Groups whose scale is 1, with halves between two whole numbers, and groups of other sizes.
    for (const float scale :
         {1.0f, 0.0f, tiny, 50 * tiny, 100 * tiny, 190 * tiny, 1e-40f, 1e-30f, huge / most}) {
      Values values(4 * kGroup);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = scale * (eight ? static_cast<float>(i % kGroup) * 2.0f - 63.5f
                                   : static_cast<float>(i % kInt4Group) * 0.5f - 7.5f);
      }
      values[5] = values[70] = scale * most;
      values[6] = values[150] = -scale * most;
      for (const WeightOrder order : kOrders) {
        CAPTURE(scale);
        check_kept(dtype, {values.data(), DType::kFloat32, 2, 2 * kGroup}, order);
        check_kept(dtype, {values.data(), DType::kFloat32, 2 * kGroup, 2}, order);
      }
    }
  }
}

TEST_CASE("on a GPU a matrix in several pieces is rounded like a whole one") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    // Rows of 400 kB, 83 of which are 32 MiB: not a whole number of groups. And rows of 560 kB, of which not
    // even one group is.
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{130, 100'001}, {70, 140'001}}) {
      const Values values = random_values(static_cast<std::size_t>(rows * columns), 7);
      for (const WeightOrder order : kOrders) {
        check_kept(dtype, {values.data(), DType::kFloat32, rows, columns}, order);
      }
    }
  }
}

TEST_CASE("on a GPU the embedding of a token is its row of few bits as it comes back") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    for (const std::size_t in : {1u, 64u, 65u, 200u}) {
      const std::size_t out = 70;
      const Values rows = random_values(in * out, 6), want = rounded(rows, in, dtype);
      std::vector<std::int32_t> ids(out);
      std::iota(ids.begin(), ids.end(), 0);
      on_every_gpu([&](Device& device) {
        CAPTURE(in);
        Tensor got = result_tensor(device, shape_of(out, in));
        device.embedding(make_batch(device, {{0, static_cast<int>(out)}}, ids),
                         upload_weight(device, rows, out, in, dtype, WeightOrder::kOutputFirst),
                         upload(device, shape_of(out, in), Values(in * out, -0.0f)), got);
        CHECK(difference("embeddings", download(device, got), want, in, 0.0) == "");
      });
    }
  }
}

// One row has a kernel of its own, which sums in another order.
TEST_CASE("on a GPU a row with weights of few bits gets the same bits among two and among up to eight") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    const std::size_t out = 37;
    // In the last two, rows do not end with a group, and not with 16 bytes. The first has tensor cores.
    for (const std::size_t in : {192u, 1040u, 100u}) {
      const Product all{dtype, 8, in, out};
      const Shape width{static_cast<std::int64_t>(in)};
      for (const bool with_norm : {false, true}) {
        on_every_gpu([&](Device& device) {
          Norm norm;
          if (with_norm) {
            norm = {NormKind::kLayer, upload(device, width, random_values(in, 8)),
                    upload(device, width, random_values(in, 9)), 1e-5f};
          }
          CAPTURE(in);
          CAPTURE(with_norm);
          const Values together = all.run(device, norm);
          for (std::size_t first = 0; first < 8; ++first) {
            for (std::size_t rows = 2; first + rows <= 8; ++rows) {
              Product some{dtype, rows, in, out};
              std::copy_n(all.x.begin() + static_cast<std::ptrdiff_t>(first * in), rows * in, some.x.begin());
              const auto begin = together.begin() + static_cast<std::ptrdiff_t>(first * out);
              CAPTURE(first);
              CAPTURE(rows);
              CHECK(same_bits(some.run(device, norm),
                              Values(begin, begin + static_cast<std::ptrdiff_t>(rows * out))));
            }
          }
        });
      }
    }
  }
}

TEST_CASE("on a GPU a product with weights of few bits normalizes a few rows and many") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    // As in normalized_linear.cpp; with many rows norm(x), below 2.8, is rounded to 16 bits.
    const std::size_t out = 33;
    for (const std::size_t rows : {1u, 2u, 4u, 5u, 8u, 9u, 33u}) {
      for (const std::size_t in : {3u, 16u, 64u, 100u, 272u, 8208u}) {
        if (in > 1000 && rows > 5) continue;
        Product product{dtype, rows, in, out};
        product.x = random_values(rows * in, 1, 50.0f);
        const Values norm_weight = random_values(in, 8), norm_bias = random_values(in, 9);
        const auto normed = naive::layer_norm(product.x, norm_weight, norm_bias, 1e-5, rows, in);
        on_every_gpu([&](Device& device) {
          const DType operand = device.operand_dtype(static_cast<std::int64_t>(rows), dtype);
          const auto want = naive::linear(Values(normed.begin(), normed.end()),
                                          as_multiplied(device, dtype, product.w, rows, in, out),
                                          product.bias, rows, in, out);
          const Shape width{static_cast<std::int64_t>(in)};
          const Norm norm{NormKind::kLayer, upload(device, width, norm_weight),
                          upload(device, width, norm_bias), 1e-5f};
          const double root = std::sqrt(static_cast<double>(in));
          const double within = 3.0 * tolerance(in) + 1e-7 * static_cast<double>(in) +
                                (operand == DType::kFloat32 ? 0.0 : 3.0 * rounding_error(operand) * root);
          CAPTURE(rows);
          CAPTURE(in);
          CHECK(difference("out", product.run(device, norm), want, out, within) == "");
        });
      }
    }
  }
}

TEST_CASE("on a GPU zeros, one huge value and numbers too small to divide stay numbers in few bits") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    const std::size_t in = 130, out = 66;
    const float smallest = std::numeric_limits<float>::denorm_min();
    for (const std::size_t rows : {2u, 9u}) {
      for (const auto& [common, one] :
           {std::pair{0.0f, 0.0f}, {0.0f, 1e30f}, {1.0f, 1e30f}, {smallest, smallest}, {1e-3f, 1e38f}}) {
        Product product{dtype, rows, in, out};
        product.w = Values(in * out, common);
        product.w[in + 7] = one;
        product.check(Epilogue::kStore, 1e-5 * std::max(1.0, static_cast<double>(one)));
      }
    }
  }
}

TEST_CASE("on a GPU a NaN in a row of x makes that row NaN, and no other, with weights in few bits") {
  const std::size_t out = 40;
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    for (const std::size_t rows : {3u, 10u}) {
      // After 108 inputs, the last eight that begin at a multiple of eight would reach into the next row.
      for (const std::size_t in : {112u, 108u}) {
        for (const auto& [broken, place] : {std::pair{kNaN, 0u}, {kInfinity, 70u}, {-kInfinity, 107u}}) {
          Product product{dtype, rows, in, out};
          product.x[in + place] = broken;
          on_every_gpu([&](Device& device) {
            CAPTURE(rows);
            CAPTURE(in);
            const Values got = product.run(device);
            for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isfinite(got[i]) == (i / out != 1));
          });
        }
      }
    }
  }
}

TEST_CASE("on a GPU query_key_value with weights of few bits puts each part in its place in bfloat16") {
  for (const DType dtype : kFewBits) {
    CAPTURE(to_string(dtype));
    const std::size_t capacity = 16, width = 48, n_head = 3;
    const std::vector<Sequence> batches[] = {{{5, 1}, {0, 1}, {9, 1}}, {{0, 13}, {3, 2}, {0, 1}, {7, 6}}};
    for (const auto& sequences : batches) {
      std::size_t rows = 0;
      for (const Sequence& s : sequences) rows += static_cast<std::size_t>(s.count);
      const Product product{dtype, rows, width, 3 * width};
      for (const DType stored_as : {DType::kFloat32, DType::kBFloat16}) {
        on_every_gpu([&](Device& device) {
          const DType operand = device.operand_dtype(static_cast<std::int64_t>(rows), dtype);
          const auto flat = naive::linear(rounded(product.x, operand),
                                          as_multiplied(device, dtype, product.w, rows, width, 3 * width),
                                          product.bias, rows, width, 3 * width);
          const auto want = naive::split(sequences, flat, capacity, width, n_head,
                                         static_cast<double>(rounded(kCanary, stored_as)));
          const double within = tolerance(width);
          check_query_key_value(device, sequences, upload(device, shape_of(rows, width), product.x), {},
                                upload_weight(device, product.w, width, 3 * width, dtype),
                                product.device_bias(device), want, n_head, stored_as, within,
                                within + rounding_of_largest(flat, stored_as));
        });
      }
    }
  }
}

}  // namespace
}  // namespace staircase
