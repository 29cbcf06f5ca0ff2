// A cache in int4: what arrives is rotated and rounded as a plain loop does it, to the bit, and no worse than
// from the ends of its groups. Attention agrees with plain loops on the numbers that the levels stand for,
// rotated back by the matrix itself.
#include "tests/kernels/kept_cache.h"

namespace staircase {
namespace {

constexpr std::size_t kOfGroup = 16;

/// H x / √n for each n neighbours of a head, where n is the largest power of 2 that divides its size. The
/// entry [i, j] of H is 1 if i and j have an even number of bits in common, otherwise -1.
naive::Doubles rotated(const naive::Doubles& heads, std::size_t head_size) {
  const std::size_t n = head_size & (~head_size + 1);
  naive::Doubles all;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < n; ++j) {
      sum += std::popcount(i % n & j) % 2 == 0 ? heads[i / n * n + j] : -heads[i / n * n + j];
    }
    all.push_back(sum / std::sqrt(static_cast<double>(n)));
  }
  return all;
}

/// The same with roundings to float32 after each sum of two.
Values rotated_in_turns(Values heads, std::size_t head_size) {
  const std::size_t n = head_size & (~head_size + 1);
  for (std::size_t half = 1; half < n; half *= 2) {
    for (std::size_t i = 0; i < heads.size(); ++i) {
      if ((i & half) != 0) continue;
      const float a = heads[i], b = heads[i + half];
      heads[i] = a + b;
      heads[i + half] = a - b;
    }
  }
  for (float& x : heads) x *= 1.0f / std::sqrt(static_cast<float>(n));
  return heads;
}

/// One group: its levels, and what they mean.
struct Group {
  float least = 0.0f, step = 0.0f;
  std::vector<int> levels;

  /// From the least to the largest number.
  explicit Group(std::span<const float> numbers) {
    const auto [low, high] = std::ranges::minmax(numbers);
    use(low + 0.0f, (high - low + 0.0f) / 15.0f, numbers);  // 0, not -0
  }

  void use(float new_least, float new_step, std::span<const float> numbers) {
    least = float32_from_bfloat16(bfloat16_from_float32(new_least));
    step = float32_from_bfloat16(bfloat16_from_float32(new_step));
    levels.clear();
    for (const float x : numbers) {
      const float whole = step > 0.0f ? std::nearbyint((x - least) / step) : 0.0f;
      levels.push_back(static_cast<int>(std::clamp(whole, 0.0f, 15.0f)));
    }
  }

  /// Draws the straight line through the numbers: the two normal equations, solved by Cramer's rule.
  void fit(std::span<const float> numbers) {
    double level = 0.0, square = 0.0, number = 0.0, together = 0.0;
    for (std::size_t i = 0; i < kOfGroup; ++i) {
      const double x = static_cast<double>(numbers[i]);
      level += levels[i];
      square += levels[i] * levels[i];
      number += x;
      together += levels[i] * x;
    }
    const double determinant = 16.0 * square - level * level;
    if (determinant == 0.0) return;
    use(static_cast<float>((square * number - level * together) / determinant),
        static_cast<float>((16.0 * together - level * number) / determinant), numbers);
  }

  double error(std::span<const float> numbers) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < kOfGroup; ++i) {
      sum += std::pow(static_cast<double>(numbers[i]) - static_cast<double>(least) -
                          static_cast<double>(step) * levels[i],
                      2);
    }
    return sum;
  }
};

/// The numbers of a group, the g-th of some heads. It has a quarter of 32 neighbours, and the next but one.
Values of_group(const Values& heads, std::size_t g) {
  Values own;
  for (std::size_t i = 0; i < 32; ++i) {
    if (i / 8 % 2 == g % 2) own.push_back(heads[g / 2 * 32 + i]);
  }
  return own;
}

/// Levels of 32 neighbours in 16 bytes, first those in the lower halves; then two numbers for each group.
Bytes kept(const Values& heads, std::size_t head_size) {
  Bytes all;
  for (std::size_t first = 0; first < heads.size(); first += head_size) {
    std::vector<Group> groups;
    for (std::size_t g = 0; g < head_size / kOfGroup; ++g) {
      const Values own = of_group(heads, first / kOfGroup + g);
      groups.emplace_back(own).fit(own);
    }
    for (const Group& group : groups) {
      for (std::size_t i = 0; i < 8; ++i)
        all.push_back(static_cast<std::int8_t>(group.levels[i] + 16 * group.levels[i + 8]));
    }
    for (const Group& group : groups) {
      for (const float number : {group.least, group.step}) {
        const std::uint16_t half = bfloat16_from_float32(number);
        all.push_back(static_cast<std::int8_t>(half % 256));
        all.push_back(static_cast<std::int8_t>(half / 256));
      }
    }
  }
  return all;
}

naive::Doubles numbers(const Bytes& all, std::size_t head_size) {
  const std::size_t size = head_size / 2 + head_size / 4;
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(all[i]); };
  naive::Doubles heads;
  for (std::size_t head = 0; head < all.size(); head += size) {
    for (std::size_t i = 0; i < head_size; ++i) {
      const int pair = byte(head + i / 32 * 16 + i % 16), level = i % 32 < 16 ? pair % 16 : pair / 16;
      const auto half = [&](std::size_t of) {
        const std::size_t place = head + head_size / 2 + (i / 32 * 2 + i / 8 % 2) * 4 + 2 * of;
        const auto bits = static_cast<std::uint16_t>(byte(place) + 256 * byte(place + 1));
        return static_cast<double>(float32_from_bfloat16(bits));
      };
      heads.push_back(half(0) + half(1) * level);
    }
  }
  return heads;
}

const KeptType kInt4Cache{DType::kInt4, kept, numbers, rotated};

/// The bytes are those of the plain loop. Each group is about as near to the rotated numbers as levels from
/// the least to the largest of them, and all together are nearer.
void check_rounding(const Values& floats, const Bytes& bytes, std::size_t head_size) {
  CHECK(bytes == kept(rotated_in_turns(floats, head_size), head_size));
  const naive::Doubles exact = rotated(naive::Doubles(floats.begin(), floats.end()), head_size);
  const Values heads(exact.begin(), exact.end());
  const naive::Doubles got = numbers(bytes, head_size);
  REQUIRE(got.size() == heads.size());
  double all = 0.0, plain = 0.0;
  const Values stored(got.begin(), got.end());
  for (std::size_t g = 0; g < heads.size() / kOfGroup; ++g) {
    const Values own = of_group(heads, g), kept_as = of_group(stored, g);
    double error = 0.0;
    for (std::size_t i = 0; i < kOfGroup; ++i)
      error += std::pow(static_cast<double>(kept_as[i]) - static_cast<double>(own[i]), 2);
    const double of_ends = Group(own).error(own);
    const double size = std::abs(
        static_cast<double>(*std::ranges::max_element(own, {}, [](float x) { return std::abs(x); })));
    CAPTURE(g);
    CHECK(error <= 1.1 * of_ends + 1e-9 * size * size);
    all += error;
    plain += of_ends;
  }
  if (heads.size() > 1000) CHECK(all < 0.95 * plain);
}

TEST_CASE("the rotation of a head spreads its outlier, and a second one undoes it") {
  naive::Doubles head(64);
  head[5] = 8.0;
  const naive::Doubles once = rotated(head, 64);
  for (const double x : once) CHECK(std::abs(x) == doctest::Approx(1.0));
  CHECK(difference("twice", Values(head.begin(), head.end()), rotated(once, 64), 64, 1e-12) == "");
}

TEST_CASE("split_heads rotates each head and rounds it to 4 bits, no worse than from its ends") {
  check_split_heads(DType::kInt4, {32, 64, 96, 128, 160}, check_rounding);
}

/// Writes heads [count, head_size] as the values of `count` tokens, and returns their bytes.
Bytes written(Device& device, const Values& heads, std::size_t head_size) {
  const std::size_t count = heads.size() / head_size;
  Values projected;  // queries, keys and values of each token
  for (std::size_t first = 0; first < heads.size(); first += head_size) {
    for (int part = 0; part < 3; ++part)
      projected.insert(projected.end(), &heads[first], &heads[first] + head_size);
  }
  Written cache(device, DType::kInt4, 1, count, head_size);
  Tensor queries = result_tensor(device, shape_of(count, head_size));
  device.split_heads(make_batch(device, {{0, static_cast<int>(count)}}),
                     upload(device, shape_of(count, 3 * head_size), projected), {}, queries, cache.bytes);
  const Bytes values = download_bytes(device, cache.bytes.values);
  CHECK(values == download_bytes(device, cache.bytes.keys));
  return values;
}

TEST_CASE("an int4 cache keeps a plain loop's bytes of whole numbers, and of zeros with a sign") {
  constexpr std::size_t kHead = 64;
  Values heads(kHead, -0.0f);
  heads.resize(2 * kHead, 3.0f);
  heads.resize(3 * kHead, -1e-44f);
  heads.resize(4 * kHead, -1e30f);
  // Rotated, the others are whole numbers from 0 to 1, from 0 to 2 and so on: many fall between two levels,
  // and the line through a group often passes through 0.
  const Values random = random_values(60 * kHead, 7);
  Values whole;
  for (std::size_t i = 0; i < random.size(); ++i) {
    whole.push_back(std::floor((random[i] + 1.0f) * 0.5f * static_cast<float>(i / kHead + 2)));
  }
  whole = rotated_in_turns(whole, kHead);
  heads.insert(heads.end(), whole.begin(), whole.end());
  on_every_device([&](Device& device) {
    CHECK(written(device, heads, kHead) == kept(rotated_in_turns(heads, kHead), kHead));
  });
}

#ifndef STAIRCASE_CUDA_EMULATION
TEST_CASE("every processor keeps the same bytes of a head with a number that is not finite") {
  for (const float broken : {kNaN, kInfinity, -kInfinity}) {
    Values head = random_values(96, 1);
    head[40] = broken;
    Bytes first;
    on_every_cpu([&](Device& device) {
      const Bytes bytes = written(device, head, 96);
      if (first.empty()) first = bytes;
      CHECK(bytes == first);
    });
  }
}
#endif

TEST_CASE("query_key_value rounds to 4 bits what it writes to a cache in float32") {
  check_query_key_value(DType::kInt4, {{3, 32}, {2, 96}, {1, 64}}, check_rounding);
}

TEST_CASE("attention multiplies the levels of an int4 cache, in rows and in blocks") {
  for (const std::size_t head_size : {32u, 64u, 96u, 128u, 160u}) {
    for (const int count : {1, 2, 3, 15, 16, 40}) {
      KeptAttention{kInt4Cache, {{7, count}, {50, 1}, {0, count}}, 2, 3, head_size, 96}.check();
    }
  }
  for (const std::size_t group : {1u, 2u, 7u, 8u, 9u})
    KeptAttention{kInt4Cache, {{70, 5}}, 2, group, 64, 96}.check();
  KeptAttention{kInt4Cache, {{600, 1}, {900, 20}}, 3, 3, 64, 1024}.check();
}

TEST_CASE("attention within a window leaves out earlier positions of an int4 cache") {
  for (const int count : {1, 20, 150})
    KeptAttention{kInt4Cache, {{200, count}, {3, 1}}, 2, 2, 32, 384, 33}.check();
}

TEST_CASE("a token gets the same bits from an int4 cache alone, in parts and in its prompt") {
  for (const std::size_t group : {1u, 3u})
    KeptAttention{kInt4Cache, {{7, 40}}, 2, group, 64, 48}.check_parts();
}

#ifndef STAIRCASE_CUDA_EMULATION
TEST_CASE("threads that share the heads of an int4 cache compute the bits of one thread") {
  for (const std::size_t head_size : {32u, 64u, 96u}) {
    for (const std::vector<Sequence>& batch :
         {std::vector<Sequence>{{1100, 1}}, {{1023, 1}}, {{1200, 5}}, {{1100, 2}, {20, 1}, {0, 30}}})
      KeptAttention{kInt4Cache, batch, 3, 3, head_size, 1216}.check_threads();
  }
  KeptAttention{kInt4Cache, {{1100, 1}}, 1, 9, 64, 1104, 500}.check_threads();
}
#endif

TEST_CASE("copy_positions copies the ends of an int4 cache's groups with their positions") {
  check_copy_positions(DType::kInt4, 64);
}

TEST_CASE("a number that is not finite in an int4 cache does not become an ordinary one") {
  check_broken_number(DType::kInt4, 32);
}

TEST_CASE("attention on a GPU refuses heads of an int4 cache that a block of threads cannot share") {
  on_every_gpu([](Device& device) {
    const KeptAttention large{kInt4Cache, {{0, 1}}, 1, 1, 1056, 1};
    CHECK_THROWS_WITH_AS(large.run(device, large.in_rows(device)),
                         "attention on the GPU supports heads of up to 1024 features where their number is a "
                         "multiple of 8, else of up to 128, not of 1056",
                         std::runtime_error);
  });
}

TEST_CASE("a cache in int4 takes heads that are pairs of groups") {
  for (const std::int64_t head_size : {32, 64, 96}) CHECK(takes_heads(DType::kInt4, head_size));
  for (const std::int64_t head_size : {8, 16, 48, 80}) CHECK(!takes_heads(DType::kInt4, head_size));
  for (const std::int64_t head_size : {32, 64, 96, 128}) {
    const std::int64_t size = kept_size(DType::kInt4, head_size);
    CHECK(size == head_size * 3 / 4);
    CHECK(head_size_of(DType::kInt4, size) == head_size);
  }
}

}  // namespace
}  // namespace staircase
