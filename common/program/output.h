// Where the new tokens go: text to standard output as it is generated, or one JSON object at the end. It also
// takes the times.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/decoding/results.h"
#include "common/decoding/text_stream.h"
#include "common/model/config.h"
#include "common/program/terminal.h"
#include "common/program/trace.h"
#include "common/program/transcript.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Throws Error if standard output accepts no more text.
class Output {
 public:
  enum class Form { kText, kJson };

  /// `trace`, if there is one, also gets each token; it must outlive this.
  Output(const Tokenizer& tokenizer, const EndTokens& ends, Prompts prompts, Form form,
         TraceFile* trace = nullptr);

  // The terminal reads the transcript.
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// Announces more than one sequence: each gets a number.
  void expect(int sequences) { terminal_.expect(sequences); }

  /// Shows a prompt itself, each token with its log-probabilities, and its overall perplexity. Call it before
  /// its sequences begin.
  void echo(int prompt, std::vector<Token> tokens, std::optional<double> perplexity);

  /// Begins a sequence that continues the prompt of that number, and returns the callback that a generation
  /// loop calls for each new token. The clock of the first token starts here.
  OnToken begin(int prompt = 0);

  /// Ends the sequence.
  void finish(FinishReason reason, const CacheUse& cache = {});

  /// The same for `texts` sequences that grow together, row i of prompt i / copies; each is numbered if there
  /// are several. The text of the first is printed as it grows, the others at the end.
  OnRowToken begin_texts(int texts, int copies = 1);

  /// The same for `texts` sequences that all continue one prompt; they are not announced.
  OnRowToken begin_texts_of(int prompt, int texts);

  /// Ends the sequences that grew together, each with its reason.
  void finish(const std::vector<Generation>& rows, const CacheUse& cache);

  /// Replaces the time to the first token and the tokens/s in the statistics with the caller's better
  /// figures. If sequences begin and end one by one, no time belongs to all of them.
  void set_speed(double prefill_ms, double tokens_per_second);

  /// Ends the output: prints the last line break, or the JSON object, whose statistics include the memory of
  /// the model.
  void close(std::size_t weight_bytes, std::size_t activation_bytes = 0);

  /// Adds a number to the statistics of the JSON object.
  void add_statistic(const std::string& name, double value);

  const Tokenizer& tokenizer() const { return tokenizer_; }

  const Statistics& statistics() const { return transcript_.statistics; }

 private:
  OnRowToken begin_all(const std::vector<int>& prompts);
  void take(std::size_t row, const Token& token);
  void end(std::size_t row, const Generation& generation);
  void add_text(Sequence& sequence, const std::string& text, Origin origin = Origin::kModel);
  Sequence& sequence(std::size_t row);

  const Tokenizer& tokenizer_;
  EndTokens ends_;
  Form form_;
  TraceFile* trace_;
  Transcript transcript_;
  Terminal terminal_;                // silent for JSON
  std::vector<TextStream> growing_;  // the last sequences of the transcript, which grow together now
  Clock::time_point start_;
};

}  // namespace staircase
