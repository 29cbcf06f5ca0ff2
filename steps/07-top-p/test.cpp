#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/processors.h"

using namespace staircase;

/// The ids that top-p keeps, in ascending order.
std::vector<int> kept(std::vector<float> logits, float p) {
  keep_top_p(logits, p);
  std::vector<int> ids = ranking(logits);
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// Logits with these probabilities.
std::vector<float> logits_of(std::vector<float> probabilities) {
  for (float& value : probabilities) value = std::log(value);
  return probabilities;
}

TEST_CASE("the token that crosses p belongs to the nucleus") {
  const std::vector<float> logits = logits_of({0.1f, 0.4f, 0.2f, 0.3f});
  CHECK(kept(logits, 0.39f) == std::vector{1});
  CHECK(kept(logits, 0.41f) == std::vector{1, 3});
  CHECK(kept(logits, 0.69f) == std::vector{1, 3});
  CHECK(kept(logits, 0.71f) == std::vector{1, 2, 3});
  CHECK(kept(logits, 0.89f) == std::vector{1, 2, 3});
  CHECK(kept(logits, 0.91f) == std::vector{0, 1, 2, 3});
}

TEST_CASE("a set that reaches p exactly is enough") {
  CHECK(kept(std::vector<float>(4, 1.0f), 0.5f) == std::vector{0, 1});
  CHECK(kept(std::vector<float>(4, 1.0f), 0.75f) == std::vector{0, 1, 2});
}

TEST_CASE("among ties at the border, the lowest ids are kept") {
  CHECK(kept(logits_of({0.125f, 0.5f, 0.125f, 0.125f, 0.125f}), 0.7f) == std::vector{0, 1, 2});
  CHECK(kept(std::vector<float>(1000, 0.0f), 0.0105f).back() == 10);
}

TEST_CASE("a tiny p keeps the most likely token, p = 1 keeps all") {
  for (const char* const vector : kVectors) {
    const std::vector<float> raw = raw_logits(vector);
    CHECK(kept(raw, 1e-9f) == std::vector{argmax(raw)});
    for (const float p : {1.0f, 1.5f}) {
      std::vector<float> logits = raw;
      keep_top_p(logits, p);
      CHECK(logits == raw);
    }
  }
}

TEST_CASE("an invalid p does not crash: 0 and below keep no token, NaN keeps all") {
  CHECK(kept(raw_logits("normal"), std::nanf("")).size() == 4096);
  for (const float p : {0.0f, -1.0f, -HUGE_VALF}) {
    std::vector<float> logits = raw_logits("normal");
    keep_top_p(logits, p);
    std::mt19937 generator(0);
    CHECK(says(error_message([&] { choose(logits, {.do_sample = true}, generator); }),
               "no token can be chosen"));
  }
}

/// The nucleus by its definition: sort everything and add up until p is reached. Prepared once for all p.
class Naive {
 public:
  explicit Naive(const std::vector<float>& logits) : logits_(logits), ids_(ranking(softmax(logits))) {
    const std::vector<float> probabilities = softmax(logits);
    double sum = 0.0;
    for (const int id : ids_) sums_.push_back(sum += probabilities[id]);
  }

  /// The logits after top-p.
  std::vector<float> kept(float p) const {
    const auto end = std::lower_bound(sums_.begin(), sums_.end(), static_cast<double>(p));
    const auto count = std::min<std::ptrdiff_t>(end - sums_.begin() + 1, std::ssize(ids_));
    std::vector<float> result(logits_.size(), kMasked);
    for (const int id : std::span(ids_).first(count)) result[id] = logits_[id];
    return result;
  }

 private:
  std::vector<float> logits_;
  std::vector<int> ids_;
  std::vector<double> sums_;
};

TEST_CASE("top-p equals a full sort") {
  std::mt19937 generator(1);
  const auto random = [&](std::size_t size, float deviation, float step) {
    std::normal_distribution<float> normal;
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = deviation * normal(generator);
      if (step > 0.0f) logit = std::round(logit / step) * step;
    }
    return logits;
  };
  struct Kind {
    std::size_t size;
    float deviation, step;
    int values;  // of p
  };
  for (const Kind& kind : {
           Kind{1, 1.0f, 0.0f, 20},
           Kind{2, 1.0f, 0.0f, 200},
           Kind{100, 2.0f, 0.0f, 2000},  // small
           Kind{4096, 2.0f, 0.0f, 500},
           Kind{4096, 20.0f, 0.0f, 500},  // normal, peaked
           Kind{4096, 0.01f, 0.0f, 300},
           Kind{4096, 0.0f, 0.0f, 300},  // flat, all equal
           Kind{4096, 2.0f, 1.0f, 500},
           Kind{500, 1.0f, 0.5f, 2000},  // many ties
           Kind{50'257, 2.5f, 0.0f, 40},
           Kind{50'257, 8.0f, 0.0f, 100},
           Kind{50'257, 2.5f, 0.5f, 40},
       }) {
    const std::vector<float> raw = random(kind.size, kind.deviation, kind.step);
    const Naive naive(raw);
    int wrong = 0;
    for (int i = 0; i < kind.values; ++i) {
      const float high = i % 4 == 0 ? 0.1f : 1.0f;  // every fourth p is above 0.9
      const float p = 1.0f - high * (static_cast<float>(generator() % 100'000) + 10.0f) / 100'010.0f;
      std::vector<float> logits = raw;
      keep_top_p(logits, p);
      wrong += logits != naive.kept(p);
    }
    CAPTURE(kind.size);
    CAPTURE(kind.deviation);
    CAPTURE(kind.step);
    CHECK(wrong == 0);
  }
}

TEST_CASE("top-p after top-k considers only the tokens that top-k keeps") {
  std::vector<float> logits = logits_of({0.4f, 0.3f, 0.2f, 0.1f});
  process(logits, {.top_k = 2, .top_p = 0.5f});  // 4/7 and 3/7: the first is enough
  CHECK(ranking(logits) == std::vector{0});
  logits = logits_of({0.4f, 0.3f, 0.2f, 0.1f});
  process(logits, {.top_p = 0.5f});
  CHECK(ranking(logits) == std::vector{0, 1});
}

TEST_CASE("without top-p the chain equals the previous step's") {
  std::vector<float> logits = raw_logits("normal"), want = logits;
  process(logits, {.temperature = 0.7f, .top_k = 50});
  apply_temperature(want, 0.7f);
  keep_top_k(want, 50);
  CHECK(logits == want);
}

/// Processors of the reference, in the order of the chain.
void process_steps(const std::vector<nlohmann::json>& steps, std::span<float> logits, std::span<const int>) {
  SamplingOptions options;
  for (const auto& step : steps) {
    if (step["op"] == "temperature") options.temperature = step["value"];
    if (step["op"] == "top_k") options.top_k = step["value"];
    if (step["op"] == "top_p") options.top_p = step["value"];
  }
  process(logits, options);
}

TEST_CASE("the kept tokens and their probabilities agree with Hugging Face's processors") {
  CHECK(difference_from_processors({"temperature", "top_k", "top_p"}, 64, process_steps) == "");
}

TEST_CASE("without its options the step chooses what Hugging Face's greedy decoding chooses") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          std::mt19937 generator(0);
          const TextOptions options{.stopping = {.max_new_tokens = count}};
          return tokens_after(prompt.size(),
                              generate(tales(), prompt, options, generator, [](const Token&) {}).tokens);
        }) == "");
}

TEST_CASE("near temperature 0 only the most likely token is left, whichever it is") {
  for (std::size_t best = 0; best < 4; ++best) {
    std::vector<float> logits(4, 1.0f), wanted(4, kMasked);
    wanted[best] = logits[best] = 2.0f;
    apply_temperature(logits, 0.0f);
    CHECK(logits == wanted);
  }
}
