// Caches in another type than the weights: in 8 and 4 bits, too, whatever holds, moves or shares their
// positions.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/decoding/dynamic_kv_cache.h"
#include "common/decoding/memory_estimate.h"
#include "common/decoding/paged_kv_cache.h"
#include "common/decoding/probabilities.h"
#include "common/decoding/ring_kv_cache.h"
#include "common/decoding/static_kv_cache.h"
#include "common/measure/cache_trial.h"
#include "common/model/model.h"
#include "tests/error_message.h"

namespace staircase {
namespace {

using Floats = std::vector<float>;
using Tokens = std::vector<int>;

const std::filesystem::path kTree(STAIRCASE_SOURCE_TREE);
const std::vector<std::string> kNames{"models/tales-6m",
                                      "models/tales-gpt2-1m",
                                      "models/tales-gqa-1m",
                                      "models/tales-window-1m",
                                      "models/tales-gemma-1m",
                                      "models/tales-moe-1m",
                                      "tests/reference/families/pythia",
                                      "tests/reference/families/qwen3"};

Model load(const std::string& name, DType kept, DType weights = DType::kFloat32) {
  Model model = Model::load(kTree / name, make_cpu_device(2), weights);
  model.use_cache_dtype(kept);
  return model;
}

/// Whether the model has heads of such a size.
bool keeps(const std::string& name, DType kept) {
  return read_config(kTree / name).head_size % head_multiple(kept) == 0;
}

/// The types whose numbers share scales.
constexpr DType kFewBits[] = {DType::kInt8, DType::kInt4};

Tokens some_tokens(int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 1237 + 31) % 400);
  return tokens;
}

/// The logits after the last token if row 0 gets the tokens in pieces.
Floats fed(Model& model, const Tokens& tokens, std::size_t piece, KvCache& cache) {
  std::span<const float> logits;
  for (std::size_t first = 0; first < tokens.size(); first += piece) {
    logits =
        model.next_logits(std::span(tokens).subspan(first, std::min(piece, tokens.size() - first)), cache);
  }
  return {logits.begin(), logits.end()};
}

Floats next_of_row(Model& model, int row, int token, KvCache& cache) {
  const Tokens one{token};
  std::vector<std::span<const int>> sequences(static_cast<std::size_t>(row) + 1);
  sequences.back() = one;
  const std::span<const float> all = model.next_logits(sequences, cache);
  const std::span<const float> own = all.last(all.size() / sequences.size());
  return {own.begin(), own.end()};
}

double divergence(std::span<const float> exact, std::span<const float> logits) {
  return kl_divergence(softmax(exact), softmax(logits));
}

TEST_CASE("in every type each cache gives the same logits to the bit, and in parts those of the whole") {
  for (const std::string& name : kNames) {
    for (const DType kept : cache_dtypes()) {
      if (!keeps(name, kept)) continue;
      Model model = load(name, kept);
      const Tokens tokens = some_tokens(60);
      StaticKvCache whole(model);
      const Floats want = fed(model, tokens, 60, whole);
      CAPTURE(name);
      CAPTURE(to_string(kept));
      for (const std::size_t piece : {1u, 7u, 40u}) {
        StaticKvCache cache(model);
        const Floats parts = fed(model, tokens, piece, cache);
        if (kept == DType::kBFloat16) {  // many queries are a product of matrices, where there are AMX's
          CHECK(divergence(want, parts) < 1e-5);
        } else {
          CHECK(parts == want);
        }
        DynamicKvCache dynamic(model);
        CHECK(fed(model, tokens, piece, dynamic) == parts);
        PagedKvCache paged(model, 1, 8);
        REQUIRE(paged.reserve(0, 60));
        CHECK(fed(model, tokens, piece, paged) == parts);
        RingKvCache ring(model);
        CHECK(fed(model, tokens, piece, ring) == parts);
      }
    }
  }
}

TEST_CASE("the logits with a cache of fewer bits are near those of float32, and not the same") {
  for (const std::string& name : kNames) {
    if (!name.starts_with("models/")) continue;  // random weights suffer more than a trained model's
    Model exact = load(name, DType::kFloat32);
    const Tokens tokens = some_tokens(100);
    StaticKvCache floats(exact);
    const Floats want = fed(exact, tokens, 1, floats);
    for (const DType kept : {DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      if (!keeps(name, kept)) continue;
      Model model = load(name, kept);
      StaticKvCache cache(model);
      CAPTURE(name);
      CAPTURE(to_string(kept));
      const Floats got = fed(model, tokens, 1, cache);
      CHECK(got != want);
      CHECK(divergence(want, got) < (kept == DType::kInt4 ? 0.05 : 0.005));
    }
  }
}

TEST_CASE("a cache has the bytes of its type, and 4 more for each head of 8 bits or group of 4 bits") {
  Model model = Model::load(kTree / "models/tales-gqa-1m", make_cpu_device(1));
  const auto numbers =
      static_cast<std::size_t>(2 * model.config().n_layer * model.config().n_positions * 2 * 32);
  const std::vector<std::size_t> want{4 * numbers, 2 * numbers, 2 * numbers, numbers + numbers / 32 * 4,
                                      numbers / 2 + numbers / 16 * 4};
  for (std::size_t i = 0; i < want.size(); ++i) {
    model.use_cache_dtype(cache_dtypes()[i]);
    CHECK(model.kv_dtype() == cache_dtypes()[i]);
    CHECK(StaticKvCache(model).use().bytes == want[i]);
    CHECK(cache_bytes(model.config(), DType::kBFloat16, model.config().n_positions) == want[i]);
  }
}

TEST_CASE("in few bits a row that is copied or slides takes its scales along") {
  for (const DType kept : kFewBits) {
    // A position counts on in a model with rotations, so a row that slides is one with a window.
    Model model = load("models/tales-gqa-1m", kept);
    const Tokens tokens = some_tokens(50);
    StaticKvCache cache(model, 2), other(model, 2);
    fed(model, tokens, 50, cache);
    fed(model, tokens, 50, other);
    cache.copy_row(0, 1);
    const Floats want = next_of_row(model, 0, 7, other);
    CHECK(next_of_row(model, 1, 7, cache) == want);
    cache.slide(0, 3);
    other.truncate(0, 50);
    other.slide(0, 2);
    other.slide(0, 1);
    CHECK(next_of_row(model, 0, 9, cache) == next_of_row(model, 0, 9, other));
  }
}

TEST_CASE("in few bits rows share the blocks of a prefix, swap, and are computed again as they were") {
  for (const DType kept : kFewBits) {
    Model model = load("models/tales-gqa-1m", kept);
    const Tokens tokens = some_tokens(50);
    StaticKvCache alone(model);
    const Floats want = fed(model, tokens, 50, alone);
    PagedKvCache cache(model, 2, 8);
    REQUIRE(cache.reserve(0, 50));
    CHECK(fed(model, tokens, 50, cache) == want);
    cache.remember(0, tokens);
    cache.swap_rows(0, 1);
    cache.share(0, tokens);
    CHECK(cache.length(0) == 48);
    REQUIRE(cache.reserve(0, 50));
    CHECK(fed(model, {tokens[48], tokens[49]}, 2, cache) == want);
    // A row that has given its blocks back begins again.
    cache.truncate(0, 0);
    cache.truncate(1, 0);
    REQUIRE(cache.reserve(0, 50));
    CHECK(fed(model, tokens, 5, cache) == want);
  }
}

TEST_CASE("a watched head attends to the keys that a cache of few bits stands for") {
  const auto seen_by = [](DType kept) {
    Model model = load("models/tales-gqa-1m", kept);
    AttentionWeights seen;
    model.after_pass([&](const ForwardPass& pass) { seen = pass.attention[0]; }, AttentionHead{1, 3});
    StaticKvCache cache(model);
    fed(model, some_tokens(40), 39, cache);
    return seen;
  };
  const AttentionWeights want = seen_by(DType::kFloat32);
  for (const DType kept : kFewBits) {
    const AttentionWeights got = seen_by(kept);
    CHECK(got.tokens == want.tokens);
    double off = 0.0;
    for (std::size_t p = 0; p < 40; ++p) {
      off = std::max(off, static_cast<double>(std::abs(got.rows[0][p] - want.rows[0][p])));
    }
    CAPTURE(to_string(kept));
    CHECK(off > 0.0);
    CHECK(off < (kept == DType::kInt4 ? 0.1 : 0.01));
  }
}

TEST_CASE("a draft and a copy in another type have the type of their target's cache") {
  Model model = load("models/tales-6m", DType::kInt8, DType::kBFloat16);
  CHECK(model.load_beside(kTree / "models/tales-1m").kv_dtype() == DType::kInt8);
  CHECK(model.load_as(DType::kFloat32).kv_dtype() == DType::kInt8);
  Model ordinary = Model::load(kTree / "models/tales-1m", make_cpu_device(1), DType::kInt8);
  CHECK(ordinary.kv_dtype() == DType::kBFloat16);
  CHECK(ordinary.load_as(DType::kFloat32).kv_dtype() == DType::kFloat32);
}

TEST_CASE("heads that do not fill whole vectors are refused in few bits, and keep the type that they had") {
  Model model = Model::load(kTree / "tests/reference/families/smollm2", make_cpu_device(1));
  CHECK(error_message([&] { model.use_cache_dtype(DType::kInt8); }) ==
        "--cache-dtype int8 needs a head size that is a multiple of 16, but smollm2 has heads of 8");
  CHECK(error_message([&] { model.use_cache_dtype(DType::kInt4); }) ==
        "--cache-dtype int4 needs a head size that is a multiple of 32, but smollm2 has heads of 8");
  CHECK(model.kv_dtype() == DType::kFloat32);
  model.use_cache_dtype(DType::kBFloat16);
  CHECK(model.kv_dtype() == DType::kBFloat16);
}

/// A cache that takes a millisecond to grow.
class SlowCache : public StaticKvCache {
 public:
  using StaticKvCache::StaticKvCache;

  void append(int row, int count) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    StaticKvCache::append(row, count);
  }
};

TEST_CASE(
    "caches are compared over all windows of a text: what a token loses, their memory and their speed") {
  Model model = load("models/tales-gqa-1m", DType::kFloat32);
  model.limit_context(64);
  const Tokens text = some_tokens(150);  // windows of 64, 64 and 22 tokens
  std::vector<TriedCache> caches;
  caches.push_back({"exact", std::make_unique<StaticKvCache>(model)});
  model.use_cache_dtype(DType::kInt8);
  caches.push_back({"int8", std::make_unique<StaticKvCache>(model), false});
  caches.push_back({"slow", std::make_unique<SlowCache>(model)});
  double sum = 0.0;
  for (std::size_t first = 0; first < text.size(); first += 64) {
    StaticKvCache few_bits(model);
    model.use_cache_dtype(DType::kFloat32);
    StaticKvCache exact(model);
    model.use_cache_dtype(DType::kInt8);
    for (std::size_t i = first; i < std::min<std::size_t>(first + 64, text.size()); ++i) {
      const std::span<const int> one = std::span(text).subspan(i, 1);
      const Floats p = softmax(model.next_logits(one, exact)), q = softmax(model.next_logits(one, few_bits));
      sum += kl_divergence(p, q);
    }
  }
  const double exact_mib = static_cast<double>(caches[0].cache->use().bytes) / (1 << 20),
               int8_mib = static_cast<double>(caches[1].cache->use().bytes) / (1 << 20);
  std::istringstream table(compare_caches(model, caches, text).text(9));
  std::string line, name, rest;
  std::getline(table, line);
  std::istringstream columns(line);
  for (const std::string expected : {"cache", "MiB", "KL", "mnats", "tokens/s", "speed-up"}) {
    columns >> name;
    CHECK(name == expected);
  }
  double mib = 0.0, divergence = 0.0, rate = 0.0, speedup = 0.0;
  CHECK((table >> name >> mib >> divergence >> rate >> speedup));
  CHECK(name == "exact");
  CHECK(mib == doctest::Approx(exact_mib));
  CHECK(divergence == 0.0);
  CHECK(rate > 0.0);
  CHECK(speedup == 1.0);
  CHECK((table >> name >> mib >> divergence));
  std::getline(table, rest);
  CHECK(name == "int8");
  CHECK(mib == doctest::Approx(int8_mib));
  CHECK(divergence == doctest::Approx(1000.0 * sum / 150.0).epsilon(1e-4).scale(0.0));
  CHECK(rest.find_first_of("0123456789") == std::string::npos);  // its speed means nothing
  CHECK((table >> name >> mib >> divergence >> rate >> speedup));
  CHECK(name == "slow");
  CHECK(rate < 1000.0);
  CHECK(speedup < 1.0);
  CHECK(error_message([&] { compare_caches(model, caches, {}); }) ==
        "comparing caches needs a text of at least one token");
}

}  // namespace
}  // namespace staircase
