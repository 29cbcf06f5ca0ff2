// Where the new tokens go: text to standard output as it arises, or one JSON object at the end; times are
// taken on the way.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/decoding/generation.h"
#include "common/program/statistics.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// A text on one line, in quotes. Quotes, backslashes and control characters in it are escaped.
std::string quoted(const std::string& text);

/// Throws Error when standard output takes no more.
class Output {
 public:
  enum class Form { kText, kJson };

  Output(const Tokenizer& tokenizer, int eos_token_id, Prompts prompts, Form form);

  /// Announces more than one sequence: each gets a number.
  void expect(int sequences) { expected_ = sequences; }

  /// Shows a prompt itself, each token with its log-probabilities, and how surprising it is altogether.
  /// Before its sequences begin.
  void echo(int prompt, std::vector<Token> tokens, std::optional<double> perplexity);

  /// Begins a sequence behind the prompt of that number: what a generation loop calls for each new token. The
  /// clock of the first token starts here.
  OnToken on_token(int prompt = 0);

  /// Ends the sequence.
  void finish(FinishReason reason, const CacheUse& cache = {});

  /// The same for sequences that grow together, row i behind the prompt with the number prompts[i]. The text
  /// of the first is printed as it arises, that of the others at the end.
  OnRowToken on_row_token(const std::vector<int>& prompts);

  /// Ends the sequences that grew together, each for its reason.
  void finish(const std::vector<Generation>& rows, const CacheUse& cache);

  /// Puts the time to the first token and the tokens/s of a caller that knows better in the place of the
  /// statistics': where sequences begin and end one by one, no time belongs to all of them.
  void set_speed(double prefill_ms, double tokens_per_second) {
    statistics_.prefill_ms = prefill_ms;
    statistics_.throughput = tokens_per_second;
  }

  /// Ends the output: the last line break, or the JSON object with the size of the model in its statistics.
  void close(std::size_t weight_bytes);

  /// One more number among the statistics of the JSON object.
  void add_statistic(const std::string& name, double value) { more_statistics_.emplace_back(name, value); }

  const Tokenizer& tokenizer() const { return tokenizer_; }

  const Statistics& statistics() const { return statistics_; }

 private:
  struct Sequence {
    int number;
    int prompt;
    StreamDecoder decoder;
    std::vector<int> token_ids = {};
    std::vector<std::vector<Candidate>> candidates = {};
    std::vector<Token> tokens = {};  // those with log-probabilities
    std::string text = {};
    bool has_head = false;   // printed before the first of its text: its number and its prompt
    bool holds_eos = false;  // printed only when the sequence goes on behind it
    FinishReason finish_reason = FinishReason::kLength;
    std::optional<double> score = {};
    Clock::time_point first = {}, last = {};  // of its tokens
  };

  struct Echo {
    std::vector<Token> tokens;
    std::optional<double> perplexity;
  };

  void take(Sequence& sequence, const Token& token);
  void end(Sequence& sequence, FinishReason reason);
  void print_head(Sequence& sequence);
  void add_text(Sequence& sequence, const std::string& text, Origin origin = Origin::kModel);
  void show(Sequence& sequence, const Token& token);
  void show_logprobs(const Token& token, const std::string& number);
  bool streams(const Sequence& sequence) const;

  const Tokenizer& tokenizer_;
  int eos_token_id_;
  Prompts prompts_;
  Form form_;
  std::vector<Sequence> sequences_;
  std::map<int, Echo> echoes_;  // by the number of the prompt
  std::size_t growing_ = 0;     // the first of the sequences that grow together now
  int expected_ = 1;
  Statistics statistics_;
  std::vector<std::pair<std::string, double>> more_statistics_;
  Clock::time_point start_;
};

}  // namespace staircase
