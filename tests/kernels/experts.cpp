// A router's choice and the sum over the chosen experts, against a full sort and plain loops.
//
// A share errs by some 1e-7: an exponential, and a sum of at most 160 of them. A sum of four products of
// numbers below 4 errs by four roundings of at most 16.
#include <cmath>

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

struct Choice {
  std::vector<std::int32_t> experts;
  Values shares;
};

/// Of each row of `scores`.
Choice chosen_by(Device& device, const Values& scores, std::size_t n_experts, std::size_t k,
                 RouterSoftmax softmax) {
  const std::size_t rows = scores.size() / n_experts;
  const std::vector<std::int32_t> before(rows * k, -1);
  Tensor chosen = upload_ints(device, before).reshaped(shape_of(rows, k));
  Tensor shares = result_tensor(device, shape_of(rows, k));
  device.choose_experts(upload(device, shape_of(rows, n_experts), scores), softmax, chosen, shares);
  Choice choice{before, download(device, shares)};
  device.copy_to_host(chosen, std::as_writable_bytes(std::span(choice.experts)));
  return choice;
}

TEST_CASE(
    "a router chooses the largest scores in their order, and its shares are a softmax over all or over "
    "these") {
  for (const auto& [n_experts, k] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 1}, {2, 1}, {2, 2}, {8, 2}, {31, 3}, {32, 4}, {33, 33}, {64, 8}, {160, 6}}) {
    for (const RouterSoftmax softmax : {RouterSoftmax::kAll, RouterSoftmax::kChosen}) {
      for (const std::size_t rows : {1u, 2u, 5u, 700u}) {
        Values scores = random_values(rows * n_experts, 1, 3.0f);
        // Ties, and scores whose exponentials are no float32.
        for (std::size_t i = 0; i < n_experts; ++i) scores[i] = std::round(scores[i]) + 100.0f;
        std::vector<std::int32_t> want;
        Values shares;
        for (std::size_t r = 0; r < rows; ++r) {
          const float* const own = scores.data() + r * n_experts;
          std::vector<std::int32_t> order(n_experts);
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(),
                           [&](std::int32_t a, std::int32_t b) { return own[a] > own[b]; });
          double sum = 0.0;
          for (std::size_t j = 0; j < (softmax == RouterSoftmax::kAll ? n_experts : k); ++j)
            sum += std::exp(static_cast<double>(own[order[j]]));
          for (std::size_t j = 0; j < k; ++j) {
            want.push_back(order[j]);
            shares.push_back(static_cast<float>(std::exp(static_cast<double>(own[order[j]])) / sum));
          }
        }
        const std::size_t experts = n_experts, count = k;
        on_every_device([&](Device& device) {
          INFO(experts, " experts, ", count, " of them for each of ", rows, " rows");
          const Choice choice = chosen_by(device, scores, experts, count, softmax);
          CHECK(choice.experts == want);
          CHECK(difference("shares", choice.shares, shares, count, 1e-6) == "");
        });
      }
    }
  }
}

TEST_CASE("the products of several matrices together are those of each alone, to the bit on a CPU") {
  const std::vector<std::int64_t> firsts{0, 0, 3, 4, 4, 11};  // two matrices have no rows
  constexpr std::size_t kIn = 128, kMatrices = 5;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kSiluGate}) {
      const std::size_t out = is_gated(epilogue) ? 256 : 100;
      const std::size_t width = is_gated(epilogue) ? out / 2 : out;
      const Values x = random_values(11 * kIn, 5);
      on_every_device([&](Device& device) {
        std::vector<Weight> weights;
        std::vector<const Weight*> given;
        for (std::size_t i = 0; i < kMatrices; ++i) {
          const Values w = random_values(out * kIn, static_cast<std::uint32_t>(i));
          weights.push_back(device.load_weight(
              {w.data(), DType::kFloat32, static_cast<std::int64_t>(out), static_cast<std::int64_t>(kIn)},
              WeightOrder::kOutputFirst, dtype));
        }
        for (const Weight& weight : weights) given.push_back(&weight);
        const Tensor rows = upload(device, shape_of(11, kIn), x);
        Tensor together = result_tensor(device, shape_of(11, width));
        device.linear_groups(rows, firsts, given, epilogue, together);
        const Values got = download(device, together);
        for (std::size_t i = 0; i < kMatrices; ++i) {
          const std::int64_t first = firsts[i], count = firsts[i + 1] - first;
          if (count == 0) continue;
          const Values own_rows(x.begin() + first * static_cast<std::int64_t>(kIn),
                                x.begin() + (first + count) * static_cast<std::int64_t>(kIn));
          Tensor alone = result_tensor(device, shape_of(static_cast<std::size_t>(count), width));
          device.linear(upload(device, shape_of(static_cast<std::size_t>(count), kIn), own_rows), {},
                        weights[i], {}, epilogue, alone);
          const Values part(got.begin() + first * static_cast<std::int64_t>(width),
                            got.begin() + (first + count) * static_cast<std::int64_t>(width));
          CAPTURE(to_string(dtype));
          CAPTURE(i);
          CHECK(same_bits(part, download(device, alone)));
        }
      });
    }
  }
}

TEST_CASE("a router with numbers that are not finite names experts that there are, each once") {
  const Values scores{1.0f,       kNaN,       2.0f,       0.0f,        // a NaN comes last
                      kNaN,       kNaN,       kNaN,       kNaN,        //
                      kInfinity,  1.0f,       kInfinity,  0.0f,        //
                      -kInfinity, -kInfinity, -kInfinity, -kInfinity,  //
                      -kInfinity, 5.0f,       -kInfinity, kNaN};
  const std::vector<std::int32_t> want{2, 0, 3, 0, 1, 2, 0, 2, 1, 0, 1, 2, 1, 0, 2};
  for (const RouterSoftmax softmax : {RouterSoftmax::kAll, RouterSoftmax::kChosen}) {
    on_every_device([&](Device& device) {
      const Choice choice = chosen_by(device, scores, 4, 3, softmax);
      CHECK(choice.experts == want);
      // So the logits are no numbers either, and the model says so.
      for (const std::size_t row : {1u, 2u, 3u}) CHECK(std::isnan(choice.shares[row * 3]));
    });
  }
}

TEST_CASE("combine_rows sums the rows of a row's experts by their shares, or adds them to what is there") {
  for (const std::size_t width : {1u, 3u, 16u, 75u, 257u}) {
    for (const std::size_t k : {1u, 2u, 4u}) {
      for (const std::size_t rows : {1u, 7u, 300u}) {
        const Values x = random_values(rows * k * width, 1), shares = random_values(rows * k, 2),
                     before = random_values(rows * width, 3);
        std::vector<std::int32_t> places(rows * k);
        std::iota(places.begin(), places.end(), 0);
        std::mt19937 generator(4);
        std::shuffle(places.begin(), places.end(), generator);
        for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
          naive::Doubles want;
          for (std::size_t i = 0; i < before.size(); ++i) {
            double sum = epilogue == Epilogue::kAdd ? static_cast<double>(before[i]) : 0.0;
            for (std::size_t j = i / width * k; j < (i / width + 1) * k; ++j) {
              const auto place = static_cast<std::size_t>(places[j]);
              sum += static_cast<double>(shares[j]) * static_cast<double>(x[place * width + i % width]);
            }
            want.push_back(sum);
          }
          on_every_device([&](Device& device) {
            CAPTURE(width);
            CAPTURE(k);
            CAPTURE(rows);
            Tensor out = result_tensor(device, shape_of(rows, width));
            device.copy_from_host(before, out);
            device.combine_rows(upload(device, shape_of(rows * k, width), x),
                                upload_ints(device, places).reshaped(shape_of(rows, k)),
                                upload(device, shape_of(rows, k), shares), epilogue, out);
            CHECK(difference("out", download(device, out), want, width, 4e-6) == "");
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace staircase
