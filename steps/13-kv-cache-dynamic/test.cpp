#include <doctest/doctest.h>

#include "generate.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

Generation continued(Gpt2& model, const std::vector<int>& prompt, const GenerateOptions& options) {
  std::mt19937 generator(options.seed);
  return generate(model, prompt, options, generator, [](const Token&) {});
}

/// How many tokens went through the model in each of its passes.
std::vector<std::size_t> passes(const std::vector<int>& prompt, const GenerateOptions& options) {
  std::vector<std::size_t> counts;
  tales().observe([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  continued(tales(), prompt, options);
  tales().observe(nullptr);
  return counts;
}

}  // namespace

TEST_CASE("with a cache greedy decoding is Hugging Face's") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          return behind(prompt.size(), continued(tales(), prompt, {.max_new_tokens = count}).tokens);
        }) == "");
}

TEST_CASE("the prompt goes through the model once, and then each token once") {
  const std::vector<int> prompt{321, 11, 5, 900, 17};
  CHECK(passes(prompt, {.max_new_tokens = 4, .ignore_eos = true}) == std::vector<std::size_t>{5, 1, 1, 1});
  CHECK(passes(prompt, {.max_new_tokens = 4, .ignore_eos = true, .use_cache = false}) ==
        std::vector<std::size_t>{5, 6, 7, 8});
}

TEST_CASE("a sampled text is the same with and without the cache") {
  for (const unsigned seed : {1u, 2u, 3u}) {
    GenerateOptions options{.max_new_tokens = 40, .ignore_eos = true};
    options.sampling = {.do_sample = true, .presence_penalty = 0.5f, .temperature = 0.9f, .top_k = 50};
    options.seed = seed;
    const std::vector<int> with = continued(tales(), {321, 11}, options).tokens;
    options.use_cache = false;
    CHECK(with == continued(tales(), {321, 11}, options).tokens);
  }
}

TEST_CASE("the cache takes what its formula says, and growing costs what concatenations cost") {
  const Gpt2Config& config = tales().config();
  const std::size_t prompt = 7, count = 30;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Gpt2 model = tales_in(dtype);
    const std::size_t position = 2u * config.n_layer * config.n_embd * size_of(dtype);
    // Nothing comes after the last token: it never enters the cache.
    std::size_t allocated = 0, copied = 0;
    for (std::size_t length = prompt; length < prompt + count; ++length) {
      allocated += length * position;
      if (length > prompt) copied += (length - 1) * position;
    }
    const GenerateOptions options{.max_new_tokens = static_cast<int>(count), .ignore_eos = true};
    const CacheUse use = continued(model, std::vector<int>(prompt, 321), options).cache;
    CHECK(use.bytes == (prompt + count - 1) * position);
    CHECK(use.allocated == allocated);
    CHECK(use.copied == copied);
  }
}

TEST_CASE("to go back and on again is as if it had never happened") {
  const std::vector<int> text{321, 11, 5, 900, 17, 44, 45, 46}, other{7, 8, 9};
  DynamicKvCache straight(tales()), detour(tales());
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

TEST_CASE("at the end of the context the cache says so, and without it the window slides on") {
  const std::string context = std::to_string(tales().config().n_positions);
  const std::vector<int> prompt(tales().config().n_positions - 2, 321);
  CHECK(continued(tales(), prompt, {.max_new_tokens = 3, .ignore_eos = true}).tokens.size() ==
        prompt.size() + 3);
  CHECK_THROWS_WITH(
      continued(tales(), prompt, {.max_new_tokens = 4, .ignore_eos = true}),
      ("the cache is full: " + context + " positions are all that the model has; step 15 goes on from there")
          .c_str());
  CHECK(continued(tales(), prompt, {.max_new_tokens = 4, .ignore_eos = true, .use_cache = false})
            .tokens.size() == prompt.size() + 4);
}

TEST_CASE("the program tells the size of its cache, and --no-use-cache is without one") {
  const std::string arguments = "--prompt Once --max-new-tokens 5 --json ";
  const auto cache_bytes = [&](const std::string& more) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments + more);
    REQUIRE(run.status == 0);
    return nlohmann::json::parse(run.out)["stats"]["cache_bytes"].get<std::size_t>();
  };
  CHECK(cache_bytes("") > 0);
  CHECK(cache_bytes("--dtype float16") == cache_bytes("") / 2);
  CHECK(cache_bytes("--no-use-cache") == 0);
}
