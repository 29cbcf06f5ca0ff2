#include "common/program/terminal.h"

#include <cmath>

#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/program/standard_output.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

/// A bar of up to 40 characters, in eighths of a character.
std::string bar(float probability) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::lround(probability * 40 * 8));
  std::string line;
  for (int i = 0; i < eighths / 8; ++i) line += "█";
  return line + kEighths[eighths % 8];
}

/// The colour for a token's origin, so that a person sees how many drafted tokens are accepted.
std::string colour_of(Origin origin) {
  switch (origin) {
    case Origin::kModel:
      return "";
    case Origin::kAccepted:
      return "\033[32m";  // green
    case Origin::kCorrected:
      return "\033[31m";  // red
    case Origin::kBonus:
      return "\033[36m";  // cyan
  }
  return "";
}

}  // namespace

std::string candidate_lines(const Tokenizer& tokenizer, const Token& token) {
  std::string lines;
  for (const Candidate& candidate : token.candidates) {
    const bool chosen = candidate.token_id == token.id;
    const std::string text = quoted(tokenizer.decode(std::span(&candidate.token_id, 1)));
    lines += fmt::format("{} {:<16} {:5.1f} % {}\n", chosen ? ">" : " ", text, 100.0f * candidate.probability,
                         bar(candidate.probability));
  }
  return lines;
}

void Terminal::begin(std::size_t count) {
  together_ = count;
  first_ = static_cast<int>(transcript_.sequences.size() - count) + 1;
}

/// Whether the text is printed while it grows. Details between its tokens would break it up, so such a text
/// waits.
bool Terminal::streams(const Sequence& sequence) const {
  return sequence.number == first_ && sequence.candidates.empty() && sequence.tokens_with_logprobs.empty();
}

void Terminal::print_head(const Sequence& sequence) {
  if (sequence.number <= heads_) return;
  heads_ = sequence.number;
  if (expected_ > 1) print(fmt::format("{}[{}]\n", sequence.number > 1 ? "\n\n" : "", sequence.number));
  // A person reads the continuation after its prompt; a pipe gets only the new text, unless the prompt is
  // requested.
  const std::string prompt =
      tokenizer_.decode(transcript_.prompts[static_cast<std::size_t>(sequence.prompt)]);
  if (has_colours(stdout)) {
    print("\033[2m" + prompt + "\033[0m");
  } else if (platform::is_terminal(stdout) || transcript_.echoes.contains(sequence.prompt)) {
    print(prompt);
  }
}

void Terminal::show(const Sequence& sequence, const Token& token) const {
  if (!token.candidates.empty()) show_candidates(sequence, token);
  if (token.logprobs) show_logprobs(together_ == 1 ? "" : fmt::format("[{}] ", sequence.number), token);
}

void Terminal::show(int prompt, const Echo& echo) const {
  const std::string whose = transcript_.prompts.size() > 1 ? fmt::format("prompt {}: ", prompt + 1) : "";
  for (const Token& token : echo.tokens) show_logprobs(whose, token);
}

void Terminal::add_text(const Sequence& sequence, const std::string& text, Origin origin) {
  if (!streams(sequence)) return;
  print_head(sequence);
  const std::string colour = has_colours(stdout) ? colour_of(origin) : "";
  print(colour.empty() ? text : colour + text + "\033[0m");
}

void Terminal::end(const Sequence& sequence) {
  print_head(sequence);
  if (!streams(sequence)) print(sequence.text);
}

void Terminal::close() const {
  if (!transcript_.sequences.empty()) print("\n");
}

std::string Terminal::quoted_token(int id) const {
  return quoted(tokenizer_.decode(std::span(&id, 1)));
}

void Terminal::show_candidates(const Sequence& sequence, const Token& token) const {
  say((together_ == 1 ? "" : fmt::format("[{}]\n", sequence.number)) + candidate_lines(tokenizer_, token));
}

void Terminal::show_logprobs(const std::string& whose, const Token& token) const {
  const Logprobs& logprobs = *token.logprobs;
  std::string line = fmt::format("{}{:<16} {:>8}", whose, quoted_token(token.id),
                                 logprobs.own ? fmt::format("{:.4f}", *logprobs.own) : "-");
  if (!logprobs.likeliest.empty()) line += "  |";
  for (const Logprob& other : logprobs.likeliest) {
    line += fmt::format("  {} {:.4f}", quoted_token(other.token_id), other.logprob);
  }
  say(line);
}

}  // namespace staircase
