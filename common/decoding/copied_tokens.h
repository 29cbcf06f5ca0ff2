// Drafts that a text gives itself, for schedulers: step 21 teaches the look-up.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "prompt_lookup.h"

namespace staircase {

/// The `count` tokens that followed the last time that the text had the tokens at its end, the longest
/// `ngram` of them that it had before. None if it never had its last token, or for a count of 0, which costs
/// nothing.
inline std::vector<int> copied_tokens(std::span<const int> text, int ngram, int count) {
  if (count <= 0) return {};
  const std::optional<int> followed = look_up(text, ngram);
  if (!followed) return {};
  std::vector<int> copied;
  for (int i = 0; i < count; ++i) {
    const auto from = static_cast<std::size_t>(*followed + i);  // the copy may run into itself
    copied.push_back(from < text.size() ? text[from] : copied[from - text.size()]);
  }
  return copied;
}

}  // namespace staircase
