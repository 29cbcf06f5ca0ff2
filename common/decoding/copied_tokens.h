// Drafts copied from the text itself, for schedulers; step 21 teaches the look-up.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "prompt_lookup.h"

namespace staircase {

/// The `count` tokens that followed the latest earlier occurrence of the text's last `ngram` tokens, or of
/// fewer if these never occurred before. Empty if even the last token never did, or for a count of 0, which
/// costs nothing.
inline std::vector<int> copied_tokens(std::span<const int> text, int ngram, int count) {
  if (count <= 0) return {};
  const std::optional<int> followed = look_up(text, ngram);
  if (!followed) return {};
  std::vector<int> copied;
  for (int i = 0; i < count; ++i) {
    const auto from = static_cast<std::size_t>(*followed + i);  // may be one of the copied tokens
    copied.push_back(from < text.size() ? text[from] : copied[from - text.size()]);
  }
  return copied;
}

}  // namespace staircase
