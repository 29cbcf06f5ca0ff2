// Speculation without a draft model (Saxena 2023): texts often repeat themselves.
#pragma once

#include "speculative.h"

namespace staircase {

struct LookupOptions {
  std::optional<int> num_tokens = {};  ///< γ of the look-up; if unset, look-up is off
  int ngram = 2;                       ///< length of the longest n-gram to look for
};

inline void add_options(OptionSink& sink, LookupOptions& options) {
  sink.add("--prompt-lookup-num-tokens", &options.num_tokens, "tokens to copy at a time", between(1, 64));
  sink.add("--max-matching-ngram-size", &options.ngram, "longest n-gram to match", at_least(1));
  sink.warn_if([&options] { return !options.num_tokens && options.ngram != LookupOptions().ngram; },
               "--max-matching-ngram-size does nothing without --prompt-lookup-num-tokens");
}

/// Returns the index of the token that followed the latest earlier occurrence of the last `longest` tokens of
/// the text. If they did not occur before, tries fewer, down to the last token alone.
inline std::optional<int> look_up(std::span<const int> text, int longest) {
  const auto newest = text.end() - 1;  // excluded from the search, or the end would find itself
  for (int n = std::min<int>(longest, newest - text.begin()); n >= 1; --n) {
    const auto found = std::find_end(text.begin(), newest, text.end() - n, text.end());
    if (found != newest) return static_cast<int>(found - text.begin()) + n;
  }
  return std::nullopt;
}

/// Proposes the tokens that followed the last occurrence. Each distribution has only one possible token.
class PromptLookup : public Drafter {
 public:
  PromptLookup(int longest, int vocab_size) : longest_(longest), vocab_size_(vocab_size) {}

  Distributions propose(std::vector<int>& text, int count, const SamplingOptions&, std::mt19937&) override {
    const std::optional<int> followed = look_up(text, longest_);
    Distributions q(followed ? count : 0, std::vector<float>(vocab_size_));
    for (int i = 0; i < std::ssize(q); ++i) {
      // The copy may reach its own tokens, so a repetition continues (Ziv and Lempel 1977, section II).
      text.push_back(text[*followed + i]);
      q[i][text.back()] = 1.0f;
    }
    return q;
  }

 private:
  int longest_, vocab_size_;
};

}  // namespace staircase
