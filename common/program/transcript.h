// The results of a run so far, which a terminal and a JSON object show in different forms.
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
  int number;  ///< from 1, in the order in which sequences began
  int prompt;  ///< the number of the prompt that it continues, from 0
  std::vector<int> token_ids = {};
  std::string text = {};                                ///< all complete characters
  std::vector<std::vector<Candidate>> candidates = {};  ///< the candidates of each token, if requested
  std::vector<Token> tokens_with_logprobs = {};         ///< the log-probabilities of each token, if requested
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<double> score = {};         ///< the score by which a search ranks the sequence
  Clock::time_point first = {}, last = {};  ///< when the first and the last token were chosen
};

/// A prompt to show with its log-probabilities.
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
