// Where the new tokens go: text to standard output as it arises, or one JSON object at the end; times are
// taken on the way.
#pragma once

#include <string>
#include <vector>

#include "common/generation.h"
#include "common/statistics.h"
#include "common/tokenizer.h"

namespace staircase {

/// Throws Error when standard output takes no more.
class Output {
 public:
  enum class Form { kText, kJson };

  Output(const Tokenizer& tokenizer, int eos_token_id, std::vector<int> prompt, Form form);

  /// Announces more than one sequence: each gets a number.
  void expect(int sequences) { expected_ = sequences; }

  /// Begins a sequence: what a generation loop calls for each new token. The clock of the first token starts
  /// here.
  OnToken on_token();

  /// Ends the sequence.
  void finish(FinishReason reason, const CacheUse& cache = {});

  /// Ends the output: the last line break, or the JSON object with the size of the model in its statistics.
  void close(std::size_t weight_bytes);

  const Statistics& statistics() const { return statistics_; }

 private:
  struct Sequence {
    std::vector<int> token_ids;
    std::vector<std::vector<Candidate>> candidates;
    std::string text;
    FinishReason finish_reason = FinishReason::kLength;
  };

  void take(const Token& token);
  void add_text(const std::string& text);
  void show(const Token& token);

  const Tokenizer& tokenizer_;
  int eos_token_id_;
  std::vector<int> prompt_;
  Form form_;
  std::vector<Sequence> sequences_;
  StreamDecoder decoder_;
  int expected_ = 1;
  bool holds_eos_ = false;  // printed only when the sequence goes on behind it
  Statistics statistics_;
  Clock::time_point last_;
};

}  // namespace staircase
