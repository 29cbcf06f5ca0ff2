// Drafts that a text gives itself, for schedulers: step 21 teaches the look-up.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "prompt_lookup.h"

namespace staircase {

/// What followed the last time that the text had the tokens at its end: as many tokens as the options allow,
/// `most` at most, or none if they are new.
inline std::vector<int> copied_tokens(std::span<const int> text, const LookupOptions& options, int most) {
  const std::optional<int> followed = look_up(text, options.ngram);
  const int count = followed ? std::min(options.num_tokens.value_or(0), most) : 0;
  std::vector<int> copied;
  for (int i = 0; i < count; ++i) {
    // The copy may run into itself.
    const auto from = static_cast<std::size_t>(*followed + i);
    copied.push_back(from < text.size() ? text[from] : copied[from - text.size()]);
  }
  return copied;
}

}  // namespace staircase
