// Shows a run as text: the new tokens on standard output as they are chosen, and requested details on
// standard error.
#pragma once

#include <string>

#include "common/program/transcript.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// One line for each candidate of the token, with its probability as a bar; > marks the chosen candidate.
std::string candidate_lines(const Tokenizer& tokenizer, const Token& token);

/// Shows a transcript as it grows. Throws Error if standard output accepts no more text.
class Terminal {
 public:
  Terminal(const Transcript& transcript, const Tokenizer& tokenizer)
      : transcript_(transcript), tokenizer_(tokenizer) {}

  /// Numbers the sequences if there are several.
  void expect(int sequences) { expected_ = sequences; }

  /// The following calls concern the last `count` sequences of the transcript, which are decoded together.
  /// Only the first of them can be printed while it grows.
  void begin(std::size_t count);

  /// Prints the details of a token, if requested.
  void show(const Sequence& sequence, const Token& token) const;

  /// Prints the details of a prompt's tokens.
  void show(int prompt, const Echo& echo) const;

  /// Adds text to the end of the sequence.
  void add_text(const Sequence& sequence, const std::string& text, Origin origin);

  /// Ends a sequence: prints the text that was not printed while it grew.
  void end(const Sequence& sequence);

  /// Ends the last line.
  void close() const;

 private:
  bool streams(const Sequence& sequence) const;
  void print_head(const Sequence& sequence);
  void show_candidates(const Sequence& sequence, const Token& token) const;
  void show_logprobs(const std::string& whose, const Token& token) const;
  std::string quoted_token(int id) const;

  const Transcript& transcript_;
  const Tokenizer& tokenizer_;
  int expected_ = 1;
  std::size_t together_ = 1;  // number of sequences that are decoded together now
  int first_ = 1;             // the number of the first of these sequences
  int heads_ = 0;             // sequences whose number and prompt have been printed
};

}  // namespace staircase
