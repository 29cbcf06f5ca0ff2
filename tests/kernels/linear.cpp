// linear and query_key_value against plain loops.
//
// The tolerance: a sum of K products of numbers below 1 that is rounded after every step errs by about eps/2
// · |partial sum| each time, and the partial sums grow like sqrt(K). 1e-6 · sqrt(K), and as much for the bias
// and the epilogue, is a few times the largest of some thousand such errors. An error of one product or one
// bias would be thousands of times larger.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

// Up to 24 rows go down a panel together, or 48 with narrow vectors; more take turns.
constexpr std::size_t kRowCounts[] = {0, 1, 2, 5, 6, 7, 8, 11, 12, 13, 24, 25, 33, 48, 49, 67};
constexpr std::size_t kWidths[] = {1, 2, 15, 16, 17, 31, 64, 100, 257};

double tolerance(std::size_t in) {
  return 1e-6 * (1.0 + std::sqrt(static_cast<double>(in)));
}

struct Linear {
  std::size_t rows, in, out;
  Values x = random_values(rows * in, 1), w = random_values(in * out, 2), bias = random_values(out, 3),
         before = random_values(rows * out, 4);

  Values run(Device& device, Epilogue epilogue, bool with_bias = true) const {
    const Tensor device_x = upload(device, shape_of(rows, in), x);
    const Weight weight = upload_weight(device, w, in, out);
    Tensor result = epilogue == Epilogue::kAdd ? upload(device, shape_of(rows, out), before)
                                               : result_tensor(device, shape_of(rows, out));
    const Tensor device_bias = with_bias ? upload(device, {static_cast<std::int64_t>(out)}, bias) : Tensor();
    device.linear(device_x, {}, weight, device_bias, epilogue, result);
    return download(device, result);
  }

  naive::Doubles expected(Epilogue epilogue, bool with_bias = true) const {
    return naive::linear(x, w, with_bias ? bias : Values(), rows, in, out, epilogue, before);
  }
};

TEST_CASE("linear multiplies matrices of every odd shape") {
  for (const std::size_t rows : kRowCounts) {
    for (const std::size_t in : kWidths) {
      for (const std::size_t out : kWidths) {
        const Linear linear{rows, in, out};
        const auto want = linear.expected(Epilogue::kStore);
        on_every_device([&](Device& device) {
          CAPTURE(rows);
          CAPTURE(in);
          CHECK(difference("out", linear.run(device, Epilogue::kStore), want, out, tolerance(in)) == "");
        });
      }
    }
  }
}

TEST_CASE("linear applies every epilogue, with a bias and without") {
  for (const std::size_t rows : {1u, 6u, 13u}) {
    for (const std::size_t out : kWidths) {
      const std::size_t in = 31;
      const Linear linear{rows, in, out};
      for (const Epilogue epilogue :
           {Epilogue::kStore, Epilogue::kGelu, Epilogue::kGeluErf, Epilogue::kAdd}) {
        for (const bool with_bias : {false, true}) {
          const auto want = linear.expected(epilogue, with_bias);
          on_every_device([&](Device& device) {
            CAPTURE(rows);
            CAPTURE(static_cast<int>(epilogue));
            CAPTURE(with_bias);
            CHECK(difference("out", linear.run(device, epilogue, with_bias), want, out, tolerance(in)) == "");
          });
        }
      }
    }
  }
}

TEST_CASE("gelu is right from minus a thousand to a thousand") {
  // One input with weight 1: the product is the argument itself.
  Linear linear{1, 1, 401};
  linear.x = {1.0f};
  for (std::size_t i = 0; i < linear.out; ++i) {
    const double u = (static_cast<double>(i) - 200.0) / 200.0;
    linear.w[i] = static_cast<float>(1000.0 * u * u * u);
  }
  for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluErf}) {
    const auto want = linear.expected(epilogue, false);
    on_every_device([&](Device& device) {
      const Values got = linear.run(device, epilogue, false);
      for (std::size_t i = 0; i < linear.out; ++i) {
        CAPTURE(linear.w[i]);
        // Relative to the value; below zero gelu vanishes, and there float32 ends before double does.
        CHECK(std::abs(static_cast<double>(got[i]) - want[i]) <= 1e-6 * std::abs(want[i]) + 1e-7);
      }
    });
  }
}

TEST_CASE("the exact gelu is right to a millionth of its value from -4 to 10") {
  // -x²/2, of which exp is taken, is 8 at -4: rounded, it errs by 5e-7. A GPU's erfc takes x / sqrt 2, whose
  // rounding makes 1e-6 of the value at -4, and its own error is up to 4 units in the last place.
  Linear linear{1, 1, 2801};
  linear.x = {1.0f};
  for (std::size_t i = 0; i < linear.out; ++i) linear.w[i] = -4.0f + static_cast<float>(i) * 0.005f;
  const auto want = linear.expected(Epilogue::kGeluErf, false);
  on_every_device([&](Device& device) {
    const Values got = linear.run(device, Epilogue::kGeluErf, false);
    double worst = 0.0;
    for (std::size_t i = 0; i < linear.out; ++i) {
      if (want[i] == 0.0) continue;
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) / want[i] - 1.0));
    }
    CHECK(worst <= (has_one_kernel(device) ? 1e-6 : 1.5e-6));
  });
}

/// A difference in words: any at all on the CPU, one above the tolerance on a GPU.
std::string row_difference(const Device& device, const Values& got, const Values& want, std::size_t columns,
                           double gpu_tolerance) {
  if (has_one_kernel(device)) return same_bits(got, want) ? "" : "other bits";
  return difference("rows", got, want, columns, gpu_tolerance);
}

TEST_CASE("a row of linear is the same to the bit whatever its neighbours are and however many threads run") {
  for (const std::size_t out : {17u, 100u, 257u}) {
    const Linear all{67, 100, out};
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kGeluErf, Epilogue::kAdd}) {
      std::string last_target;
      Values first;
      on_every_device([&](Device& device) {
        const Values together = all.run(device, epilogue);
        // The description ends with the SIMD target; thread counts of one target must agree.
        const std::string name = device.description(), target = name.substr(name.rfind(' '));
        if (target != last_target) first = together;
        last_target = target;
        CHECK(same_bits(together, first));
        for (const std::size_t count : {1u, 2u, 5u, 6u, 7u, 8u, 12u, 16u, 24u, 25u, 60u}) {
          for (const std::size_t begin : {std::size_t{0}, std::size_t{7}, all.rows - count}) {
            Linear some{count, all.in, out};
            const auto rows_of = [&](const Values& values, std::size_t width) {
              return Values(values.data() + begin * width, values.data() + (begin + count) * width);
            };
            some.x = rows_of(all.x, all.in);
            some.before = rows_of(all.before, out);
            CAPTURE(begin);
            CAPTURE(count);
            CHECK(row_difference(device, some.run(device, epilogue), rows_of(together, out), out,
                                 tolerance(all.in)) == "");
          }
        }
      });
    }
  }
}

TEST_CASE("query_key_value puts each part in its place and touches nothing else") {
  const std::vector<Sequence> batches[] = {
      {{0, 1}}, {{0, 7}}, {{5, 1}, {0, 1}, {9, 1}}, {{0, 13}, {3, 2}, {0, 1}, {7, 6}}};
  const std::size_t capacity = 16;
  struct Size {
    std::size_t width, n_head;
  };
  const Size sizes[] = {{1, 1},  {3, 1},  {3, 3},  {8, 2},   {16, 1}, {25, 5},
                        {64, 1}, {64, 4}, {75, 3}, {96, 12}, {96, 2}};
  for (const Size& size : sizes) {
    const std::size_t width = size.width, n_head = size.n_head;
    for (const auto& sequences : batches) {
      std::size_t n_tokens = 0;
      for (const Sequence& s : sequences) n_tokens += static_cast<std::size_t>(s.count);
      const Values x = random_values(n_tokens * width, 5), w = random_values(3 * width * width, 6),
                   bias = random_values(3 * width, 7);
      const auto product = naive::linear(x, w, bias, n_tokens, width, 3 * width);
      const auto want =
          naive::split(sequences, product, capacity, width, n_head, static_cast<double>(kCanary));

      on_every_device([&](Device& device) {
        CAPTURE(width);
        CAPTURE(n_head);
        check_query_key_value(device, sequences, upload(device, shape_of(n_tokens, width), x), {},
                              upload_weight(device, w, width, 3 * width),
                              upload(device, {static_cast<std::int64_t>(3 * width)}, bias), want, n_head,
                              DType::kFloat32, tolerance(width), tolerance(width));
      });
    }
  }
}

TEST_CASE("a token of query_key_value is the same to the bit alone and in a batch") {
  const std::size_t width = 75, n_tokens = 13;
  const std::int64_t columns = 75, rows = 13;
  const Values x = random_values(n_tokens * width, 8), w = random_values(3 * width * width, 9),
               bias = random_values(3 * width, 10);
  on_every_device([&](Device& device) {
    const Weight weight = upload_weight(device, w, width, 3 * width);
    const Tensor device_bias = upload(device, {3 * columns}, bias);
    const auto run = [&](std::size_t first, std::int64_t count) {
      const Shape shape{count, columns};
      KeysValues keys_values{result_tensor(device, {1, 1, count, columns}),
                             result_tensor(device, {1, 1, count, columns})};
      Tensor queries = result_tensor(device, shape);
      const float* const begin = x.data() + first * width;
      device.query_key_value(
          make_batch(device, {{0, static_cast<int>(count)}}),
          upload(device, shape, Values(begin, begin + static_cast<std::size_t>(count) * width)), {}, weight,
          device_bias, queries, keys_values);
      return std::vector<Values>{download(device, queries), download(device, keys_values.keys),
                                 download(device, keys_values.values)};
    };
    const auto together = run(0, rows);
    for (std::size_t t = 0; t < n_tokens; ++t) {
      const auto alone = run(t, 1);
      for (std::size_t part = 0; part < 3; ++part) {
        const float* const row = together[part].data() + t * width;
        CAPTURE(t);
        CAPTURE(part);
        CHECK(row_difference(device, alone[part], Values(row, row + width), width, tolerance(width)) == "");
      }
    }
  });
}

}  // namespace
}  // namespace staircase
