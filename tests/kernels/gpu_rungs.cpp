// Every rung of the GPU's ladders computes what plain loops do: in the emulation, and on a GPU if there is
// one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/rungs/cuda/attention/prepared.h"
#include "kernels/rungs/cuda/boundaries/prepared.h"
#include "kernels/rungs/cuda/layer_norm/prepared.h"
#include "kernels/rungs/cuda/matvec/prepared.h"
#include "kernels/rungs/cuda/product/prepared.h"
#include "kernels/rungs/cuda/softmax/prepared.h"
#include "tests/kernels/gpu_rung_cases.h"

using namespace staircase::rungs;
using namespace staircase::rungs::gpu_matvec;

TEST_CASE("every rung on a GPU multiplies whole numbers exactly, in every type and odd size") {
  on_every_gpu([] {
    for (const MatvecRung& rung : ladder()) {
      for (const MatrixSize& size : kOddMatrices) {
        const int n_in = size.n_in, n_out = size.n_out;
        CAPTURE(rung.name);
        CAPTURE(n_in);
        CAPTURE(n_out);
        const Wholes numbers(n_in, n_out);
        Prepared prepared(rung, n_in, n_out, numbers.w.data(), numbers.x.data());
        for (int time = 0; time < 2; ++time) {  // nothing is left over from the first
          prepared.run_after_kernel();
          const std::vector<float> y = prepared.result();
          REQUIRE(y.size() == static_cast<std::size_t>(n_out) + 1);
          for (std::size_t o = 0; o + 1 < y.size(); ++o) {
            CAPTURE(o);
            REQUIRE(static_cast<double>(y[o]) == numbers.product(o));
          }
          CHECK(y.back() == 0.5f);
        }
      }
    }
  });
}

TEST_CASE("every rung on a GPU rounds as finely as its type") {
  on_every_gpu([] {
    constexpr int kIn = 1000, kOut = 40;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(kIn), w(std::size_t{kIn} * kOut);
    for (float& value : x) value = normal(random);
    for (float& value : w) value = normal(random);
    for (const MatvecRung& rung : ladder()) {
      CAPTURE(rung.name);
      Prepared prepared(rung, kIn, kOut, w.data(), x.data());
      prepared.run_after_kernel();
      const std::vector<float> y = prepared.result();
      double squares = 0.0, size = 0.0;
      for (std::size_t o = 0; o < kOut; ++o) {
        double sum = 0.0;
        for (std::size_t i = 0; i < kIn; ++i)
          sum += static_cast<double>(w[o * kIn + i]) * static_cast<double>(x[i]);
        squares += std::pow(static_cast<double>(y[o]) - sum, 2.0);
        size += sum * sum;
      }
      // As of the CPU's rungs: tests/kernels/rungs.cpp has the reasons.
      const double most = rung.stored == Stored::kInt8       ? 0.0085
                          : rung.stored == Stored::kBFloat16 ? 0.003
                                                             : 1e-6;
      const double error = std::sqrt(squares / size);
      CHECK(error < most);
      if (most > 1e-3) CHECK(error > most / 4);  // it is the type that it says
    }
  });
}

namespace {

/// The largest difference from the formula in double precision; NaN counts as infinity.
double most_wrong(const std::vector<float>& y, const NormCase& numbers, const RowSize& size) {
  const auto width = static_cast<std::size_t>(size.width);
  double most = 0.0;
  for (std::size_t first = 0; first < numbers.x.size(); first += width) {
    double mean = 0.0, variance = 0.0;
    for (std::size_t i = 0; i < width; ++i) mean += static_cast<double>(numbers.x[first + i]) / size.width;
    for (std::size_t i = 0; i < width; ++i)
      variance += std::pow(static_cast<double>(numbers.x[first + i]) - mean, 2.0) / size.width;
    for (std::size_t i = 0; i < width; ++i) {
      const double expected = (static_cast<double>(numbers.x[first + i]) - mean) /
                                  std::sqrt(variance + 1e-5) * static_cast<double>(numbers.weight[i]) +
                              static_cast<double>(numbers.bias[i]);
      const double wrong = std::abs(static_cast<double>(y[first + i]) - expected);
      most = std::max(most, std::isnan(wrong) ? INFINITY : wrong);
    }
  }
  return most;
}

/// The same for a softmax of x.
double most_wrong(const std::vector<float>& y, const std::vector<float>& x, const RowSize& size) {
  const auto width = static_cast<std::size_t>(size.width);
  double most = 0.0;
  for (std::size_t first = 0; first < x.size(); first += width) {
    double largest = -INFINITY, sum = 0.0;
    for (std::size_t i = 0; i < width; ++i) largest = std::max(largest, static_cast<double>(x[first + i]));
    for (std::size_t i = 0; i < width; ++i) sum += std::exp(static_cast<double>(x[first + i]) - largest);
    for (std::size_t i = 0; i < width; ++i) {
      const double wrong = std::abs(static_cast<double>(y[first + i]) -
                                    std::exp(static_cast<double>(x[first + i]) - largest) / sum);
      most = std::max(most, std::isnan(wrong) ? INFINITY : wrong);
    }
  }
  return most;
}

/// The same for attention.
double most_wrong(const std::vector<float>& out, const HeadsCase& numbers, const HeadsSize& shape) {
  const auto size = static_cast<std::size_t>(shape.size),
             positions = static_cast<std::size_t>(shape.positions);
  const auto at = [](const std::vector<float>& values, std::size_t i) {
    return static_cast<double>(values[i]);
  };
  double most = 0.0;
  for (std::size_t head = 0; head < static_cast<std::size_t>(shape.n_head); ++head) {
    const std::size_t kv = head / static_cast<std::size_t>(shape.n_head / shape.n_kv_head) * positions * size;
    std::vector<double> scores(positions), features(size);
    for (std::size_t p = 0; p < positions; ++p) {
      for (std::size_t i = 0; i < size; ++i)
        scores[p] += at(numbers.queries, head * size + i) * at(numbers.keys, kv + p * size + i);
      scores[p] /= std::sqrt(shape.size);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (std::size_t p = 0; p < positions; ++p) {
      const double weight = std::exp(scores[p] - largest);
      sum += weight;
      for (std::size_t i = 0; i < size; ++i) features[i] += weight * at(numbers.values, kv + p * size + i);
    }
    for (std::size_t i = 0; i < size; ++i) {
      const double wrong = std::abs(at(out, head * size + i) - features[i] / sum);
      most = std::max(most, std::isnan(wrong) ? INFINITY : wrong);
    }
  }
  return most;
}

}  // namespace

TEST_CASE("every layer norm on a GPU is the formula, in odd sizes and far from zero") {
  on_every_gpu([] {
    for (const gpu_layer_norm::LayerNormRung& rung : gpu_layer_norm::ladder()) {
      for (const RowSize& size : kOddRows) {
        for (const float mean : {0.0f, 100.0f}) {
          CAPTURE(rung.name);
          CAPTURE(size.rows);
          CAPTURE(size.width);
          CAPTURE(mean);
          const NormCase numbers(size.rows, size.width, mean);
          gpu_layer_norm::Prepared prepared(rung, numbers.x, numbers.weight, numbers.bias);
          for (int time = 0; time < (mean == 0.0f ? 2 : 1); ++time) {
            prepared.run_after_kernel();
            const std::vector<float> y = prepared.result();
            REQUIRE(y.size() == numbers.x.size() + 1);
            CHECK(most_wrong(y, numbers, size) < NormCase::tolerance(mean));
            CHECK(y.back() == 0.5f);
          }
        }
      }
    }
  });
}

TEST_CASE("every softmax on a GPU is the formula, in odd sizes and far from zero") {
  on_every_gpu([] {
    for (const gpu_softmax::SoftmaxRung& rung : gpu_softmax::ladder()) {
      for (const RowSize& size : kOddLogits) {
        for (const float scale : {0.0f, 1.0f, 30.0f}) {
          // Only blocks that share a row have an edge there, and the emulation takes long.
          if (size.width > 65536 && (scale != 1.0f || rung.name != "4-split")) continue;
          CAPTURE(rung.name);
          CAPTURE(size.rows);
          CAPTURE(size.width);
          CAPTURE(scale);
          const std::vector<float> x = logits(size, scale);
          gpu_softmax::Prepared prepared(rung, x, size.width);
          for (int time = 0; time < (scale == 30.0f ? 2 : 1); ++time) {
            prepared.run_after_kernel();
            const std::vector<float> y = prepared.result();
            REQUIRE(y.size() == x.size() + 1);
            CHECK(most_wrong(y, x, size) < kErrorOfSoftmax);
            CHECK(y.back() == 0.5f);
          }
        }
      }
    }
  });
}

TEST_CASE("every attention on a GPU is the formula, in odd sizes and with weights near 0 and 1") {
  on_every_gpu([] {
    for (const gpu_attention::AttentionRung& rung : gpu_attention::ladder()) {
      for (const HeadsSize& size : kOddHeads) {
        for (const float of_queries : {1.0f, 30.0f}) {
          if (size.positions > 1000 && of_queries != 1.0f) continue;
          CAPTURE(rung.name);
          CAPTURE(size.size);
          CAPTURE(size.positions);
          CAPTURE(of_queries);
          const HeadsCase numbers(size, of_queries);
          gpu_attention::Prepared prepared(rung, size.n_kv_head, size.size, numbers.queries, numbers.keys,
                                           numbers.values);
          for (int time = 0; time < (size.positions < 200 ? 2 : 1); ++time) {
            prepared.run_after_kernel();
            const std::vector<float> out = prepared.result();
            REQUIRE(out.size() == numbers.queries.size() + 1);
            CHECK(most_wrong(out, numbers, size) < HeadsCase::tolerance(of_queries));
            CHECK(out.back() == 0.5f);
          }
        }
      }
    }
  });
}

TEST_CASE("every product of prefill on a GPU multiplies whole numbers exactly, in odd sizes") {
  on_every_gpu([] {
    for (const gpu_product::ProductRung& rung : gpu_product::ladder()) {
      for (const ProductSize& size : kOddProducts) {
        CAPTURE(rung.name);
        CAPTURE(size.rows);
        CAPTURE(size.n_in);
        CAPTURE(size.n_out);
        const WholeRows numbers(size);
        gpu_product::Prepared prepared(rung, size.rows, size.n_in, size.n_out, numbers.w.data(),
                                       numbers.x.data());
        for (int time = 0; time < (size.rows < 17 ? 2 : 1); ++time) {
          prepared.run_after_kernel();
          const std::vector<float> y = prepared.result();
          const auto n_out = static_cast<std::size_t>(size.n_out);
          REQUIRE(y.size() == static_cast<std::size_t>(size.rows) * n_out + 1);
          std::size_t i = 0;
          while (i + 1 < y.size() && static_cast<double>(y[i]) == numbers.product(i / n_out, i % n_out)) ++i;
          CHECK(i + 1 == y.size());  // i is the first that differs
          CHECK(y.back() == 0.5f);
        }
      }
    }
  });
}

TEST_CASE("every product of prefill on a GPU rounds as finely as its type") {
  on_every_gpu([] {
    constexpr int kRows = 3, kIn = 500, kOut = 40;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(std::size_t{kIn} * kRows), w(std::size_t{kIn} * kOut);
    for (float& value : x) value = normal(random);
    for (float& value : w) value = normal(random);
    for (const gpu_product::ProductRung& rung : gpu_product::ladder()) {
      CAPTURE(rung.name);
      gpu_product::Prepared prepared(rung, kRows, kIn, kOut, w.data(), x.data());
      prepared.run_after_kernel();
      const std::vector<float> y = prepared.result();
      double squares = 0.0, size = 0.0;
      for (std::size_t i = 0; i + 1 < y.size(); ++i) {
        double sum = 0.0;
        for (std::size_t k = 0; k < kIn; ++k)
          sum += static_cast<double>(x[i / kOut * kIn + k]) * static_cast<double>(w[i % kOut * kIn + k]);
        squares += std::pow(static_cast<double>(y[i]) - sum, 2.0);
        size += sum * sum;
      }
      const bool rounds = rung.stored == gpu_product::Stored::kBFloat16;
      const double error = std::sqrt(squares / size);
      CHECK(error < (rounds ? 0.004 : 1e-6));  // both factors have 8 bits
      if (rounds) CHECK(error > 0.001);
    }
  });
}

TEST_CASE("every chain of layers on a GPU is the product of all matrices") {
  on_every_gpu([] {
    for (const gpu_boundaries::BoundaryRung& rung : gpu_boundaries::ladder()) {
      for (const ChainSize& size : kOddChains) {
        CAPTURE(rung.name);
        CAPTURE(size.layers);
        CAPTURE(size.width);
        const ChainCase numbers(size);
        const auto width = static_cast<std::size_t>(size.width);
        std::vector<double> x(numbers.x.begin(), numbers.x.end());
        for (std::size_t first = 0; first < numbers.w.size(); first += width * width) {
          std::vector<double> next(width);
          for (std::size_t i = 0; i < width * width; ++i)
            next[i / width] += static_cast<double>(numbers.w[first + i]) * x[i % width];
          x = next;
        }
        gpu_boundaries::Prepared prepared(rung, numbers.w, numbers.x);
        for (int time = 0; time < (size.width < 200 ? 3 : 1); ++time) {
          prepared.run_after_kernel();
          const std::vector<float> y = prepared.result();
          REQUIRE(y.size() == width + 1);
          double most = 0.0;
          for (std::size_t i = 0; i < width; ++i) {
            const double wrong = std::abs(static_cast<double>(y[i]) - x[i]);
            most = std::max(most, std::isnan(wrong) ? INFINITY : wrong);
          }
          CHECK(most < kErrorOfChain);
          CHECK(y.back() == 0.5f);
        }
      }
    }
  });
}

TEST_CASE("the rungs on a GPU are numbered in order") {
  const auto check = [](const auto& rungs) {
    int number = 1;
    for (const auto& rung : rungs) CHECK(rung.name.starts_with(std::to_string(number++) + "-"));
  };
  check(ladder());
  check(gpu_layer_norm::ladder());
  check(gpu_softmax::ladder());
  check(gpu_attention::ladder());
  check(gpu_product::ladder());
  check(gpu_boundaries::ladder());
}
