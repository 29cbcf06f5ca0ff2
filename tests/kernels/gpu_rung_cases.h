// What the rungs of the GPU's ladders are tried with.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

/// Inputs and outputs. 4,128 inputs are more than a ring of eight turns holds in any type but 8 bits, 20,000
/// also there.
struct MatrixSize {
  int n_in, n_out;
};
inline const std::vector<MatrixSize> kOddMatrices = {{1, 1},   {31, 3},  {32, 4},   {33, 5},   {127, 129},
                                                     {300, 7}, {513, 9}, {4128, 3}, {20000, 2}};

/// Whole numbers with the largest in each group of 32, so that no type rounds anything, and no sum needs more
/// than the 24 bits of a float.
struct Wholes {
  Wholes(int n_in, int n_out) : n_in_(static_cast<std::size_t>(n_in)) {
    const int largest = n_in > 1000 ? 1 : 127;
    const auto whole = [&](std::size_t i) {
      const auto number = static_cast<int>(random_() % static_cast<unsigned>(2 * largest + 1)) - largest;
      return i % 32 == 0 ? 127.0f : static_cast<float>(number);
    };
    for (std::size_t i = 0; i < n_in_; ++i) x.push_back(whole(i));
    for (std::size_t o = 0; o < static_cast<std::size_t>(n_out); ++o) {
      const float sign = o % 2 == 0 ? 1.0f : -1.0f;
      for (std::size_t i = 0; i < n_in_; ++i) w.push_back(sign * whole(i));
    }
  }

  double product(std::size_t o) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < n_in_; ++i)
      sum += static_cast<double>(w[o * n_in_ + i]) * static_cast<double>(x[i]);
    return sum;
  }

  std::vector<float> x, w;

 private:
  std::size_t n_in_;
  std::mt19937 random_{1};
};

/// Whole tiles of 32 and 64, and what is beyond them. 300 inputs are more than a ring of four turns holds.
struct ProductSize {
  int rows, n_in, n_out;
};
inline const std::vector<ProductSize> kOddProducts = {{1, 1, 1},    {2, 31, 3},    {5, 33, 65},
                                                      {64, 64, 64}, {17, 100, 63}, {65, 129, 66},
                                                      {7, 300, 9},  {1, 513, 33}};

/// Whole numbers as above, for several rows of x.
struct WholeRows {
  explicit WholeRows(const ProductSize& size) : n_in_(static_cast<std::size_t>(size.n_in)) {
    const Wholes all(size.n_in, size.rows + size.n_out);
    const auto middle = all.w.begin() + size.rows * size.n_in;
    x.assign(all.w.begin(), middle);
    w.assign(middle, all.w.end());
  }

  double product(std::size_t r, std::size_t o) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < n_in_; ++i)
      sum += static_cast<double>(x[r * n_in_ + i]) * static_cast<double>(w[o * n_in_ + i]);
    return sum;
  }

  std::vector<float> x, w;

 private:
  std::size_t n_in_;
};

struct RowSize {
  int rows, width;
};
inline const std::vector<RowSize> kOddRows = {{1, 1},   {1, 2},    {3, 31},  {2, 33},  {5, 127},
                                              {4, 129}, {3, 1000}, {130, 9}, {2, 1024}};

/// Rows around a mean, and parameters.
struct NormCase {
  NormCase(int rows, int width, float mean) {
    std::mt19937 random(static_cast<unsigned>(rows * 1000 + width));
    std::normal_distribution<float> normal;
    for (int i = 0; i < rows * width; ++i) x.push_back(mean + normal(random));
    for (int i = 0; i < width; ++i) weight.push_back(1.0f + 0.5f * normal(random));
    for (int i = 0; i < width; ++i) bias.push_back(normal(random));
  }

  /// Of a result from the formula's. In float32 a mean of 100 has an error of some 1e-5, and a sum of a
  /// thousand such numbers more.
  static double tolerance(float mean) { return mean == 0.0f ? 1e-5 : 2e-3; }

  std::vector<float> x, weight, bias;
};

inline const std::vector<RowSize> kOddLogits = {{1, 1},   {1, 2},    {3, 31},   {2, 129},
                                                {130, 3}, {1, 1025}, {1, 3000}, {1, 70001}};

/// Normal numbers, larger ones by `scale`, around 1,000: their exponentials are infinite in float32.
inline std::vector<float> logits(const RowSize& size, float scale) {
  std::mt19937 random(static_cast<unsigned>(size.width));
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int i = 0; i < size.rows * size.width; ++i) x.push_back(1000.0f + scale * normal(random));
  return x;
}

/// Of a probability. A sum in float32 of 70,001 numbers, one after another, may be wrong by 1e-3 of it. But
/// then the largest probability is far below 1.
constexpr double kErrorOfSoftmax = 2e-6;

/// A group has 8 heads at most. 4,200 positions are more than 32 pieces of 128.
struct HeadsSize {
  int n_head, n_kv_head, size, positions;
};
inline const std::vector<HeadsSize> kOddHeads = {{1, 1, 1, 1},    {3, 3, 31, 2},   {2, 1, 33, 127},
                                                 {4, 2, 64, 128}, {9, 3, 65, 129}, {8, 1, 128, 300},
                                                 {6, 3, 80, 513}, {1, 1, 16, 4200}};

/// Normal numbers; with larger queries, some weights are nearly 1 and others nearly 0.
struct HeadsCase {
  HeadsCase(const HeadsSize& shape, float of_queries) {
    std::mt19937 random(static_cast<unsigned>(shape.positions));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, int rows, float size) {
      for (int i = 0; i < rows * shape.size; ++i) values.push_back(size * normal(random));
    };
    fill(queries, shape.n_head, of_queries);
    fill(keys, shape.n_kv_head * shape.positions, 1.0f);
    fill(values, shape.n_kv_head * shape.positions, 1.0f);
  }

  /// Of a result from the formula's. A score of 100 has an error of some 1e-5, and a weight as much of
  /// itself.
  static double tolerance(float of_queries) { return of_queries == 1.0f ? 4e-6 : 2e-4; }

  std::vector<float> queries, keys, values;
};

struct ChainSize {
  int layers, width;
};
inline const std::vector<ChainSize> kOddChains = {{1, 4}, {2, 36}, {3, 132}, {5, 100}, {2, 260}, {1, 1024}};

/// Matrices that keep x about as large as it is.
struct ChainCase {
  explicit ChainCase(const ChainSize& size) {
    std::mt19937 random(static_cast<unsigned>(size.width));
    std::normal_distribution<float> normal;
    for (int i = 0; i < size.width; ++i) x.push_back(normal(random));
    for (int i = 0; i < size.layers * size.width * size.width; ++i)
      w.push_back(normal(random) / std::sqrt(static_cast<float>(size.width)));
  }

  std::vector<float> x, w;
};

/// Of a result. A sum of a thousand products near 0.03 has an error of some 1e-6, and five layers some more.
constexpr double kErrorOfChain = 2e-5;

/// Calls `test` on the GPU; in the emulation, in every order of threads and blocks, and with the race check.
void on_every_gpu(const std::function<void()>& test);
