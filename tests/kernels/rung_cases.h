// What the rungs of the CPU's ladders are tried with: odd sizes, and numbers whose results are known well.
// The tests compare with loops in double precision, `tools/step check` with the first rung.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"
#include "kernels/rungs/cpu/rung.h"

namespace staircase::rungs {

/// One row is for both ladders of products, more are for that of prefill.
inline const std::vector<ProductShape> kOddProducts = {
    {1, 1, 1},    {1, 31, 63},   {1, 32, 64},  {1, 33, 65},   {1, 300, 1100}, {2, 64, 17},
    {5, 65, 130}, {6, 96, 1024}, {7, 63, 127}, {13, 129, 65}, {32, 31, 33},   {33, 66, 97}};

inline const std::vector<AttentionShape> kOddHeads = {{1, 1, 16, 1},  {3, 3, 16, 2},  {2, 1, 48, 63},
                                                      {4, 2, 64, 64}, {9, 3, 64, 65}, {8, 1, 128, 200},
                                                      {6, 3, 80, 449}};

struct PromptShape : AttentionShape {
  std::int64_t tokens;
};

/// Whole prompts, the next part of a text, and one token. Tiles have 6 tokens, blocks 96 tokens and 256 keys.
inline const std::vector<PromptShape> kOddPrompts = {
    {{1, 1, 16, 1}, 1},    {{3, 3, 16, 2}, 2},    {{2, 1, 48, 63}, 63},    {{4, 2, 64, 64}, 7},
    {{9, 3, 64, 65}, 65},  {{6, 3, 80, 200}, 97}, {{2, 1, 128, 193}, 193}, {{2, 1, 16, 257}, 257},
    {{1, 1, 32, 449}, 96}, {{8, 1, 64, 130}, 1}};

/// Whole numbers up to 127, with the largest in each group of 32 inputs, on both sides. Then 8 bits and
/// bfloat16 round nothing, and no sum needs more than the 24 bits of a float: all types must agree exactly.
struct Wholes {
  explicit Wholes(const ProductShape& shape) {
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t i = 0; i < shape.n_in; ++i) x.push_back(whole(i, 1));
    }
    for (std::int64_t i = 0; i < shape.n_in; ++i) {
      for (std::int64_t o = 0; o < shape.n_out; ++o) w.push_back(whole(i, o % 2 == 0 ? 1.0f : -1.0f));
    }
  }

  std::vector<float> x, w;

 private:
  float whole(std::int64_t i, float sign) {
    return i % 32 == 0 ? sign * 127.0f : static_cast<float>(static_cast<int>(random_() % 255) - 127);
  }

  std::mt19937 random_{1};
};

/// Normal numbers; queries a few times larger make some weights nearly 1 and others nearly 0.
struct Heads {
  Heads(const PromptShape& shape, float of_queries, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    queries.resize(static_cast<std::size_t>(shape.tokens * shape.n_head * shape.head_size));
    keys.resize(static_cast<std::size_t>(shape.n_kv_head * shape.positions * shape.head_size));
    values.resize(keys.size());
    for (float& value : queries) value = of_queries * normal(random);
    for (float& value : keys) value = normal(random);
    for (float& value : values) value = normal(random);
  }
  Heads(const AttentionShape& shape, float of_queries, unsigned seed)
      : Heads(PromptShape{shape, 1}, of_queries, seed) {}

  Prompt prompt(const PromptShape& shape) const {
    return {shape, shape.tokens, queries.data(), keys.data(), values.data()};
  }

  std::vector<float> queries, keys, values;
};

/// How far a result may be from the formula's, for queries of that size. A score of 1,000 has an error of
/// 6e-5 in float32, so its weight has the same. Rounded to bfloat16, a number is wrong by 2^-9 at most, and a
/// score by some of them: larger ones may exchange two keys, so nothing is promised (negative).
inline double tolerance_of_attention(std::string_view rung, float of_queries) {
  if (rung.ends_with("-bfloat16") || rung == "9-amx") return of_queries <= 1.0f ? 0.02 : -1.0;
  return of_queries > 8.0f ? 3e-3 : 2e-5;
}

/// What `work` writes into `count` numbers when it is called twice: nothing is left over from the first time.
/// The number after them stays what it is.
template <typename Work>
std::vector<float> results_of(std::int64_t count, const Work& work, bool& stays_inside) {
  std::vector<float> results(static_cast<std::size_t>(count) + 1, 0.5f);
  work(results.data());
  work(results.data());
  stays_inside = results.back() == 0.5f;
  results.pop_back();
  return results;
}

}  // namespace staircase::rungs
