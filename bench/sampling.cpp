// Measures the cost of choosing a token: the sampling chain of step 11 on logits like GPT-2's, on one core.
//
//   bench-sampling [ROUNDS]
//
// Prints the median time, in microseconds, of the whole chain and of each part on the output of the previous
// part.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "common/decoding/sampling.h"

using namespace staircase;

namespace {

constexpr int kVocabulary = 50257;
constexpr int kTokens = 512;

/// Returns logits [vocab_size] with a standard deviation of 2.5.
std::vector<float> random_logits(std::mt19937& generator) {
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

using Logits = std::vector<float>;

struct Part {
  std::string name;
  std::function<void(Logits& logits)> run;
  std::vector<double> microseconds = {};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1000;
  // Free a large block, as a program does when it loads a model: from then on malloc keeps freed memory.
  std::vector<char>(16 << 20).swap(*std::make_unique<std::vector<char>>());
  std::mt19937 generator(1);
  std::vector<int> tokens(kTokens);
  for (int& token : tokens) token = static_cast<int>(generator() % kVocabulary);
  std::vector<Logits> inputs;
  for (int i = 0; i < 16; ++i) inputs.push_back(random_logits(generator));

  const SamplingOptions options{.do_sample = true, .temperature = 0.8f, .top_k = 50, .top_p = 0.9f};
  std::vector<float> probabilities;
  long sum = 0;  // keeps the compiler from removing unread results
  Part whole{"temperature, top-k 50, top-p 0.9, draw", [&](Logits& logits) {
               process(logits, tokens, options);
               sum += choose(logits, options, generator);
             }};
  std::vector<Part> parts = {
      {"  temperature", [&](Logits& logits) { apply_temperature(logits, 0.8f); }},
      {"  top-k 50", [&](Logits& logits) { keep_top_k(logits, 50); }},
      {"  top-p 0.9", [&](Logits& logits) { keep_top_p(logits, 0.9f); }},
      {"  softmax", [&](Logits& logits) { probabilities = softmax(logits); }},
      {"  draw", [&](Logits&) { sum += draw(probabilities, generator); }},
  };
  std::vector<Part> alone = {
      {"top-p 0.9 without top-k", [&](Logits& logits) { keep_top_p(logits, 0.9f); }},
      {"softmax and draw from the full vocabulary",
       [&](Logits& logits) { sum += draw(softmax(logits), generator); }},
      {"presence penalty", [&](Logits& logits) { apply_presence_penalty(logits, tokens, 0.5f); }},
      {"frequency penalty", [&](Logits& logits) { apply_frequency_penalty(logits, tokens, 0.5f); }},
      {"repetition penalty", [&](Logits& logits) { apply_repetition_penalty(logits, tokens, 1.2f); }},
  };

  const auto time = [](Part& part, Logits& logits) {
    const auto start = std::chrono::steady_clock::now();
    part.run(logits);
    const std::chrono::duration<double, std::micro> duration = std::chrono::steady_clock::now() - start;
    part.microseconds.push_back(duration.count());
  };
  for (int round = 0; round < rounds; ++round) {
    const Logits& input = inputs[static_cast<std::size_t>(round) % inputs.size()];
    Logits logits = input;
    time(whole, logits);
    logits = input;
    for (Part& part : parts) time(part, logits);
    for (Part& part : alone) {
      logits = input;
      time(part, logits);
    }
  }

  const auto print = [](const Part& part) {
    fmt::print("{:<45} {:8.1f}\n", part.name, median(part.microseconds));
  };
  fmt::print("{} logits, {} tokens before, median of {} rounds, in microseconds\n", kVocabulary, kTokens,
             rounds);
  print(whole);
  for (const Part& part : parts) print(part);
  for (const Part& part : alone) print(part);
  return sum < 0;
}
