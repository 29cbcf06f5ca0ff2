// The interface of a cache of keys and values, as the model and the generation loops use it. The steps about
// the cache implement it.
#pragma once

#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/device.h"

namespace staircase {

/// How much memory a cache uses, in bytes.
struct CacheUse {
  std::size_t bytes = 0;      ///< bytes held at the end
  std::size_t allocated = 0;  ///< allocated in total
  std::size_t copied = 0;     ///< bytes copied in total
};

inline CacheUse operator+(const CacheUse& a, const CacheUse& b) {
  return {a.bytes + b.bytes, a.allocated + b.allocated, a.copied + b.copied};
}

/// Keys and values of the tokens that the model has already read, for one or more rows (sequences).
class KvCache {
 public:
  virtual ~KvCache() = default;

  /// The number of positions that row `row` holds.
  virtual int length(int row) const = 0;

  /// The number of positions that have slid out of the row since it was empty. Its first entry belongs to
  /// this position of the text. PackedTokens::positions shows how a model uses the number.
  int slid(int row) const {
    return length(row) > 0 && row < std::ssize(slid_) ? slid_[static_cast<std::size_t>(row)] : 0;
  }

  /// Adds `count` positions to the row, with memory for their keys and values. The model fills them; it has
  /// already checked that they fit into its context.
  virtual void append(int row, int count) = 0;

  /// The most positions that one call of `append` may add. The model splits a longer input into several
  /// passes.
  virtual int most_at_once() const { return std::numeric_limits<int>::max(); }

  /// The keys and values of one layer, [n_rows, n_kv_head, capacity, head_size] each; in a paged cache
  /// [n_blocks, n_kv_head, block_size, head_size]. Valid until the next append.
  virtual KeysValues layer(int index) = 0;

  /// Removes everything from position `length` on, for example after a rejected draft. A cache whose rows
  /// share memory may keep fewer positions: `length(row)` returns how many, and the model recomputes the
  /// others.
  virtual void truncate(int row, int length) = 0;

  /// Removes the first `count` positions of a row and moves the others to its start. A cache that cannot move
  /// positions removes all of them.
  virtual void slide(int row, int /*count*/) { truncate(row, 0); }

  /// Copies row `from` to row `to`. A cache that cannot copy rows clears row `to`, and the model recomputes
  /// its positions.
  virtual void copy_row(int /*from*/, int to) { truncate(to, 0); }

  /// The blocks that a row holds, in the order of its positions. A cache without blocks has none.
  virtual std::vector<int> row_blocks(int /*row*/) const { return {}; }

  /// Whether the keys and values of a pass are still there in later passes.
  virtual bool keeps() const { return true; }

  /// The memory that the cache uses, for the statistics.
  virtual CacheUse use() const = 0;

  /// Called by the model before it fills an empty row.
  void begin_row(int row) { set_slid(row, 0); }

 protected:
  /// For a cache that slides rows, or copies a row that has slid.
  void set_slid(int row, int count) {
    if (row >= std::ssize(slid_)) slid_.resize(static_cast<std::size_t>(row) + 1);
    slid_[static_cast<std::size_t>(row)] = count;
  }

 private:
  std::vector<int> slid_;  // of all rows that have been filled
};

/// Stores nothing: each pass computes whole sequences from position 0.
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
