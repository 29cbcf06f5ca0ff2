// The results of a run so far: a terminal and a JSON object show them in their own ways.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/decoding/results.h"
#include "common/program/statistics.h"

namespace staircase {

/// One continuation.
struct Sequence {
  int number;  ///< from 1, in the order in which they began
  int prompt;  ///< which prompt it continues, from 0
  std::vector<int> token_ids = {};
  std::string text = {};                                ///< the complete characters
  std::vector<std::vector<Candidate>> candidates = {};  ///< of each token, if requested
  std::vector<Token> tokens_with_logprobs = {};         ///< the same
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<double> score = {};         ///< by which a search ranks it
  Clock::time_point first = {}, last = {};  ///< when these tokens were chosen
};

/// A prompt to show.
struct Echo {
  std::vector<Token> tokens;
  std::optional<double> perplexity;
};

struct Transcript {
  Prompts prompts;
  std::map<int, Echo> echoes = {};  ///< by prompt number
  std::vector<Sequence> sequences = {};
  Statistics statistics = {};
  std::vector<std::pair<std::string, double>> more_statistics = {};
};

}  // namespace staircase
