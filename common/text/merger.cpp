#include "common/text/merger.h"

#include <bit>

namespace staircase {

MergeTable::MergeTable(const std::vector<TokenizerDescription::Merge>& merges) {
  const int bits = std::bit_width(2 * merges.size() + 1);
  shift_ = 64 - bits;
  places_.assign(std::size_t{1} << bits, {kFree, {}});
  for (const auto& [left, right, token, rank] : merges) {
    const std::uint64_t pair = key(left, right);
    std::size_t i = first_place(pair);
    while (places_[i].pair != kFree) i = (i + 1) % places_.size();
    places_[i] = {pair, {rank, token}};
  }
}

void Merger::merge(std::span<const int> symbols, std::vector<int>& tokens) {
  const int length = static_cast<int>(symbols.size());
  if (length == 1) return tokens.push_back(symbols.front());
  symbols_.resize(symbols.size());
  for (int i = 0; i < length; ++i) symbols_[i] = {symbols[i], i - 1, i + 1 < length ? i + 1 : kNone};
  for (int i = 0; i < length; ++i) enqueue(i);

  while (!queue_.empty()) {
    const auto [rank, left] = queue_.top();
    queue_.pop();
    // A neighbour may have been merged since, so this pair may have changed or disappeared.
    const MergeTable::Merge* merge = merge_at(left);
    if (!merge || merge->rank != rank) continue;
    join(left, merge->token);
    enqueue(left);
    enqueue(symbols_[left].previous);
  }
  for (int i = 0; i != kNone && i < length; i = symbols_[i].next) tokens.push_back(symbols_[i].token);
}

const MergeTable::Merge* Merger::merge_at(int left) const {
  if (left == kNone || symbols_[left].token == kNone || symbols_[left].next == kNone) return nullptr;
  return table_.find(symbols_[left].token, symbols_[symbols_[left].next].token);
}

void Merger::enqueue(int left) {
  if (const MergeTable::Merge* merge = merge_at(left)) queue_.push({merge->rank, left});
}

void Merger::join(int left, int token) {
  Symbol& right = symbols_[symbols_[left].next];
  symbols_[left].token = token;
  symbols_[left].next = right.next;
  if (right.next != kNone) symbols_[right.next].previous = left;
  right.token = kNone;
}

}  // namespace staircase
