// What tests against Hugging Face transformers share. A reference has logits at some places of the
// vocabulary, and greedy texts with the gap between the two best logits of each choice.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace staircase {

inline double largest(const std::vector<float>& values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

/// The largest logit is taken out first: no exponential overflows.
inline double log_sum_exp(std::span<const float> logits) {
  const double top = static_cast<double>(logits[static_cast<std::size_t>(argmax(logits))]);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return top + std::log(sum);
}

inline std::vector<float> at(std::span<const float> logits, const std::vector<int>& places) {
  std::vector<float> values;
  for (const int place : places) values.push_back(logits[static_cast<std::size_t>(place)]);
  return values;
}

/// Empty if the greedy text is the reference's up to the first of its choices that was nearly a tie.
inline std::string difference_from_greedy(const nlohmann::json& one, const std::vector<int>& tokens) {
  const std::vector<int> want = one.at("greedy");
  const std::vector<double> gaps = one.at("gaps");
  for (std::size_t i = 0; i < want.size() && i < tokens.size(); ++i) {
    if (gaps[i] < 1e-3) return "";
    if (tokens[i] != want[i]) return fmt::format("token {}: got {}, want {}", i, tokens[i], want[i]);
  }
  return tokens.size() < want.size() ? "the text is too short" : "";
}

/// The most likely tokens after `prompt`, no end stops them.
inline std::vector<int> greedy(Model& model, const std::vector<int>& prompt, std::size_t count,
                               KvCache& cache) {
  std::vector<int> text = prompt;
  while (text.size() < prompt.size() + count) {
    const auto fed = std::span<const int>(text).subspan(static_cast<std::size_t>(cache.length(0)));
    text.push_back(argmax(model.next_logits(fed, cache)));
  }
  return std::vector<int>(text.begin() + std::ssize(prompt), text.end());
}

}  // namespace staircase
