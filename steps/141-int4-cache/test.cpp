#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>

#include "common/decoding/probabilities.h"
#include "rounded_kv_cache.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

using Floats = std::vector<float>;

Floats random_numbers(std::size_t count, float shift = 0.0f) {
  std::mt19937 generator(3);
  Floats numbers(count);
  for (float& number : numbers) number = static_cast<float>(generator() % 20001) / 10000.0f - 1.0f + shift;
  return numbers;
}

Floats keys_of(KvCache& cache) {
  const Tensor keys = cache.layer(0).keys;
  Floats numbers(static_cast<std::size_t>(keys.size()));
  tales().device().copy_to_host(keys, numbers);
  return numbers;
}

/// The keys and values of all layers, each [1, n_kv_head, n_positions, head_size].
std::vector<Tensor> kept_in(KvCache& cache) {
  std::vector<Tensor> kept;
  for (int l = 0; l < tales().config().n_layer; ++l) {
    kept.push_back(cache.layer(l).keys);
    kept.push_back(cache.layer(l).values);
  }
  return kept;
}

/// The mean divergence from a cache in float32 after each of 60 tokens.
double divergence(Model& model, KvCache& cache) {
  StaticKvCache exact(model);
  double sum = 0.0;
  for (int i = 0; i < 60; ++i) {
    const int token = (i * 1237 + 31) % model.config().vocab_size;
    const Floats want = softmax(model.next_logits(std::span(&token, 1), exact));
    sum += kl_divergence(want, softmax(model.next_logits(std::span(&token, 1), cache)));
  }
  return sum / 60;
}

}  // namespace

TEST_CASE("on_levels gives the example of the README") {
  const Floats want{-0.25f, 0.05f, 0.5f, 0.1f};
  const Floats got = on_levels(Floats{-0.25f, 0.03f, 0.5f, 0.11f}, 4, 4, 4);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]));
}

TEST_CASE("a group keeps its least and its largest number, and no number moves by more than half a step") {
  for (const int bits : {2, 3, 4, 5}) {
    for (const std::size_t size : {16u, 32u, 64u}) {
      for (const float shift : {0.0f, 100.0f}) {
        const Floats numbers = random_numbers(10 * 64, shift), got = on_levels(numbers, 64, size, bits);
        REQUIRE(got.size() == numbers.size());
        for (std::size_t i = 0; i < numbers.size(); i += size) {
          const auto own = std::span(numbers).subspan(i, size), found = std::span(got).subspan(i, size);
          const auto [least, largest] = std::ranges::minmax(own);
          const float step = (largest - least) / static_cast<float>((1 << bits) - 1);
          CAPTURE(bits);
          CAPTURE(size);
          CHECK(std::ranges::min(found) == least);
          CHECK(std::ranges::max(found) == doctest::Approx(largest));
          CHECK(std::set<float>(found.begin(), found.end()).size() <= std::size_t{1} << bits);
          for (std::size_t j = 0; j < size; ++j) CHECK(std::abs(found[j] - own[j]) <= step * 0.501f);
        }
      }
    }
  }
}

TEST_CASE("groups end with a head, and equal numbers stay as they are") {
  // Heads of 24 numbers in groups of 16: the second group has 8.
  Floats numbers(48, 0.7f);
  numbers[16] = 5.0f;
  numbers[17] = -5.0f;
  const Floats got = on_levels(numbers, 24, 16, 4);
  for (std::size_t i = 0; i < 16; ++i) CHECK(got[i] == 0.7f);
  for (std::size_t i = 18; i < 24; ++i) CHECK(got[i] == doctest::Approx(-5.0f + 9.0f * 10.0f / 15.0f));
  for (std::size_t i = 24; i < 48; ++i) CHECK(got[i] == 0.7f);
  CHECK(on_levels(Floats{}, 64, 64, 4).empty());
}

TEST_CASE("a cache of 4 bits holds numbers on 16 levels, and one of 8 bits is that of the step before") {
  RoundedKvCache four(tales(), 32, 4), eight(tales(), 32);
  StaticKvCache exact(tales());
  for (KvCache* cache :
       {static_cast<KvCache*>(&four), static_cast<KvCache*>(&eight), static_cast<KvCache*>(&exact)}) {
    for (const int& token : {5, 77, 1200, 9}) tales().next_logits(std::span(&token, 1), *cache);
    cache->append(0, 1);
  }
  const auto first = [](const Floats& numbers) { return Floats(numbers.begin(), numbers.begin() + 4 * 64); };
  const Floats want = first(keys_of(exact));  // of head 0, at four positions
  CHECK(first(keys_of(four)) == on_levels(want, 64, 32, 4));
  CHECK(first(keys_of(eight)) == dequantize(quantize(want, 64, 32)));
}

TEST_CASE("all heads of all layers are rounded, keys and values, up to the new position") {
  RoundedKvCache cache(tales(), 32, 4);
  cache.append(0, 5);
  std::vector<Tensor> kept = kept_in(cache);
  const std::int64_t of_head = kept[0].dim(2) * 64;
  const Floats before = random_numbers(static_cast<std::size_t>(kept[0].size()));
  for (Tensor& tensor : kept) tales().device().copy_from_host(before, tensor);
  cache.append(0, 1);
  for (std::size_t t = 0; t < kept.size(); ++t) {
    CAPTURE(t);
    Floats after(before.size()), wanted = before;
    tales().device().copy_to_host(kept[t], after);
    for (std::int64_t h = 0; h < std::ssize(before); h += of_head) {
      Floats head(before.begin() + h, before.begin() + h + 5 * 64);
      const Floats want = on_levels(head, 64, 32, 4);
      std::ranges::copy(want, wanted.begin() + h);
    }
    CHECK(after == wanted);
  }
}

TEST_CASE("4 bits cost a hundred times as much as 8, and less with smaller groups") {
  if (tests_are_for_gpu()) return;  // four positions at a time over the bus
  Model model = tales_in(DType::kFloat32);
  RoundedKvCache eight(model, 64), four(model, 64, 4), finer(model, 16, 4);
  const double of_eight = divergence(model, eight), of_four = divergence(model, four);
  CHECK(of_four > 50 * of_eight);
  CHECK(of_four < 0.1);
  CHECK(divergence(model, finer) < of_four);
}

TEST_CASE("a number of 4 bits takes half a byte, and each group 4 bytes") {
  const std::size_t numbers = StaticKvCache(tales()).use().bytes / sizeof(float);
  for (const std::size_t size : {16u, 64u}) {
    CHECK(RoundedKvCache(tales(), size, 4).use().bytes == numbers / 2 + numbers / size * 4);
    CHECK(RoundedKvCache(tales(), size).use().bytes == numbers + numbers / size * 4);
  }
}

TEST_CASE("a type that does not fit the heads is left out, with a warning") {
  const TemporaryFolder folder;
  TinyModel().write(folder.path());  // heads of 8 numbers
  Model model = Model::load(folder.path(), make_test_device(1));
  const Captured captured(stderr);
  std::vector<std::string> names;
  for (const TriedCache& tried : caches_of(model)) names.push_back(tried.name);
  CHECK(names[0] == "float32");
  for (const std::string type : {"int8", "int4"}) {
    CHECK(std::ranges::count(names, type) == 0);
    CHECK(contains(captured.text(), fmt::format("warning: {0} is left out: --cache-dtype {0} needs", type)));
  }
}

TEST_CASE("--compare-caches has lines for 8 and 4 bits") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--compare-caches --prompt 'Once upon a time there was a king.'");
  CHECK(run.status == 0);
  for (const std::string bits : {"8", "4"}) {
    for (const std::string size : {"16", "32", "64"})
      CHECK(contains(run.err, bits + " bits by " + size + " "));
  }
}
