// Which part of a model's weights a rank has. Either a part of each matrix (Shoeybi et al. 2019, section 3):
// some heads, some columns of each MLP, some tokens of the vocabulary. Or some blocks (Huang et al. 2019).
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/config.h"

namespace staircase {

/// `count` neighbours of a dimension, from `first` on; it has `whole` in the file.
struct Slice {
  std::int64_t whole = 0, first = 0, count = 0;

  Slice() = default;
  Slice(std::int64_t all) : whole(all), count(all) {}
  Slice(std::int64_t whole, std::int64_t first, std::int64_t count)
      : whole(whole), first(first), count(count) {}
};

/// The part of `rank` if `size` ranks share `whole` elements as evenly as they can. No part but the last ends
/// inside a group of `group` elements.
Slice slice_of(std::int64_t whole, int rank, int size, std::int64_t group = 1);

struct Share {
  Slice queries;            ///< of the queries' features
  std::vector<Slice> keys;  ///< of the keys' features, and of the values'
  Slice inner;              ///< of the MLP's columns
  Slice vocabulary;         ///< the tokens
  std::int64_t tokens = 0;  ///< places for tokens; the most that a rank has
  bool whole = true;        ///< no matrix is cut
  bool first = true;        ///< the rank adds what a sum over all ranks has once: a bias, a position
  Slice blocks;

  /// Of a model that one rank has whole.
  explicit Share(const ModelConfig& config);
  /// Throws Error for more ranks than heads or columns of the MLP.
  Share(const ModelConfig& config, int rank, int size);
  /// Whole blocks. Throws Error for more ranks than blocks.
  static Share of_blocks(const ModelConfig& config, int rank, int size);

  /// Whether the token embedding belongs to it.
  bool has_first_block() const { return blocks.first == 0; }
  /// Whether the last norm and the output layer belong to it.
  bool has_last_block() const { return blocks.first + blocks.count == blocks.whole; }

  /// Rows of a rank's token embedding. One more than tokens, if it is cut: zeros, for all tokens of others.
  std::int64_t rows() const { return whole ? tokens : tokens + 1; }

  /// The row of a token.
  std::int32_t row(std::int32_t token) const {
    const std::int64_t row = token - vocabulary.first;
    return static_cast<std::int32_t>(row >= 0 && row < vocabulary.count ? row : tokens);
  }

  /// What the rank computes: its own blocks, its own heads, and its own columns of the MLP.
  ModelConfig part_of(ModelConfig config) const;
};

}  // namespace staircase
