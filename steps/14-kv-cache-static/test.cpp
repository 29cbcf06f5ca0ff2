#include <doctest/doctest.h>

#include "generate.h"
#include "memory_estimate.h"
#include "static_kv_cache.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// A text and the memory that its cache used.
struct Continued {
  std::vector<int> tokens;
  CacheUse cache;
};

Continued continued(Model& model, const std::vector<int>& prompt, const TextOptions& options,
                    bool use_cache = true) {
  StaticKvCache cache(model);
  std::mt19937 generator(options.sampling.seed);
  const Generation text =
      generate(model, prompt, options, use_cache ? cache : no_cache(), generator, [](const Token&) {});
  return {text.tokens, cache.use()};
}

/// Options for exactly this many new tokens, even after an end-of-text token.
TextOptions exactly(int count) {
  return {.stopping = {.max_new_tokens = count, .ignore_eos = true}};
}

/// How many tokens went through the model in each of its passes.
std::vector<std::size_t> passes(const std::vector<int>& prompt, int count, bool use_cache) {
  std::vector<std::size_t> counts;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  continued(tales(), prompt, exactly(count), use_cache);
  return counts;
}

}  // namespace

TEST_CASE("the cache is allocated once, for the whole context, and nothing is copied") {
  const ModelConfig& config = tales().config();
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model model = tales_in(dtype);
    const std::size_t bytes = 2u * config.n_layer * config.n_positions * config.n_embd * size_of(dtype);
    CHECK(bytes == cache_bytes(config, dtype, config.n_positions));  // the previous step's estimate
    for (const int count : {1, 30}) {
      const CacheUse use = continued(model, {321, 11}, exactly(count)).cache;
      CHECK(use.bytes == bytes);
      CHECK(use.allocated == bytes);
      CHECK(use.copied == 0);
    }
  }
}

TEST_CASE("going back and on again changes nothing") {
  const std::vector<int> text{321, 11, 5, 900, 17, 44, 45, 46}, other{7, 8, 9};
  StaticKvCache straight(tales()), detour(tales());
  tales().next_logits(std::span(text).first(5), straight);
  tales().next_logits(std::span(text).first(5), detour);
  tales().next_logits(other, detour);
  detour.truncate(0, 5);
  for (std::size_t i = 5; i < text.size(); ++i) {
    const std::span<const int> token(&text[i], 1);
    const std::span<const float> want = tales().next_logits(token, straight);
    const std::vector<float> kept(want.begin(), want.end());
    CHECK(std::ranges::equal(tales().next_logits(token, detour), kept));
  }
}

TEST_CASE("with a cache greedy decoding is Hugging Face's") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          return tokens_after(prompt.size(),
                              continued(tales(), prompt, {.stopping = {.max_new_tokens = count}}).tokens);
        }) == "");
}

TEST_CASE("the prompt goes through the model once, and then each token once") {
  const std::vector<int> prompt{321, 11, 5, 900, 17};
  CHECK(passes(prompt, 4, true) == std::vector<std::size_t>{5, 1, 1, 1});
  CHECK(passes(prompt, 4, false) == std::vector<std::size_t>{5, 6, 7, 8});
}

TEST_CASE("a sampled text is the same with and without the cache") {
  for (const unsigned seed : {1u, 2u, 3u}) {
    TextOptions options = exactly(40);
    options.sampling = {
        .do_sample = true, .seed = seed, .presence_penalty = 0.5f, .temperature = 0.9f, .top_k = 50};
    const std::vector<int> with = continued(tales(), {321, 11}, options).tokens;
    CHECK(with == continued(tales(), {321, 11}, options, false).tokens);
  }
}

TEST_CASE("at the end of the context the cache is full, and without it the window slides on") {
  const std::string context = std::to_string(tales().config().n_positions);
  const std::vector<int> prompt(tales().config().n_positions - 2, 321);
  CHECK(continued(tales(), prompt, exactly(3)).tokens.size() == prompt.size() + 3);
  CHECK_THROWS_WITH(continued(tales(), prompt, exactly(4)),
                    ("the cache is full: the model has " + context +
                     " positions; step 15-kv-cache-fix continues from there")
                        .c_str());
  CHECK(continued(tales(), prompt, exactly(4), false).tokens.size() == prompt.size() + 4);
}

TEST_CASE("the program prints the size of its cache, whatever it holds, and --no-use-cache is without one") {
  const auto cache_bytes = [](const std::string& arguments) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens " + arguments);
    REQUIRE(run.status == 0);
    return run.json()["stats"]["cache_bytes"].get<std::size_t>();
  };
  CHECK(cache_bytes("1") > 0);
  CHECK(cache_bytes("1") == cache_bytes("9"));
  CHECK(cache_bytes("9 --no-use-cache") == 0);
}
