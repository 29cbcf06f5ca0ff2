#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

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

Floats random_numbers(std::size_t count) {
  std::mt19937 generator(3);
  Floats numbers(count);
  for (float& number : numbers) number = static_cast<float>(generator() % 20001) / 10000.0f - 1.0f;
  return numbers;
}

double dot(const Floats& a, const Floats& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
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

/// The root mean square error of rounding to 4 bits.
double error(Floats head, bool rotated) {
  const Floats before = head;
  if (rotated) rotate(head);
  Floats after = on_levels(head, head.size(), head.size(), 4);
  if (rotated) rotate(after);
  double sum = 0.0;
  for (std::size_t i = 0; i < head.size(); ++i) sum += std::pow(after[i] - before[i], 2.0);
  return std::sqrt(sum / static_cast<double>(head.size()));
}

}  // namespace

TEST_CASE("rotate multiplies by the Hadamard matrix: the sign of an entry is the parity of i and j") {
  for (const std::size_t n : {1u, 2u, 4u, 8u, 64u, 128u}) {
    const Floats x = random_numbers(n);
    Floats got = x;
    rotate(got);
    for (std::size_t i = 0; i < n; ++i) {
      double want = 0.0;
      for (std::size_t j = 0; j < n; ++j) want += (std::popcount(i & j) % 2 == 0 ? 1.0 : -1.0) * x[j];
      CAPTURE(n);
      CAPTURE(i);
      CHECK(got[i] == doctest::Approx(want / std::sqrt(static_cast<double>(n))).epsilon(1e-4));
    }
  }
}

TEST_CASE("two rotations are none, and a rotation changes no score") {
  const Floats q = random_numbers(64);
  Floats k = random_numbers(128);
  k.erase(k.begin(), k.begin() + 64);
  Floats turned_q = q, turned_k = k;
  rotate(turned_q);
  rotate(turned_k);
  CHECK(dot(turned_q, turned_k) == doctest::Approx(dot(q, k)).epsilon(1e-4));
  CHECK(dot(turned_k, turned_k) == doctest::Approx(dot(k, k)).epsilon(1e-4));
  rotate(turned_k);
  for (std::size_t i = 0; i < 64; ++i) CHECK(turned_k[i] == doctest::Approx(k[i]).epsilon(1e-4));
}

TEST_CASE("rotate_heads rotates each head alone") {
  Floats heads = random_numbers(3 * 16), want = heads;
  rotate_heads(heads, 16);
  for (std::size_t head = 0; head < 3; ++head) rotate(std::span(want).subspan(16 * head, 16));
  CHECK(heads == want);
}

TEST_CASE("a number that sticks out costs a rotated head much less, and an ordinary head is as before") {
  Floats head = random_numbers(64);
  CHECK(error(head, true) < 1.6 * error(head, false));
  CHECK(error(head, true) > 0.6 * error(head, false));
  head[7] = 30.0f;
  CHECK(error(head, true) < 0.6 * error(head, false));
}

TEST_CASE("a rotated cache holds what rotating, rounding and rotating back makes of its heads") {
  RoundedKvCache rotated(tales(), 32, 4, true), plain(tales(), 32, 4);
  StaticKvCache exact(tales());
  const std::initializer_list<KvCache*> caches{&rotated, &plain, &exact};
  for (KvCache* cache : caches) {
    for (const int& token : {5, 77, 1200, 9}) tales().next_logits(std::span(&token, 1), *cache);
    cache->append(0, 1);
  }
  const auto values_of = [](KvCache& cache) {  // of head 0 in the first layer, at four positions
    const Tensor values = cache.layer(0).values;
    Floats numbers(static_cast<std::size_t>(values.size()));
    tales().device().copy_to_host(values, numbers);
    numbers.resize(4 * 64);
    return numbers;
  };
  Floats want = values_of(exact);
  rotate_heads(want, 64);
  want = on_levels(want, 64, 32, 4);
  rotate_heads(want, 64);
  CHECK(values_of(rotated) == want);
  CHECK(values_of(plain) == on_levels(values_of(exact), 64, 32, 4));
  CHECK(rotated.use().bytes == plain.use().bytes);
}

TEST_CASE("all heads of all layers are rotated and rounded, keys and values, up to the new position") {
  RoundedKvCache cache(tales(), 32, 4, true);
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
      rotate_heads(head, 64);
      Floats want = on_levels(head, 64, 32, 4);
      rotate_heads(want, 64);
      std::ranges::copy(want, wanted.begin() + h);
    }
    CHECK(after == wanted);
  }
}

TEST_CASE("caches_of has rotated caches of 4 bits at its end") {
  const std::vector<TriedCache> caches = caches_of(tales());
  REQUIRE(caches.size() > 9);
  CHECK(caches[caches.size() - 3].name == "4 rotated by 16");
  CHECK(caches.back().name == "4 rotated by 64");
  CHECK(caches.back().cache->use().bytes == caches[caches.size() - 4].cache->use().bytes);
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

TEST_CASE("--compare-caches has lines for rotated caches") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--compare-caches --prompt 'Once upon a time there was a king.'");
  CHECK(run.status == 0);
  for (const std::string size : {"16", "32", "64"}) CHECK(contains(run.err, "4 rotated by " + size + " "));
}
