#include "tests/processors.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "common/model/safetensors.h"

namespace staircase {

std::vector<float> raw_logits(const std::string& vector) {
  static const Safetensors file(STAIRCASE_SOURCE_TREE "/tests/reference/processors.safetensors");
  const std::span<const std::byte> bytes = file.find(vector)->bytes;
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  return logits;
}

std::vector<int> tokens_before(const std::string& vector) {
  return reference("processors.json")["given_ids"][vector];
}

std::vector<double> exact_softmax(std::span<const float> logits) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  std::vector<double> probabilities;
  double sum = 0.0;
  for (const float logit : logits) {
    sum += probabilities.emplace_back(std::exp(static_cast<double>(logit) - largest));
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

std::vector<int> ranking(std::span<const float> logits) {
  std::vector<int> ids;
  for (int i = 0; i < std::ssize(logits); ++i) {
    if (is_kept(logits[i])) ids.push_back(i);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  return ids;
}

std::string difference_from_case(const nlohmann::json& one, std::span<const float> logits,
                                 std::span<const float> before) {
  std::vector<int> ids = ranking(logits);
  const std::vector<double> probabilities = exact_softmax(logits);
  if (ids.size() != one["kept"])
    return fmt::format("{} tokens are kept, want {}", ids.size(), one["kept"].dump());
  if (one.contains("tie")) {
    // A cut through a group of equal logits leaves the lowest ids of it. The reference does not list them.
    const auto [left, tied] = std::pair<std::size_t, std::size_t>(one["tie"]["kept"], one["tie"]["tied"]);
    std::vector<int> group;
    for (int i = 0; i < std::ssize(before); ++i) {
      if (before[i] == before[ids.back()]) group.push_back(i);
    }
    if (group.size() != tied)
      return fmt::format("the cut goes through {} equal tokens, want {}", group.size(), tied);
    if (std::vector(ids.end() - static_cast<std::ptrdiff_t>(left), ids.end()) !=
        std::vector(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(left))) {
      return "of equal tokens not the lowest ids are kept";
    }
    const double want = one["tie"]["prob"];
    if (std::abs(probabilities[ids.back()] - want) > 1e-5 * want)
      return "an equal token has the wrong probability";
    ids.resize(ids.size() - left);
  }
  const std::vector<int> want_ids = one["ids"];
  const std::vector<double> want = one["probs"];
  for (std::size_t i = 0; i < want.size(); ++i) {
    const int id = want_ids[i];
    if (std::abs(probabilities[id] - want[i]) > 1e-5 * want[i]) {
      return fmt::format("token {} has probability {}, want {}", id, probabilities[id], want[i]);
    }
    const bool all = want.size() == ids.size();
    if ((all || i < 40) && ids[i] != id) return fmt::format("place {} has token {}, want {}", i, ids[i], id);
  }
  return "";
}

std::string difference_from_processors(const std::set<std::string>& known, int count,
                                       const Process& process) {
  static const std::map<std::string, int> order = {
      {"presence_frequency", 0}, {"repetition_penalty", 1}, {"temperature", 2}, {"top_k", 3}, {"top_p", 4}};
  const auto needs = [](const nlohmann::json& step) {
    std::set<std::string> names;
    if (step["op"] != "presence_frequency") names.insert(step["op"].get<std::string>());
    if (step.value("presence", 0.0) != 0.0) names.insert("presence");
    if (step.value("frequency", 0.0) != 0.0) names.insert("frequency");
    return names;
  };
  const auto run = [&](const std::vector<nlohmann::json>& steps, std::vector<float> logits,
                       const std::vector<int>& tokens) {
    std::vector<nlohmann::json> together;
    for (const auto& step : steps) {
      if (!together.empty() && order.at(step["op"]) < order.at(together.back()["op"])) {
        process(together, std::span(logits), std::span(tokens));
        together.clear();
      }
      together.push_back(step);
    }
    if (!together.empty()) process(together, std::span(logits), std::span(tokens));
    return logits;
  };

  int compared = 0;
  for (const auto& one : reference("processors.json")["cases"]) {
    std::vector<nlohmann::json> steps = one["steps"];
    const bool runs = std::all_of(steps.begin(), steps.end(), [&](const nlohmann::json& step) {
      const std::set<std::string> names = needs(step);
      return std::includes(known.begin(), known.end(), names.begin(), names.end());
    });
    if (!runs) continue;
    ++compared;
    const std::string vector = one["vector"];
    const std::vector<float> raw = raw_logits(vector);
    const std::vector<int> tokens = tokens_before(vector);
    const std::vector<float> logits = run(steps, raw, tokens);
    const std::string where = vector + " " + one["steps"].dump() + ": ";
    while (one.contains("changed_ids") && order.at(steps.back()["op"]) > 1) steps.pop_back();
    if (one.contains("changed_ids")) {
      const std::vector<float> changed = run(steps, raw, tokens);
      const std::vector<int> ids = one["changed_ids"];
      const std::vector<double> want = one["changed_logits"];
      std::vector<float> got;
      for (const int id : ids) got.push_back(changed[id]);
      const std::string wrong = difference(where + "changed_logits", got, want, want.size(), 1e-5);
      if (!wrong.empty()) return wrong;
    }
    steps = one["steps"];
    steps.pop_back();
    const std::string wrong = difference_from_case(one, logits, run(steps, raw, tokens));
    if (!wrong.empty()) return where + wrong;
  }
  return compared == count ? "" : fmt::format("{} cases were compared, want {}", compared, count);
}

}  // namespace staircase
