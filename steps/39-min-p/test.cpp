#include <doctest/doctest.h>

#include <cmath>

#include "generate.h"
#include "min_p.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

namespace {

/// The definition, with probabilities in double precision.
std::vector<bool> naive(std::span<const float> logits, double min_p) {
  const std::vector<double> probabilities = exact_softmax(logits);
  const double highest = *std::ranges::max_element(probabilities);
  std::vector<bool> kept;
  for (const double probability : probabilities)
    kept.push_back(probability > 0 && probability >= min_p * highest);
  return kept;
}

std::vector<bool> kept(std::span<const float> logits) {
  std::vector<bool> kept;
  for (const float logit : logits) kept.push_back(is_kept(logit));
  return kept;
}

/// What is reported about the tokens of a text.
std::vector<Token> told(float min_p, const SamplingOptions& sampling, int count = 30) {
  RowOptions options{{.stopping = {.max_new_tokens = count, .ignore_eos = true}, .sampling = sampling}};
  options.edit_final_logits = [&](std::span<float> logits) { keep_min_p(logits, min_p); };
  std::vector<Token> tokens;
  StaticKvCache cache(tales(), 1);
  generate(tales(), tales_tokenizer(), {tokens_before("model")}, 1, options, 1, cache,
           [&](int, const Token& token) { tokens.push_back(token); });
  return tokens;
}

std::vector<int> text(float min_p, const SamplingOptions& sampling) {
  std::vector<int> ids;
  for (const Token& token : told(min_p, sampling)) ids.push_back(token.id);
  return ids;
}

}  // namespace

TEST_CASE("exactly the tokens with that share of the highest probability are kept") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int run = 0; run < 50; ++run) {
    std::vector<float> raw(500);
    for (float& logit : raw) logit = normal(generator);
    for (const float min_p : {0.01f, 0.1f, 0.5f, 0.9f, 1.0f}) {
      std::vector<float> logits = raw;
      keep_min_p(logits, min_p);
      CHECK(kept(logits) == naive(raw, min_p));
      for (std::size_t i = 0; i < raw.size(); ++i) CHECK((!is_kept(logits[i]) || logits[i] == raw[i]));
    }
  }
}

TEST_CASE("few tokens are kept where the model is sure, and many where it is not") {
  for (const char* const vector : kVectors) {
    std::vector<float> logits = raw_logits(vector);
    const std::vector<bool> wanted = naive(logits, 0.1);
    keep_min_p(logits, 0.1f);
    CHECK(kept(logits) == wanted);
  }
  std::vector<float> sure{10.0f, 1.0f, 2.0f, 3.0f}, unsure{3.0f, 1.0f, 2.0f, 3.0f};
  keep_min_p(sure, 0.1f);
  keep_min_p(unsure, 0.1f);
  CHECK(kept(sure) == std::vector{true, false, false, false});
  CHECK(kept(unsure) == std::vector{true, true, true, true});
}

TEST_CASE("adding a number to all logits changes nothing") {
  for (const float shift : {-100.0f, -4.0f, 100.0f}) {
    std::vector<float> logits{3.0f + shift, 1.0f + shift, shift};
    keep_min_p(logits, 0.1f);  // ln 0.1 = -2.3: the second token stays
    CHECK(kept(logits) == std::vector{true, true, false});
  }
}

TEST_CASE("0 keeps all, 1 keeps the most likely token and its ties") {
  std::vector<float> logits{1.0f, 3.0f, 3.0f, -1e30f};
  keep_min_p(logits, 0.0f);
  CHECK(logits == std::vector{1.0f, 3.0f, 3.0f, -1e30f});
  keep_min_p(logits, 1.0f);
  CHECK(logits == std::vector{kMasked, 3.0f, 3.0f, kMasked});
}

TEST_CASE("tokens that the chain has masked stay masked") {
  std::vector<float> logits{kMasked, 3.0f, 2.9f};
  keep_min_p(logits, 0.0f);
  CHECK(logits == std::vector{kMasked, 3.0f, 2.9f});
  keep_min_p(logits, 0.5f);
  CHECK(logits == std::vector{kMasked, 3.0f, 2.9f});
}

TEST_CASE("min-p comes after the temperature, which brings more tokens above the border") {
  // At a temperature of 1 the second token has e^-3, 5 %, of the first one's probability; at 2 it has 22 %.
  const auto count = [](float temperature) {
    std::vector<float> logits{3.0f, 0.0f};
    process(logits, {}, {.temperature = temperature});
    keep_min_p(logits, 0.1f);
    return std::ranges::count_if(logits, is_kept);
  };
  CHECK(count(1.0f) == 1);
  CHECK(count(2.0f) == 2);
  const SamplingOptions hot{.do_sample = true, .seed = 3, .temperature = 2.0f};
  CHECK(text(1.0f, hot) == text(1.0f, {}));  // only the most likely one is left
  CHECK(text(0.05f, hot) != text(1.0f, {}));
}

TEST_CASE("no shown candidate is below the border") {
  for (const Token& token :
       told(0.2f, {.do_sample = true, .seed = 7, .temperature = 1.5f, .show_candidates = 50})) {
    const float highest = token.candidates.front().probability;
    for (const Candidate& one : token.candidates) {
      CHECK((one.probability == 0.0f || one.probability >= 0.2f * highest * 0.9999f));
      if (one.token_id == token.id) CHECK(one.probability > 0.0f);
    }
  }
}

TEST_CASE("--min-p outside its range is refused before any work") {
  const std::string option = "--model /nonexistent --min-p=";
  for (const std::string value : {"-0.1", "1.1", "inf", "nan"}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, option + value);
    CHECK(refused.status == 2);
    CHECK(begins_with(refused.err, "error: --min-p is "));
  }
  for (const std::string value : {"0", "0.1", "1"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, option + value).status == 1);  // there is no such model
  }
}

TEST_CASE("without sampling the program warns that the option does nothing") {
  const std::string words = "--model tales-6m --device cpu --max-new-tokens 1 --prompt A --min-p 0.1";
  const std::string warning = "--min-p does nothing without --do-sample";
  CHECK(contains(run_program(STAIRCASE_STEP_PROGRAM, words).err, warning));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, words + " --do-sample").err.find(warning) == std::string::npos);
}
