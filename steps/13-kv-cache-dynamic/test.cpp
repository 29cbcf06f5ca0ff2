#include <doctest/doctest.h>

#include "dynamic_kv_cache.h"
#include "generate.h"
#include "memory_estimate.h"
#include "tests/error_message.h"
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
  DynamicKvCache cache(model);
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

TEST_CASE("a growing cache keeps every position unchanged") {
  DynamicKvCache cache(tales());
  tales().next_logits(std::vector{321, 11, 5, 900, 17}, cache);
  // For each of the first five positions, what all heads hold in the keys and values of every layer.
  const auto first_five = [&] {
    const std::size_t size = tales().config().head_size;
    std::vector<std::vector<float>> positions(5);
    for (int l = 0; l < tales().config().n_layer; ++l) {
      for (const Tensor& tensor : {cache.layer(l).keys, cache.layer(l).values}) {
        std::vector<float> entries(tensor.size());
        tales().device().copy_to_host(tensor, entries);
        const std::size_t head = tensor.dim(2) * size;
        for (auto entry = entries.begin(); entry != entries.end(); entry += head) {
          for (std::size_t p = 0; p < 5; ++p)
            positions[p].insert(positions[p].end(), entry + p * size, entry + (p + 1) * size);
        }
      }
    }
    return positions;
  };
  const auto before = first_five();
  for (const int more : {1, 3, 100}) {
    cache.append(0, more);
    const auto now = first_five();
    for (std::size_t position = 0; position < 5; ++position) {
      CAPTURE(position);
      const bool kept = now[position] == before[position];
      CHECK(kept);  // so a failure does not print thousands of numbers
    }
  }
  CHECK(cache.length(0) == 109);
}

TEST_CASE("the cache has the size of its formula, and growing costs as much as concatenations") {
  const ModelConfig& config = tales().config();
  const std::size_t prompt = 7, count = 30;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model model = tales_in(dtype);
    const std::size_t position = 2u * config.n_layer * config.n_embd * size_of(dtype);
    // Nothing comes after the last token: it never enters the cache.
    std::size_t allocated = 0, copied = 0;
    for (std::size_t length = prompt; length < prompt + count; ++length) {
      allocated += length * position;
      if (length > prompt) copied += (length - 1) * position;
    }
    const CacheUse use =
        continued(model, std::vector<int>(prompt, 321), exactly(static_cast<int>(count))).cache;
    CHECK(use.bytes == (prompt + count - 1) * position);
    CHECK(use.allocated == allocated);
    CHECK(use.copied == copied);
  }
}

TEST_CASE("going back and on again changes nothing") {
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

TEST_CASE("the formula of the cache is the size of a cache with that many positions") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Model model = tales_in(dtype);
    DynamicKvCache cache(model);
    CHECK(cache.use().bytes == cache_bytes(model.config(), dtype, 0));
    for (const int positions : {1, 2, 63, 64, 512}) {
      cache.append(0, positions - cache.length(0));
      CHECK(cache.use().bytes == cache_bytes(model.config(), dtype, positions));
    }
  }
}

TEST_CASE("with weights in int8 or int4, keys and values are bfloat16") {
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    Model model = tales_in(dtype);
    DynamicKvCache cache(model);
    cache.append(0, 10);
    CHECK(cache.layer(0).keys.dtype() == DType::kBFloat16);
    CHECK(cache.use().bytes == cache_bytes(model.config(), dtype, 10));
    CHECK(cache.use().bytes == cache_bytes(model.config(), DType::kBFloat16, 10));
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

TEST_CASE("a token that has left the window still counts for a penalty") {
  std::vector<int> prompt(static_cast<std::size_t>(tales().config().n_positions), 100);
  const auto next = [&](const SamplingOptions& sampling) {
    TextOptions options = exactly(1);
    options.sampling = sampling;
    return continued(tales(), prompt, options, false).tokens.back();
  };
  const int best = next({});
  prompt.insert(prompt.begin(), best);  // outside the window: the logits stay the same
  REQUIRE(next({}) == best);
  CHECK(next({.repetition_penalty = 1e30f}) != best);
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

TEST_CASE("the estimate names the weights, the activations and a cache for the whole context") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--dtype float16 --max-new-tokens 1");
  REQUIRE(run.status == 0);
  const ModelConfig& config = tales().config();
  CHECK(
      begins_with(run.err, fmt::format("by formula: weights {:.1f} MiB, activations up to {:.1f} MiB, "
                                       "a cache of up to 3.0 MiB for each text\n",
                                       static_cast<double>(weight_bytes(config, DType::kFloat16)) / (1 << 20),
                                       static_cast<double>(activation_bytes(config, 512)) / (1 << 20))));
}

TEST_CASE("the program prints the size of its cache, and --no-use-cache is without one") {
  const std::string arguments = "--prompt Once --max-new-tokens 5 --json ";
  const auto cache_bytes = [&](const std::string& more) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments + more);
    REQUIRE(run.status == 0);
    return run.json()["stats"]["cache_bytes"].get<std::size_t>();
  };
  CHECK(cache_bytes("") > 0);
  CHECK(cache_bytes("--dtype float16") == cache_bytes("") / 2);
  CHECK(cache_bytes("--no-use-cache") == 0);
}
