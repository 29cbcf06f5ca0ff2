#include "common/probabilities.h"

#include <algorithm>
#include <numeric>

#include "common/error.h"
#include "kernels/device.h"

namespace staircase {

std::vector<float> softmax(std::span<const float> logits) {
  std::vector<float> probabilities(logits.begin(), logits.end());
  if (!softmax_in_place(probabilities)) {
    throw Error("no token can be chosen: the options leave no logit that is a finite number");
  }
  return probabilities;
}

std::vector<Candidate> likeliest(std::span<const float> logits, int count) {
  if (count <= 0) return {};
  const std::vector<float> probabilities = softmax(logits);
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] > 0.0f) candidates.push_back({static_cast<int>(i), probabilities[i]});
  }
  const auto end = candidates.begin() + std::min<std::ptrdiff_t>(count, std::ssize(candidates));
  std::partial_sort(candidates.begin(), end, candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token_id < b.token_id;
  });
  candidates.erase(end, candidates.end());
  return candidates;
}

}  // namespace staircase
