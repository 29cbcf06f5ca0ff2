// Where the new tokens go: text to standard output as it is generated, or one JSON object at the end. It also
// takes the times.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/decoding/results.h"
#include "common/decoding/text_stream.h"
#include "common/model/config.h"
#include "common/program/terminal.h"
#include "common/program/trace.h"
#include "common/program/transcript.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// What an option makes of a row's logits, [vocab_size], where `text` is what the row has chosen so far.
using EditRow = std::function<void(std::span<float> logits, std::span<const int> text)>;

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

  /// An edit of a row's logits that keeps what `language` allows, a Regex or a Grammar. If there is a trace,
  /// it also gets what the edit has kept, and the state after the row's text. States are numbered as they are
  /// met.
  template <typename Language>
  EditRow traced(const Language& language, EditRow edit) const {
    if (!trace_) return edit;
    struct Shared {  // by all rows
      Language language;
      std::map<typename Language::States, int> numbers = {};
    };
    return [this, edit, shared = std::make_shared<Shared>(language)](std::span<float> logits,
                                                                     std::span<const int> text) mutable {
      edit(logits, text);
      auto states = shared->language.start();
      for (const int token : text) states = shared->language.after(states, tokenizer_.bytes(token));
      std::vector<int> allowed;
      for (int token = 0; token < std::ssize(logits); ++token)
        if (std::isfinite(logits[static_cast<std::size_t>(token)])) allowed.push_back(token);
      const int number = static_cast<int>(shared->numbers.size());
      trace_->mask(shared->numbers.try_emplace(std::move(states), number).first->second, std::move(allowed));
    };
  }

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
