#include <doctest/doctest.h>

#include <random>

#include "generate.h"
#include "tests/processors.h"

using namespace staircase;

/// The ids that top-k keeps.
std::vector<int> kept(std::vector<float> logits, int k) {
  keep_top_k(logits, k);
  std::vector<int> ids = ranking(logits);
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST_CASE("the k largest logits are kept unchanged, the others masked") {
  std::vector<float> logits{1.0f, 5.0f, -2.0f, 4.0f, 3.0f};
  keep_top_k(logits, 2);
  CHECK(logits == std::vector{kMasked, 5.0f, kMasked, 4.0f, kMasked});
}

TEST_CASE("all ties with the k-th stay") {
  CHECK(kept({1.0f, 3.0f, 2.0f, 3.0f, 2.0f, 2.0f}, 1) == std::vector{1, 3});
  CHECK(kept({1.0f, 3.0f, 2.0f, 3.0f, 2.0f, 2.0f}, 2) == std::vector{1, 3});
  CHECK(kept({1.0f, 3.0f, 2.0f, 3.0f, 2.0f, 2.0f}, 3) == std::vector{1, 2, 3, 4, 5});
  CHECK(kept(std::vector<float>(100, 0.5f), 1).size() == 100);
}

TEST_CASE("k of the vocabulary's size or more, or below 1, keeps everything") {
  const std::vector<float> raw = raw_logits("normal");
  for (const int k : {4096, 4097, 2'147'483'647, 0, -1}) {
    std::vector<float> logits = raw;
    keep_top_k(logits, k);
    CHECK(logits == raw);
  }
  CHECK(kept(raw, 4095).size() == 4095);
}

TEST_CASE("k = 1 leaves the most likely token, however the dice fall") {
  const std::vector<float> raw = raw_logits("normal");
  CHECK(kept(raw, 1) == std::vector{argmax(raw)});
  const auto text = [](const SamplingOptions& sampling) {
    std::mt19937 generator(3);
    const TextOptions options{.stopping = {.max_new_tokens = 16}, .sampling = sampling};
    return generate(tales(), {100}, options, generator, [](const Token&) {}).tokens;
  };
  CHECK(text({.do_sample = true, .top_k = 1}) == text({}));
}

TEST_CASE("k tokens stay of any logits without ties, and no dropped one is larger") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> raw(50'257);
  for (float& logit : raw) logit = normal(generator);
  std::vector<float> sorted = raw;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (const int k : {1, 2, 49, 50, 51, 1000, 50'000, 50'256}) {
    std::vector<float> logits = raw;
    keep_top_k(logits, k);
    bool right = true;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      right = right && logits[i] == (raw[i] >= sorted[k - 1] ? raw[i] : kMasked);
    }
    CHECK(right);
  }
}

TEST_CASE("masked tokens stay masked") {
  CHECK(kept({kMasked, 1.0f, kMasked, 2.0f}, 3) == std::vector{1, 3});
  CHECK(kept({kMasked, 1.0f, kMasked, 2.0f}, 1) == std::vector{3});
}

/// Processors of the reference, in the order of the chain.
void process_steps(const std::vector<nlohmann::json>& steps, std::span<float> logits, std::span<const int>) {
  SamplingOptions options;
  for (const auto& step : steps) {
    if (step["op"] == "temperature") options.temperature = step["value"];
    if (step["op"] == "top_k") options.top_k = step["value"];
  }
  process(logits, options);
}

TEST_CASE("the kept tokens and their probabilities agree with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature", "top_k"}, 24, process_steps) == "");
}

TEST_CASE("without its options the step chooses what Hugging Face's greedy decoding chooses") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          std::mt19937 generator(0);
          const TextOptions options{.stopping = {.max_new_tokens = count}};
          return tokens_after(prompt.size(),
                              generate(tales(), prompt, options, generator, [](const Token&) {}).tokens);
        }) == "");
}

TEST_CASE("only the k most likely tokens are drawn") {
  std::vector<float> logits = raw_logits("normal");
  const SamplingOptions options{.do_sample = true, .temperature = 3.0f, .top_k = 5};
  process(logits, options);
  std::mt19937 generator(1);
  std::set<int> seen;
  for (int i = 0; i < 2000; ++i) seen.insert(choose(logits, options, generator));
  const std::vector<int> want = kept(raw_logits("normal"), 5);
  CHECK(seen == std::set(want.begin(), want.end()));
}

TEST_CASE("near temperature 0 only the most likely token is left, whichever it is") {
  for (std::size_t best = 0; best < 4; ++best) {
    std::vector<float> logits(4, 1.0f), wanted(4, kMasked);
    wanted[best] = logits[best] = 2.0f;
    apply_temperature(logits, 0.0f);
    CHECK(logits == wanted);
  }
}
