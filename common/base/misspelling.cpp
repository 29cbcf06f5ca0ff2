#include "common/base/misspelling.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace staircase {

namespace {

/// The number of characters to insert, delete or replace to get from one word to the other (Levenshtein
/// 1966).
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t(0));
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] != to[j]);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, replaced}));
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::size_t> wrong_letters(const std::string& name, const std::string& known) {
  const auto plain = [](std::string word) {
    std::erase_if(word, [](char c) { return c == '_' || c == '-' || c == ' '; });
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
    return word;
  };
  const std::string one = plain(name), other = plain(known);
  if (one == other) return 0;
  // The distance is never smaller than the difference in length.
  if (one.size() < 4 || one.size() > other.size() + 2 || other.size() > one.size() + 2) return {};
  const std::size_t wrong = distance(one, other);
  return wrong <= (other.size() < 8 ? 1 : 2) ? std::optional(wrong) : std::nullopt;
}

}  // namespace staircase
