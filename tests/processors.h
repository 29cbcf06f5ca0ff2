// Compares what the options of a step do to logits with what Hugging Face's processors do to them
// (tests/reference/processors.json).
#pragma once

#include <cmath>
#include <functional>
#include <set>
#include <span>

#include "tests/compare.h"
#include "tests/step.h"

namespace staircase {

constexpr const char* kVectors[] = {"normal", "peaked", "ties", "model"};

/// Raw logits of the reference, [4096].
std::vector<float> raw_logits(const std::string& vector);

/// The tokens before these logits.
std::vector<int> tokens_before(const std::string& vector);

/// Probabilities of the logits in double precision, 0 for a masked one.
std::vector<double> exact_softmax(std::span<const float> logits);

inline bool is_kept(float logit) {
  return logit != -HUGE_VALF;
}

/// The kept tokens, most likely first, ties by ascending id.
std::vector<int> ranking(std::span<const float> logits);

/// Empty if `logits` are those of the reference's case; `before` are those before its last processor.
std::string difference_from_case(const nlohmann::json& one, std::span<const float> logits,
                                 std::span<const float> before);

/// Changes `logits` [vocab_size] as one or more neighbouring processors of the reference do, given the tokens
/// before them.
using Process = std::function<void(const std::vector<nlohmann::json>& steps, std::span<float> logits,
                                   std::span<const int> tokens)>;

/// Runs every case of the reference that needs only the processors in `known` ("presence", "frequency",
/// "repetition_penalty", "temperature", "top_k", "top_p"). `process(steps, logits, tokens)` gets one or more
/// neighbouring processors at a time, always in the order of our chain. Returns an empty text if all agree
/// and there were `count` of them.
std::string difference_from_processors(const std::set<std::string>& known, int count, const Process& process);

}  // namespace staircase
