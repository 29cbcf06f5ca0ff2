// A run as text: the new tokens on standard output as they arise, what is asked for about them on standard
// error.
#pragma once

#include <string>

#include "common/program/transcript.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Shows a transcript as it grows. Throws Error when standard output takes no more.
class Terminal {
 public:
  Terminal(const Transcript& transcript, const Tokenizer& tokenizer)
      : transcript_(transcript), tokenizer_(tokenizer) {}

  /// Where there is more than one sequence, each gets a number.
  void expect(int sequences) { expected_ = sequences; }

  /// What follows is about the last `count` sequences of the transcript, which grow together. Only the first
  /// of them can be printed while it grows.
  void begin(std::size_t count);

  /// Tells what is known of a token, if anything is asked for.
  void show(const Sequence& sequence, const Token& token) const;

  /// Tells of the tokens of a prompt.
  void show(int prompt, const Echo& echo) const;

  /// This is new at the end of the sequence's text.
  void add_text(const Sequence& sequence, const std::string& text, Origin origin);

  /// The sequence is complete: prints what was not printed while it grew.
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
  std::size_t together_ = 1;  // sequences that grow together now
  int first_ = 1;             // the number of the first of them
  int heads_ = 0;             // of so many sequences number and prompt are printed
};

}  // namespace staircase
