// Byte-pair encoding (Sennrich et al. 2016, section 3.2): among all neighbours that a merge could join, join
// the pair that was learnt first; among equal pairs, the leftmost. Repeat until no pair can be joined:
//
//   O n c e  ->  O n ce  ->  On ce  ->  Once
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

class MergeTable {
 public:
  struct Merge {
    int rank;   ///< a lower rank was learnt earlier
    int token;  ///< the token that the pair becomes
  };

  explicit MergeTable(const std::vector<TokenizerDescription::Merge>& merges);

  const Merge* find(int left, int right) const {
    const std::uint64_t pair = key(left, right);
    for (std::size_t i = first_place(pair);; i = (i + 1) % places_.size()) {
      if (places_[i].pair == pair) return &places_[i].merge;
      if (places_[i].pair == kFree) return nullptr;
    }
  }

 private:
  // Open addressing: a pair is at the position of its hash or, if that is taken, soon after. Encoding spends
  // most of its time here. A look-up touches one cache line, while std::unordered_map touches three.
  struct Place {
    std::uint64_t pair;
    Merge merge;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  static std::uint64_t key(int left, int right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  std::size_t first_place(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15u) >> shift_);
  }

  std::vector<Place> places_;  // a power of two in number, at least half of them free
  int shift_;                  // leaves as many bits as an index needs
};

/// Merges the pieces of one text. The pieces share one Merger, which reuses its memory.
class Merger {
 public:
  explicit Merger(const MergeTable& table) : table_(table) {}

  /// Merges the symbols of a piece and appends the resulting tokens to `tokens`. Trying all neighbours after
  /// every merge would take quadratic time; a queue of the pairs that can be joined makes it O(n log n).
  void merge(std::span<const int> symbols, std::vector<int>& tokens);

 private:
  static constexpr int kNone = -1;

  struct Symbol {
    int token;  ///< kNone if it is now part of the symbol before it
    int previous;
    int next;
  };
  using Candidate = std::pair<int, int>;  // rank, then the left symbol: the order in which pairs are joined

  const MergeTable::Merge* merge_at(int left) const;
  void enqueue(int left);
  void join(int left, int token);

  const MergeTable& table_;
  std::vector<Symbol> symbols_;  // a linked list; the first symbol is never merged away
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

}  // namespace staircase
