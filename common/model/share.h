// The part of a model's weights that a rank holds. It is either a part of each matrix (Shoeybi et al. 2019,
// section 3): some heads, some columns of each MLP, some tokens of the vocabulary. Or it is some whole blocks
// (Huang et al. 2019).
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/config.h"
#include "kernels/tensor.h"

namespace staircase {

/// `count` neighbouring elements of a dimension, from `first` on. The whole dimension has `whole` elements.
struct Slice {
  std::int64_t whole = 0, first = 0, count = 0;

  Slice() = default;
  Slice(std::int64_t all) : whole(all), count(all) {}
  Slice(std::int64_t whole, std::int64_t first, std::int64_t count)
      : whole(whole), first(first), count(count) {}
};

/// The part of rank `rank` if `size` ranks share `whole` elements as evenly as possible. Only the last part
/// may end inside a group of `group` elements.
Slice slice_of(std::int64_t whole, int rank, int size, std::int64_t group = 1);

struct Share {
  Slice queries;            ///< features of the queries
  std::vector<Slice> keys;  ///< features of the keys, and of the values
  Slice inner;              ///< columns of the MLP
  Slice expert_inner;       ///< columns of each expert
  Slice vocabulary;         ///< tokens
  std::int64_t tokens = 0;  ///< the most tokens that any rank holds
  bool whole = true;        ///< whether no matrix is split
  bool first = true;        ///< whether this rank adds what a sum over ranks needs once: a bias, a position
  Slice blocks;

  /// The whole model, for a single rank.
  explicit Share(const ModelConfig& config);
  /// A part of each matrix. In some types a group of weights shares a scale. Groups are not split, so that
  /// every weight has the same value as on a single rank. Throws Error if there are more ranks than heads or
  /// MLP columns, or than groups of them.
  Share(const ModelConfig& config, int rank, int size, DType dtype = DType::kFloat32);
  /// Some whole blocks. Throws Error if there are more ranks than blocks.
  static Share of_blocks(const ModelConfig& config, int rank, int size);

  /// Whether this rank holds the token embedding.
  bool has_first_block() const { return blocks.first == 0; }
  /// Whether this rank holds the last norm and the output layer.
  bool has_last_block() const { return blocks.first + blocks.count == blocks.whole; }

  /// The number of rows in this rank's token embedding. If it is split, it has one more row: zeros, for all
  /// tokens of other ranks.
  std::int64_t rows() const { return whole ? tokens : tokens + 1; }

  /// The row of a token in this rank's token embedding.
  std::int32_t row(std::int32_t token) const {
    const std::int64_t row = token - vocabulary.first;
    return static_cast<std::int32_t>(row >= 0 && row < vocabulary.count ? row : tokens);
  }

  /// The configuration of this rank's part: its own blocks, heads and columns of the MLP.
  ModelConfig part_of(ModelConfig config) const;
};

}  // namespace staircase
