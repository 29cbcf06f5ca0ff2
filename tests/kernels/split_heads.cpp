// split_heads against plain loops: norm, rotation, then its place in a cache.
//
// The tolerance: normalized features are below sqrt(head_size) in theory and below 3 here; a rotation adds
// two products of numbers that err by some 1e-7 of that. The rotations that the operation gets are float32,
// as the loops take them from double precision: another 6e-8 of each factor.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr double kTheta = 10000.0;

struct Heads {
  std::vector<Sequence> sequences;
  std::size_t n_head, n_kv_head, head_size, rotary;
  bool has_norm = true;
  DType dtype = DType::kFloat32;
  std::size_t block_size = 0;  // 0: no blocks
  float scale = 1.0f;
  bool heads_together = false;

  std::size_t n_tokens = count_tokens(), capacity = longest(), width = (n_head + 2 * n_kv_head) * head_size;
  Values projected = offset_values(), query_weight = random_values(norm_width(n_head), 2),
         key_weight = random_values(norm_width(n_kv_head), 3);

  std::size_t norm_width(std::size_t heads) const { return heads_together ? heads * head_size : head_size; }

  std::size_t count_tokens() const {
    std::size_t count = 0;
    for (const Sequence& s : sequences) count += static_cast<std::size_t>(s.count);
    return count;
  }
  std::size_t longest() const {
    std::size_t most = 0;
    for (const Sequence& s : sequences) most = std::max(most, static_cast<std::size_t>(s.start + s.count));
    const std::size_t step = block_size == 0 ? 1 : block_size;
    return (most + step - 1) / step * step;
  }
  Values offset_values() const {
    Values values = random_values(n_tokens * width, 1, scale);
    for (float& value : values) value += 0.25f * scale;
    return values;
  }

  /// The cosines and sines of all tokens, as a model makes them.
  Values rotations() const {
    Values result;
    for (const Sequence& s : sequences) {
      for (int t = 0; t < s.count; ++t) {
        for (const bool sines : {false, true}) {
          for (std::size_t i = 0; i < rotary / 2; ++i) {
            const double radians = naive::angle(s.start + t, i, rotary, kTheta);
            result.push_back(static_cast<float>(sines ? std::sin(radians) : std::cos(radians)));
          }
        }
      }
    }
    return result;
  }

  /// queries [n_tokens, n_head · head_size], keys and values [n_sequences, n_kv_head, capacity, head_size].
  naive::Parts wanted() const {
    naive::Parts parts;
    const double untouched = static_cast<double>(rounded(kCanary, dtype));
    parts.keys = parts.values =
        naive::Doubles(sequences.size() * n_kv_head * capacity * head_size, untouched);
    const float* x = projected.data();
    const auto head = [&](const Values& weight, int position, std::size_t number) {
      const std::size_t first = heads_together ? number * head_size : 0;
      const Values from(x - first, x - first + weight.size());
      x += head_size;
      naive::Doubles normed =
          has_norm ? naive::rms_norm(from, weight, static_cast<double>(kEpsilon), 1, weight.size())
                   : naive::Doubles(from.begin(), from.end());
      normed = naive::Doubles(normed.begin() + static_cast<std::ptrdiff_t>(first),
                              normed.begin() + static_cast<std::ptrdiff_t>(first + head_size));
      return naive::turned(normed, position, rotary, kTheta);
    };
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (int t = 0; t < sequences[s].count; ++t) {
        const int position = sequences[s].start + t;
        const auto place = [&](std::size_t h) {
          return static_cast<std::ptrdiff_t>(
              ((s * n_kv_head + h) * capacity + static_cast<std::size_t>(position)) * head_size);
        };
        for (std::size_t h = 0; h < n_head; ++h) {
          const naive::Doubles query = head(query_weight, position, h);
          parts.queries.insert(parts.queries.end(), query.begin(), query.end());
        }
        for (std::size_t h = 0; h < n_kv_head; ++h) {
          const naive::Doubles key = head(key_weight, position, h);
          std::copy(key.begin(), key.end(), parts.keys.begin() + place(h));
        }
        for (std::size_t h = 0; h < n_kv_head; ++h, x += head_size) {
          std::copy_n(x, head_size, parts.values.begin() + place(h));
        }
      }
    }
    return parts;
  }

  /// Side by side, whatever the blocks.
  Values side_by_side(const Values& blocks) const {
    if (block_size == 0) return blocks;
    Values result(blocks.size());
    const std::size_t most = capacity / block_size;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::size_t h = 0; h < n_kv_head; ++h) {
        for (std::size_t p = 0; p < capacity; ++p) {
          const auto block = static_cast<std::size_t>(table()[s * most + p / block_size]);
          std::copy_n(blocks.data() + ((block * n_kv_head + h) * block_size + p % block_size) * head_size,
                      head_size, result.data() + ((s * n_kv_head + h) * capacity + p) * head_size);
        }
      }
    }
    return result;
  }

  /// All blocks, backwards.
  std::vector<std::int32_t> table() const {
    std::vector<std::int32_t> numbers(sequences.size() * capacity / block_size);
    std::iota(numbers.rbegin(), numbers.rend(), 0);
    return numbers;
  }

  void check() const {
    const naive::Parts want = wanted();
    on_every_device([&](Device& device) {
      const auto size = [](std::size_t n) { return static_cast<std::int64_t>(n); };
      const std::size_t rows = block_size == 0 ? sequences.size() : sequences.size() * capacity / block_size;
      const Shape cache{size(rows), size(n_kv_head), size(block_size == 0 ? capacity : block_size),
                        size(head_size)};
      const Values before(want.keys.size(), kCanary);
      KeysValues keys_values{upload_as(dtype, device, cache, before),
                             upload_as(dtype, device, cache, before)};
      if (block_size > 0) {
        keys_values.blocks =
            upload_ints(device, table()).reshaped(shape_of(sequences.size(), capacity / block_size));
      }
      HeadRule rule;
      if (has_norm) {
        const auto norm = [&](const Values& weight) {
          return Norm{NormKind::kRms, upload(device, {size(weight.size())}, weight), Tensor(), kEpsilon};
        };
        rule.query_norm = norm(query_weight);
        rule.key_norm = norm(key_weight);
        rule.heads_together = heads_together;
      }
      if (rotary > 0) rule.rotations = upload(device, shape_of(n_tokens, rotary), rotations());
      Tensor queries = result_tensor(device, shape_of(n_tokens, n_head * head_size));
      device.split_heads(make_batch(device, sequences), upload(device, shape_of(n_tokens, width), projected),
                         rule, queries, keys_values);
      INFO(to_string(sequences), ", keys and values in ", to_string(dtype));
      CAPTURE(n_head);
      CAPTURE(n_kv_head);
      CAPTURE(head_size);
      CAPTURE(rotary);
      CAPTURE(has_norm);
      const double within = 2e-6;
      CHECK(difference("queries", download(device, queries), want.queries, n_head * head_size, within) == "");
      CHECK(difference("keys", side_by_side(download_any(device, keys_values.keys)), want.keys, head_size,
                       within + 4.0 * rounding_error(dtype)) == "");
      CHECK(difference("values", side_by_side(download_any(device, keys_values.values)), want.values,
                       head_size, 2.0 * rounding_error(dtype)) == "");
    });
  }
};

const std::vector<Sequence> kStarts = {{0, 5}, {37, 1}, {20, 3}, {3, 0}, {2047, 2}};

TEST_CASE("split_heads rotates heads of every size, whole or in part, and leaves the rest unchanged") {
  for (const auto& [head_size, rotary] : {std::pair{2u, 2u},
                                          {6u, 4u},
                                          {16u, 16u},
                                          {15u, 6u},
                                          {64u, 64u},
                                          {64u, 16u},
                                          {65u, 62u},
                                          {80u, 32u},
                                          {96u, 96u},
                                          {128u, 128u}}) {
    for (const bool has_norm : {false, true}) Heads{kStarts, 4, 2, head_size, rotary, has_norm}.check();
  }
}

TEST_CASE("split_heads supports any number of query heads per key head") {
  for (const auto& [n_head, n_kv_head] :
       {std::pair{1u, 1u}, {4u, 2u}, {9u, 3u}, {8u, 2u}, {8u, 1u}, {3u, 3u}}) {
    Heads{kStarts, n_head, n_kv_head, 24, 24}.check();
  }
}

TEST_CASE("split_heads rounds keys and values to the type of the cache, in rows and in blocks") {
  for (const DType dtype : kTypes) {
    for (const std::size_t block_size : {0u, 16u, 32u}) {
      for (const std::size_t head_size : {15u, 64u}) {
        Heads{kStarts, 4, 2, head_size, 14, true, dtype, block_size}.check();
        Heads{{{0, 33}, {15, 2}, {31, 1}}, 3, 1, head_size, 14, false, dtype, block_size}.check();
      }
    }
  }
}

TEST_CASE("split_heads leaves heads unchanged if no rule requires anything") {
  for (const std::size_t head_size : {1u, 7u, 64u}) Heads{kStarts, 6, 2, head_size, 0, false}.check();
}

TEST_CASE("split_heads adds epsilon under the root of a head's norm") {
  Heads{kStarts, 4, 2, 32, 32, true, DType::kFloat32, 0, 0.003f}.check();
  // Heads of zeros: without epsilon they would be NaN.
  Heads{kStarts, 4, 2, 32, 32, true, DType::kFloat32, 0, 0.0f}.check();
}

TEST_CASE("split_heads normalizes all heads of queries together, and all of keys, if the rule says so") {
  for (const auto& [n_head, n_kv_head] : {std::pair{4u, 2u}, {1u, 1u}, {6u, 3u}, {2u, 2u}}) {
    for (const float scale : {1.0f, 0.003f})
      Heads{kStarts, n_head, n_kv_head, 24, 16, true, DType::kFloat32, 0, scale, true}.check();
  }
}

TEST_CASE("split_heads rounds keys once, after norm and rotation") {
  on_every_device([](Device& device) {
    if (!has_one_kernel(device)) return;
    const Heads heads{kStarts, 4, 2, 64, 64};
    for (const DType dtype : kHalves) {
      const auto run = [&](DType stored_as) {
        const Shape cache{5, 2, static_cast<std::int64_t>(heads.capacity), 64};
        const Values before(element_count(cache));
        KeysValues keys_values{upload_as(stored_as, device, cache, before),
                               upload_as(stored_as, device, cache, before)};
        Tensor queries = result_tensor(device, shape_of(heads.n_tokens, 4 * 64));
        const HeadRule rule{{NormKind::kRms, upload(device, {64}, heads.query_weight), Tensor(), kEpsilon},
                            {NormKind::kRms, upload(device, {64}, heads.key_weight), Tensor(), kEpsilon},
                            upload(device, shape_of(heads.n_tokens, 64), heads.rotations())};
        device.split_heads(make_batch(device, heads.sequences),
                           upload(device, shape_of(heads.n_tokens, heads.width), heads.projected), rule,
                           queries, keys_values);
        return download_any(device, keys_values.keys);
      };
      CHECK(same_bits(run(dtype), rounded(run(DType::kFloat32), dtype)));
    }
  });
}

}  // namespace
}  // namespace staircase
