// A cache in int8: what arrives is rounded as a plain loop rounds it, to the bit, and attention agrees with
// plain loops on the rounded numbers. The tolerance is that of attention.cpp.
#include "tests/kernels/kept_cache.h"

namespace staircase {
namespace {

/// Integers, and then their scale.
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

const KeptType kInt8Cache{DType::kInt8, kept, numbers,
                          [](const naive::Doubles& heads, std::size_t) { return heads; }};

void check_rounding(const Values& floats, const Bytes& bytes, std::size_t head_size) {
  CHECK(bytes == kept(floats, head_size));
}

TEST_CASE("split_heads rounds each head at each position to 8 bits with a scale of its own") {
  check_split_heads(DType::kInt8, {16, 32, 64, 80, 128}, check_rounding);
}

TEST_CASE("query_key_value rounds to 8 bits what it writes to a cache in float32") {
  check_query_key_value(DType::kInt8, {{3, 16}, {2, 48}, {1, 64}}, check_rounding);
}

TEST_CASE("attention multiplies an int8 cache by its scales, in rows and in blocks") {
  for (const std::size_t head_size : {16u, 32u, 64u, 80u, 128u}) {
    for (const int count : {1, 2, 3, 15, 16, 40}) {
      KeptAttention{kInt8Cache, {{7, count}, {50, 1}, {0, count}}, 2, 3, head_size, 96}.check();
    }
  }
  for (const std::size_t group : {1u, 2u, 7u, 8u, 9u})
    KeptAttention{kInt8Cache, {{70, 5}}, 2, group, 64, 96}.check();
  KeptAttention{kInt8Cache, {{600, 1}, {900, 20}}, 3, 3, 64, 1024}.check();
}

TEST_CASE("attention within a window leaves out earlier positions of an int8 cache") {
  for (const int count : {1, 20, 150})
    KeptAttention{kInt8Cache, {{200, count}, {3, 1}}, 2, 2, 32, 384, 33}.check();
}

TEST_CASE("a token gets the same bits from an int8 cache alone, in parts and in its prompt") {
  for (const std::size_t group : {1u, 3u})
    KeptAttention{kInt8Cache, {{7, 40}}, 2, group, 64, 48}.check_parts();
}

#ifndef STAIRCASE_CUDA_EMULATION
TEST_CASE("threads that share the heads of an int8 cache compute the bits of one thread") {
  for (const std::size_t head_size : {16u, 64u, 80u}) {
    for (const std::vector<Sequence>& batch :
         {std::vector<Sequence>{{1100, 1}}, {{1023, 1}}, {{1200, 5}}, {{1100, 2}, {20, 1}, {0, 30}}})
      KeptAttention{kInt8Cache, batch, 3, 3, head_size, 1216}.check_threads();
  }
  KeptAttention{kInt8Cache, {{1100, 1}}, 1, 9, 64, 1104, 500}.check_threads();
}
#endif

TEST_CASE("copy_positions copies the scales of an int8 cache with their positions") {
  check_copy_positions(DType::kInt8, 32);
}

TEST_CASE("a number that is not finite in an int8 cache does not become an ordinary one") {
  check_broken_number(DType::kInt8, 16);
}

TEST_CASE("a cache in int8 takes heads that fill whole vectors") {
  for (const std::int64_t head_size : {16, 64, 80}) CHECK(takes_heads(DType::kInt8, head_size));
  for (const std::int64_t head_size : {1, 8, 24, 65}) CHECK(!takes_heads(DType::kInt8, head_size));
  for (const DType dtype : kTypes) CHECK(takes_heads(dtype, 65));
  CHECK(!takes_heads(DType::kInt32, 64));
}

}  // namespace
}  // namespace staircase
