// Speculation without a draft model (Saxena 2023): what the text has said before, it may say again.
#pragma once

#include "drafter.h"

namespace staircase {

struct LookupOptions {
  std::optional<int> num_tokens = {};  ///< γ of the look-up; without a value there is none
  int max_matching_ngram_size = 2;
};

inline void add_options(OptionSink& sink, LookupOptions& options) {
  sink.add("--prompt-lookup-num-tokens", &options.num_tokens,
           "propose so many tokens from earlier in the text at a time", between(1, 64));
  sink.add("--max-matching-ngram-size", &options.max_matching_ngram_size,
           "how many tokens to look for there, at most", at_least(1));
}

/// Looks for an earlier place where the text reads as it does at its end: for its last `longest` tokens, or
/// else for one less, down to the last token alone. Returns the index of the token that followed at the
/// latest such place.
inline std::optional<int> look_up(std::span<const int> text, int longest) {
  for (int n = std::min(longest, static_cast<int>(text.size()) - 1); n >= 1; --n) {
    // Without the newest token, or else the end of the text would find itself.
    const std::span<const int> earlier = text.first(text.size() - 1);
    const auto found = std::ranges::find_end(earlier, text.last(n));
    if (!found.empty()) return static_cast<int>(found.end() - earlier.begin());
  }
  return std::nullopt;
}

/// Proposes what followed the last time. Each of its distributions has one possible token.
class PromptLookup : public Drafter {
 public:
  PromptLookup(int longest, int vocab_size) : longest_(longest), vocab_size_(vocab_size) {}

  std::vector<std::vector<float>> propose(std::vector<int>& text, int count, const SamplingOptions&,
                                          std::mt19937&) override {
    const std::optional<int> followed = look_up(text, longest_);
    if (!followed) return {};
    std::vector<std::vector<float>> q(count, std::vector<float>(vocab_size_));
    for (int i = 0; i < count; ++i) {
      // The copy may run into itself, and what repeats goes on repeating (Ziv and Lempel 1977, section II).
      text.push_back(text[*followed + i]);
      q[i][text.back()] = 1.0f;
    }
    return q;
  }

 private:
  int longest_, vocab_size_;
};

}  // namespace staircase
