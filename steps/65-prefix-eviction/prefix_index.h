// Finds full blocks by their own tokens and all tokens before them. block_pool.h chooses the block to evict.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace staircase {

/// A block's key consists of the previous block's id, or 0, and its own tokens. The id identifies all tokens
/// up to there, so blocks with the same key hold the same keys and values.
class PrefixIndex {
 public:
  explicit PrefixIndex(int n_blocks) : entries_(n_blocks) {}

  std::optional<int> find(long before, std::span<const int> tokens) const {
    const auto known = blocks_.find({before, {tokens.begin(), tokens.end()}});
    if (known == blocks_.end()) return std::nullopt;
    return known->second;
  }

  /// Makes a block findable, unless another block has its key. Returns the id of the block with this key.
  long insert(long before, std::span<const int> tokens, int block) {
    const auto [known, is_new] = blocks_.try_emplace({before, {tokens.begin(), tokens.end()}}, block);
    if (is_new) entries_[block] = {++last_id_, known};
    return id(known->second);
  }

  /// The id of a block; 0 if the block cannot be found.
  long id(int block) const { return entries_[block].id; }

  void erase(int block) {
    if (id(block) > 0) blocks_.erase(entries_[block].place);
    entries_[block] = {};
  }

 private:
  using Blocks = std::map<std::pair<long, std::vector<int>>, int>;
  struct Entry {
    long id = 0;  // never reused
    Blocks::iterator place = {};
  };

  Blocks blocks_;
  std::vector<Entry> entries_;  // of each block
  long last_id_ = 0;
};

}  // namespace staircase
