// Logits of transformers for the small models of all families, and how near others are to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/transformers.h"

namespace staircase {

inline std::string reference_folder(const std::string& family) {
  return STAIRCASE_SOURCE_TREE "/tests/reference/families/" + family;
}

inline Model reference_model(const std::string& family) {
  return Model::load(reference_folder(family), make_cpu_device(2));
}

/// The largest difference of a logit, as a share of the largest expected logit; 1 if their numbers differ.
inline double difference(std::span<const float> logits, std::span<const float> want) {
  double off = logits.size() == want.size() ? 0.0 : 1.0, largest = 1e-30;
  for (std::size_t i = 0; i < std::min(logits.size(), want.size()); ++i) {
    largest = std::max(largest, std::abs(double{want[i]}));
    off = std::max(off, std::isfinite(logits[i]) ? std::abs(double{logits[i]} - double{want[i]}) : 1e30);
  }
  return logits.size() == want.size() ? off / largest : 1.0;
}

/// Texts of the reference, with the logits of some tokens after the first token and after the whole.
inline nlohmann::json reference_cases(const std::string& family) {
  std::ifstream file(reference_folder(family) + "/reference.json");
  return nlohmann::json::parse(file)["cases"];
}

/// The largest difference from transformers' logits, over all texts of the reference.
inline double difference_from_reference(
    const std::string& family, const std::function<std::vector<float>(const std::vector<int>&)>& logits) {
  double off = 0.0;
  for (const nlohmann::json& one : reference_cases(family)) {
    const std::vector<float> all = logits(one["ids"].get<std::vector<int>>());
    off = std::max(off, difference(at(all, one["places"]), one["logits"].get<std::vector<float>>()));
  }
  return off;
}

/// The largest difference from the engine's logits, over these texts.
inline double difference_from_engine(
    Model& model, const std::vector<std::vector<int>>& texts,
    const std::function<std::vector<float>(const std::vector<int>&)>& logits) {
  double off = 0.0;
  for (const std::vector<int>& tokens : texts)
    off = std::max(off, difference(logits(tokens), model.next_logits(tokens)));
  return off;
}

}  // namespace staircase
