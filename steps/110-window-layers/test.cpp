#include <doctest/doctest.h>

#include <random>

#include "common/decoding/window_estimate.h"
#include "common/model/model_folder.h"
#include "dynamic_kv_cache.h"
#include "generate.h"
#include "ring_kv_cache.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/same_logits.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// Three of its four layers see 64 positions of 512.
Model window_model(DType dtype = DType::kFloat32) {
  return Model::load(find_model("tales-window-1m"), make_test_device(2), dtype);
}

/// Random tokens, unlike those of any text.
std::vector<int> random_tokens(std::mt19937& generator, std::size_t count) {
  std::vector<int> tokens(count);
  for (int& token : tokens) token = static_cast<int>(generator() % 4000);
  return tokens;
}

/// The logits after each part of `tokens`, fed in random parts of up to `most` tokens.
std::vector<float> logits_in_parts(Model& model, KvCache& cache, std::span<const int> tokens,
                                   std::size_t most, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> all;
  while (!tokens.empty()) {
    const std::size_t size = std::min<std::size_t>(1 + generator() % most, tokens.size());
    const std::span<const float> logits = model.next_logits(tokens.first(size), cache);
    all.insert(all.end(), logits.begin(), logits.end());
    tokens = tokens.subspan(size);
  }
  return all;
}

std::vector<int> continued(Model& model, const std::vector<int>& prompt, const TextOptions& options,
                           KvCache& cache) {
  std::mt19937 generator(options.sampling.seed);
  return generate(model, prompt, options, cache, generator, [](const Token&) {}).tokens;
}

/// Options for exactly this many new tokens, even after an end-of-text token.
TextOptions exactly(int count) {
  return {.stopping = {.max_new_tokens = count, .ignore_eos = true}};
}

}  // namespace

TEST_CASE("logits equal those with a whole cache, bit for bit, in every dtype and in parts of any size") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model model = window_model(dtype);
    std::mt19937 generator(3);
    for (const std::size_t most : {1u, 20u, 64u, 65u, 400u}) {
      CAPTURE(most);
      const std::vector<int> tokens = random_tokens(generator, most == 1 ? 150 : 500);
      RingKvCache ring(model);
      DynamicKvCache whole(model);
      CHECK(other_logits(logits_in_parts(model, ring, tokens, most, 5),
                         logits_in_parts(model, whole, tokens, most, 5)) == "");
      CHECK(ring.length(0) == std::ssize(tokens));
    }
  }
}

TEST_CASE("texts after random prompts equal those with a whole cache and those without a cache") {
  Model model = window_model();
  std::mt19937 generator(7);
  for (int i = 0; i < 12; ++i) {
    CAPTURE(i);
    const std::vector<int> prompt = random_tokens(generator, 1 + generator() % 400);
    TextOptions options = exactly(static_cast<int>(std::min<std::size_t>(90, 513 - prompt.size())));
    options.sampling = {.do_sample = i % 2 == 1, .seed = static_cast<unsigned>(i), .top_k = 50};
    RingKvCache ring(model);
    DynamicKvCache whole(model);
    const std::vector<int> text = continued(model, prompt, options, ring);
    CHECK(text == continued(model, prompt, options, whole));
    if (i < 2) CHECK(text == continued(model, prompt, options, no_cache()));
  }
}

TEST_CASE("greedy texts are those of transformers, in each family with windows") {
  const auto check = [](Model model, const nlohmann::json& cases) {
    for (const nlohmann::json& one : cases) {
      RingKvCache cache(model);
      const std::vector<int> prompt = one.at("ids");
      const int count = static_cast<int>(one.at("greedy").size());
      const std::vector<int> text = continued(model, prompt, exactly(count), cache);
      CHECK(difference_from_greedy(one, tokens_after(prompt.size(), text)) == "");
    }
  };
  check(window_model(), reference("tales-window-1m.json")["cases"]);
  for (const std::string family : {"qwen2-window", "mistral-window", "gemma3"}) {
    CAPTURE(family);
    check(reference_model(family), reference_cases(family));
  }
}

TEST_CASE("a layer with a window has room for it and for the new tokens, and any other for the context") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Model model = window_model(dtype);
    const std::size_t position = 2u * model.config().key_width() * size_of(dtype);  // in one layer
    const std::size_t ring = 64 + 63 + 1;                                           // in whole blocks
    const std::size_t table = 32 * sizeof(std::int32_t);
    CHECK(RingKvCache(model).use().bytes == (3 * ring + 512) * position + 3 * table);
    CHECK(RingKvCache(model, 5).use().bytes == 5 * ((3 * ring + 512) * position + 3 * table));
    CHECK(RingKvCache(model, 1, 8).use().bytes == (3 * 80 + 512) * position + 3 * table);  // 64 + 7 + 9
    CHECK(RingKvCache(model, 1, 1).use().bytes == (3 * 64 + 512) * position + 3 * table);
    RingKvCache used(model);
    const CacheUse before = used.use();
    continued(model, {321, 11}, exactly(300), used);
    CHECK(used.use().bytes == before.bytes);
    CHECK(used.use().allocated == before.bytes);
    CHECK(used.use().copied == 0);
  }
}

TEST_CASE("without windows, and where a ring would be no smaller, the cache is a whole one") {
  CHECK(RingKvCache(tales()).use().bytes == cache_bytes(tales().config(), DType::kFloat32, 512));
  CHECK(RingKvCache(tales()).most_at_once() > 512);
  for (const int context : {40, 64, 127, 128}) {
    CAPTURE(context);
    Model model = window_model();
    model.limit_context(context);
    CHECK(RingKvCache(model).use().bytes == cache_bytes(model.config(), DType::kFloat32, context));
  }
  Model model = window_model();
  model.limit_context(200);
  CHECK(RingKvCache(model).use().bytes < cache_bytes(model.config(), DType::kFloat32, 150));
}

TEST_CASE("the estimate counts rings where the cache has them") {
  for (const int context : {512, 256, 128, 100, 64}) {
    CAPTURE(context);
    Model model = window_model();
    model.limit_context(context);
    RingKvCache cache(model);
    std::size_t bytes = 0;
    for (int l = 0; l < model.config().n_layer; ++l)
      bytes += cache.layer(l).keys.bytes() + cache.layer(l).values.bytes();
    CHECK(ring_bytes(model.config(), DType::kFloat32, RingKvCache::kMostAtOnce, RingKvCache::kBlock) ==
          bytes);
  }
}

TEST_CASE("the prompt goes through the model in passes of at most 64 tokens") {
  Model model = window_model();
  std::vector<std::size_t> counts;
  model.on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / 128);
  });
  RingKvCache cache(model);
  std::mt19937 generator(1);
  continued(model, random_tokens(generator, 200), exactly(3), cache);
  CHECK(counts == std::vector<std::size_t>{64, 64, 8, 64, 1, 1});  // the prompt's last pass has 64
}

TEST_CASE("going back by up to 64 tokens keeps the row, and further back it is computed again") {
  Model model = window_model();
  std::mt19937 generator(2);
  RingKvCache ring(model);
  std::vector<int> text;
  int kept = 0, cleared = 0;
  for (int i = 0; i < 40; ++i) {
    if (text.size() > 300) text.resize(generator() % 200);
    if (i % 3 == 2) text.resize(text.size() - std::min<std::size_t>(text.size(), generator() % 120));
    ring.truncate(0, static_cast<int>(text.size()));
    CHECK((ring.length(0) == std::ssize(text) || ring.length(0) == 0));
    if (!text.empty()) ++(ring.length(0) > 0 ? kept : cleared);
    const std::vector<int> next = random_tokens(generator, 1 + generator() % 60);
    text.insert(text.end(), next.begin(), next.end());
    const std::span<const float> logits = model.next_logits(std::span(text).subspan(ring.length(0)), ring);
    const std::vector<float> got(logits.begin(), logits.end());
    DynamicKvCache whole(model);
    CHECK(other_logits(got, model.next_logits(text, whole)) == "");
  }
  CHECK(kept > 20);
  CHECK(cleared > 1);
  // Tests the edge, and a short text of which nothing was overwritten.
  const auto left = [&](int length, int back) {
    RingKvCache cache(model);
    cache.append(0, length);
    cache.truncate(0, length - back);
    return cache.length(0);
  };
  CHECK(left(300, 64) == 236);
  CHECK(left(300, 65) == 0);
  CHECK(left(128, 100) == 28);
  CHECK(left(129, 65) == 0);
  RingKvCache twice(model);  // overwritten positions stay overwritten
  twice.append(0, 300);
  twice.truncate(0, 260);
  twice.append(0, 10);
  twice.truncate(0, 230);
  CHECK(twice.length(0) == 0);
  twice.append(0, 100);  // but a cleared row starts afresh
  twice.truncate(0, 30);
  CHECK(twice.length(0) == 30);
  RingKvCache shorter(model);  // the text is shorter than the ring, which had wrapped around
  shorter.append(0, 150);
  shorter.truncate(0, 100);
  shorter.truncate(0, 40);
  CHECK(shorter.length(0) == 0);
  RingKvCache again(model);  // 160 tokens, of which it held at most 100
  again.append(0, 100);
  again.truncate(0, 40);
  again.append(0, 60);
  again.truncate(0, 20);
  CHECK(again.length(0) == 20);
  RingKvCache small_passes(model, 1, 8);
  small_passes.append(0, 300);
  small_passes.truncate(0, 292);
  CHECK(small_passes.length(0) == 292);
  small_passes.truncate(0, 291);
  CHECK(small_passes.length(0) == 0);
}

TEST_CASE("rows of a batch keep their own keys, whatever their lengths") {
  Model model = window_model();
  std::mt19937 generator(4);
  RingKvCache ring(model, 3);
  std::vector<std::vector<int>> texts(3);
  for (int i = 0; i < 6; ++i) {
    std::vector<std::vector<int>> next;
    for (std::vector<int>& text : texts) {
      next.push_back(random_tokens(generator, 1 + generator() % 80));
      text.insert(text.end(), next.back().begin(), next.back().end());
    }
    const std::vector<std::span<const int>> fed(next.begin(), next.end());
    const std::span<const float> logits = model.next_logits(fed, ring);
    const std::vector<float> got(logits.begin(), logits.end());
    for (std::size_t row = 0; row < texts.size(); ++row) {
      CAPTURE(row);
      CHECK(ring.length(static_cast<int>(row)) == std::ssize(texts[row]));
      DynamicKvCache own(model);
      const std::span<const float> want = model.next_logits(texts[row], own);
      CHECK(other_logits(std::span(got).subspan(row * want.size(), want.size()), want) == "");
    }
  }
}

TEST_CASE(
    "logits after more tokens than the cache takes at once are refused, and the cache stays as it was") {
  Model model = window_model();
  RingKvCache cache(model);
  std::mt19937 generator(6);
  const std::vector<int> tokens = random_tokens(generator, 70);
  CHECK(error_message([&] { model.last_logits(tokens, 65, cache); }) ==
        "logits after the last 65 tokens were requested, but this cache takes 64 tokens at once");
  CHECK(cache.length(0) == 0);
  CHECK(model.last_logits(tokens, 64, cache).size() == 64u * 4096);
  CHECK(cache.length(0) == 70);
}

TEST_CASE("the program prints a smaller cache for a model with windows, and the same text as without one") {
  const std::string arguments =
      "--model tales-window-1m --prompt 'A fox' --ignore-eos --max-new-tokens 150 --json ";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  REQUIRE(run.status == 0);
  CHECK(run.json()["stats"]["cache_bytes"] == (3 * 128 + 512) * 512 + 3 * 32 * 4);
  CHECK(contains(run.err, "a cache of up to 0.4 MiB for each text"));
  const ProgramRun without = run_program(STAIRCASE_STEP_PROGRAM, arguments + "--no-use-cache");
  CHECK(run.json()["sequences"] == without.json()["sequences"]);
  CHECK(without.json()["stats"]["cache_bytes"] == 0);
}
