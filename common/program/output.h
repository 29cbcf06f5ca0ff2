// Outputs the new tokens: text on standard output as it is generated, or one JSON object at the end. Also
// measures the times.
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

/// Edits a row's logits, [vocab_size], as an option requires. `text` holds the tokens that the row has chosen
/// so far.
using EditRow = std::function<void(std::span<float> logits, std::span<const int> text)>;

/// Throws Error if standard output accepts no more text.
class Output {
 public:
  enum class Form { kText, kJson };

  /// `trace`, if there is one, also receives each token; it must outlive this object.
  Output(const Tokenizer& tokenizer, const EndTokens& ends, Prompts prompts, Form form,
         TraceFile* trace = nullptr);

  // Not copyable: the terminal refers to the transcript.
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// Announces how many sequences will follow. If there are several, each gets a number.
  void expect(int sequences) { terminal_.expect(sequences); }

  /// Shows the prompt's own tokens with their log-probabilities, and the perplexity of the prompt. Call it
  /// before the prompt's sequences begin.
  void echo(int prompt, std::vector<Token> tokens, std::optional<double> perplexity);

  /// Begins a sequence that continues prompt number `prompt`. Returns the callback that a generation loop
  /// calls for each new token. The time to the first token starts here.
  OnToken begin(int prompt = 0);

  /// Ends the sequence that `begin` has begun.
  void finish(FinishReason reason, const CacheUse& cache = {});

  /// Begins `texts` sequences that are decoded together; sequence i continues prompt i / copies. If there are
  /// several, each gets a number. The first is printed as it grows, the others at the end.
  OnRowToken begin_texts(int texts, int copies = 1);

  /// Begins `texts` sequences that all continue one prompt, without announcing them.
  OnRowToken begin_texts_of(int prompt, int texts);

  /// Ends the sequences that were decoded together, each with its reason.
  void finish(const std::vector<Generation>& rows, const CacheUse& cache);

  /// Replaces the time to the first token and the tokens/s in the statistics by the caller's figures. Needed
  /// if sequences begin and end one by one, because they then share no single time.
  void set_speed(double prefill_ms, double tokens_per_second);

  /// Ends the output: prints the last line break, or the JSON object. Its statistics include the model's
  /// memory in bytes.
  void close(std::size_t weight_bytes, std::size_t activation_bytes = 0);

  /// Adds a number to the statistics of the JSON object.
  void add_statistic(const std::string& name, double value);

  /// Returns `edit`, which keeps only the tokens that `language`, a Regex or a Grammar, allows. If there is a
  /// trace, the returned edit also writes the kept tokens and the state after the row's text to it. States
  /// are numbered in the order in which they occur.
  template <typename Language>
  EditRow traced(const Language& language, EditRow edit) const {
    if (!trace_) return edit;
    struct Shared {  // shared by all rows
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
  Terminal terminal_;                // prints nothing for JSON
  std::vector<TextStream> growing_;  // the last sequences of the transcript, which are decoded together now
  Clock::time_point start_;
};

}  // namespace staircase
