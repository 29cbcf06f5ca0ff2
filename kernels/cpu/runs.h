// Where attention finds the keys and values of a head, in one piece or in the blocks of a paged cache, and
// the queries that share them.
#pragma once

#include "kernels/cpu/cpu_device.h"

namespace staircase {

/// The keys and values of one head of one sequence, in runs of adjacent positions. Every run has `length`
/// positions, except the last one, which has the rest.
template <typename T>
struct Runs {
  explicit Runs(const HeadOfCache& of)
      : blocks(blocks_of(of.keys_values, of.row)),
        length(of.keys_values.keys.dim(2)),
        head_size(of.keys_values.head_size()),
        step(of.keys_values.keys.dim(3)),
        stride(of.keys_values.keys.dim(1) * length * step),
        first_keys(of.keys_values.keys.data<T>() + of.head * length * step),
        first_values(of.keys_values.values.data<T>() + of.head * length * step) {
    if (of.keys_values.blocks.size() > 0) {
      blocks += of.first / length;
    } else {
      first_keys += of.first * step;
      first_values += of.first * step;
      length -= of.first;
    }
  }

  const T* keys(std::int64_t run) const { return first_keys + blocks[run] * stride; }
  const T* values(std::int64_t run) const { return first_values + blocks[run] * stride; }

  /// The address of one position.
  const T* key(std::int64_t p) const { return keys(p / length) + p % length * step; }
  const T* value(std::int64_t p) const { return values(p / length) + p % length * step; }

  const std::int32_t* blocks;      // a run is a block
  std::int64_t length, head_size;  // positions of a run; features of a head
  std::int64_t step;               // elements from one position to the next: more than a head's with scales
  std::int64_t stride;             // elements from one block to the next
  const T *first_keys, *first_values;  // the addresses of block 0
};

/// A few neighbouring queries of a sequence that share a head of keys and values. Queries are numbered token
/// by token, and head by head within each token: query i belongs to token i / group. Positions count from the
/// tile's first key.
struct QueryTile {
  const float* queries;  ///< [rows, head_size]
  std::int64_t rows;
  std::int64_t first;  ///< the number of the first query
  std::int64_t group;  ///< query heads per key head
  std::int64_t start;  ///< the position of token 0
  std::int64_t window = kNoWindow;

  /// The query in row `row` sees the positions first_seen(row) .. seen_by(row) - 1.
  std::int64_t seen_by(std::int64_t row) const { return start + (first + row) / group + 1; }
  std::int64_t first_seen(std::int64_t row) const { return std::max<std::int64_t>(seen_by(row) - window, 0); }
  std::int64_t seen() const { return seen_by(rows - 1); }
};

}  // namespace staircase
