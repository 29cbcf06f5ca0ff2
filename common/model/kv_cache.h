// What the model and the loops require of a cache of keys and values. The steps about the cache implement it.
#pragma once

#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/device.h"

namespace staircase {

/// Memory of a cache of keys and values, in bytes.
struct CacheUse {
  std::size_t bytes = 0;      ///< held at the end
  std::size_t allocated = 0;  ///< allocated in total
  std::size_t copied = 0;     ///< copied from one place to another
};

inline CacheUse operator+(const CacheUse& a, const CacheUse& b) {
  return {a.bytes + b.bytes, a.allocated + b.allocated, a.copied + b.copied};
}

/// Keys and values of the tokens that the model has already seen, for one or more rows (sequences).
class KvCache {
 public:
  virtual ~KvCache() = default;

  /// Positions that row `row` holds.
  virtual int length(int row) const = 0;

  /// Positions that have slid out of that row since it was empty: its entries belong to the positions from
  /// there on. The model decides what that means: see PackedTokens.
  int slid(int row) const {
    return length(row) > 0 && row < std::ssize(slid_) ? slid_[static_cast<std::size_t>(row)] : 0;
  }

  /// Makes room for `count` more positions in that row and counts them in. The model fills them, and has
  /// already checked that all of them fit into its context.
  virtual void append(int row, int count) = 0;

  /// The most positions that one call of `append` may add. The model computes more in several passes.
  virtual int most_at_once() const { return std::numeric_limits<int>::max(); }

  /// Keys and values of one layer, [n_rows, n_kv_head, capacity, head_size] each; of a paged cache [n_blocks,
  /// n_kv_head, block_size, head_size]. Valid until the next append.
  virtual KeysValues layer(int index) = 0;

  /// Removes everything from position `length` on: the roll-back after a rejected draft. A cache whose rows
  /// share memory may keep fewer positions: `length(row)` returns how many, and the model computes the others
  /// again.
  virtual void truncate(int row, int length) = 0;

  /// Removes the first `count` positions of a row and moves the others to its start. A cache that cannot do
  /// that removes all of them.
  virtual void slide(int row, int /*count*/) { truncate(row, 0); }

  /// Copies row `from` to row `to`. A cache that cannot do that clears row `to`, and the model computes its
  /// positions again.
  virtual void copy_row(int /*from*/, int to) { truncate(to, 0); }

  /// The blocks that a row holds, in the order of its positions. A cache without blocks has none.
  virtual std::vector<int> row_blocks(int /*row*/) const { return {}; }

  /// Whether a later pass finds what this one writes.
  virtual bool keeps() const { return true; }

  /// For the statistics.
  virtual CacheUse use() const = 0;

  /// The model calls it for an empty row before filling it.
  void begin_row(int row) { set_slid(row, 0); }

 protected:
  /// For a cache that slides, or copies a row that has slid.
  void set_slid(int row, int count) {
    if (row >= std::ssize(slid_)) slid_.resize(static_cast<std::size_t>(row) + 1);
    slid_[static_cast<std::size_t>(row)] = count;
  }

 private:
  std::vector<int> slid_;  // of the rows that have been filled
};

/// Keeps nothing: each pass computes whole texts from position 0.
class NoCache final : public KvCache {
 public:
  int length(int /*row*/) const override { return 0; }
  void append(int /*row*/, int /*count*/) override {}
  KeysValues layer(int /*index*/) override { return {}; }
  void truncate(int /*row*/, int /*length*/) override {}
  bool keeps() const override { return false; }
  CacheUse use() const override { return {}; }
};

}  // namespace staircase
