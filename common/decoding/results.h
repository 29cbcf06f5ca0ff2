// What a generation loop reports to the rest of the program.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/model/kv_cache.h"

namespace staircase {

using Clock = std::chrono::steady_clock;

/// Token ids of several texts to continue.
using Prompts = std::vector<std::vector<int>>;

enum class FinishReason {
  kLength,  ///< as many tokens as requested
  kEos,     ///< the model chose its end-of-text token
  kStop,    ///< the text reached a stop sequence
};

/// A finished sequence.
struct Generation {
  std::vector<int> tokens;  ///< the prompt and the new tokens
  FinishReason finish_reason = FinishReason::kLength;
  CacheUse cache = {};
  std::optional<double> score = {};  ///< the score by which a search ranks it
};

/// A token that could have been chosen.
struct Candidate {
  int token_id = 0;
  float probability = 0.0f;
};

/// A token and the natural logarithm of its probability.
struct Logprob {
  int token_id = 0;
  float logprob = 0.0f;
};

/// The model's own figures for a token: its log-probability (none if nothing comes before it) and the most
/// likely tokens at its position.
struct Logprobs {
  std::optional<float> own = {};
  std::vector<Logprob> likeliest = {};
};

/// Where a token comes from; in speculative decoding a draft model proposes and the target decides.
enum class Origin {
  kModel,      ///< the only model there is
  kAccepted,   ///< proposed by the draft model, and accepted
  kCorrected,  ///< the target's, instead of a rejected one
  kBonus,      ///< the target's, after proposals that were all accepted
};

/// The origin of token `index` in a round that drafted `drafted` tokens and accepted the first `accepted`.
inline Origin origin_of(int index, int accepted, int drafted) {
  if (drafted == 0) return Origin::kModel;
  if (index < accepted) return Origin::kAccepted;
  return accepted < drafted ? Origin::kCorrected : Origin::kBonus;
}

/// One new token at the moment it is chosen. If requested, also the most likely candidates and its
/// log-probabilities.
struct Token {
  int id = 0;
  std::vector<Candidate> candidates = {};
  Origin origin = Origin::kModel;
  std::optional<std::string> text = {};  ///< the text to show for it, if not the token's own
  std::optional<Logprobs> logprobs = {};
  Clock::time_point time = Clock::now();  ///< when the token was chosen; a search shows it later
};

using OnToken = std::function<void(const Token&)>;
/// Called for each token of texts that grow together, which are numbered from 0.
using OnRowToken = std::function<void(int row, const Token&)>;

}  // namespace staircase
