// How the threads divide a product, out [rows, columns].
//
// A few rows are divided only by columns, in halves of a panel, and each weight is read once. 768 columns are
// 24 halves, so of 16 threads eight have two of them and eight have one: 75 % of what 16 could do. With many
// rows, each panel serves all in turn and is divided as well: a panel of 512 rows into 32 blocks of 16 rows
// each. The 12 panels are 384 blocks, 24 for each of 16 threads. Blocks are numbered panel by panel and a
// thread gets neighbours, so most of its panels are whole and few are read by two threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_device.h"

namespace staircase {

/// The rows of that many halves of panels: a rectangle of a product.
struct ProductPiece {
  IndexRange rows, halves;
};

class ProductShares {
 public:
  ProductShares(std::int64_t rows, std::int64_t columns)
      : rows_(rows),
        halves_(divide_up(columns, kHalfPanel)),
        // An even number, so no thread has more than it would have of halves.
        blocks_of_panel_(rows / kCutRows * 2) {}

  /// The units that the threads divide: blocks or halves of a panel.
  std::int64_t count() const {
    return by_columns() ? halves_ : divide_up(halves_, kHalvesOfPanel) * blocks_of_panel_;
  }

  /// Calls body(piece) for the pieces that make up those units: whole panels are one piece, with at most one
  /// before it and one after it.
  template <typename Body>
  void for_each_piece(IndexRange units, const Body& body) const {
    if (by_columns()) {
      body(ProductPiece{{0, rows_}, units});
      return;
    }
    const std::int64_t n = blocks_of_panel_;
    for (std::int64_t next = 0; units.first < units.last; units.first = next) {
      const std::int64_t panel = units.first / n, block = units.first % n;
      const std::int64_t panels = block == 0 ? std::max<std::int64_t>((units.last - units.first) / n, 1) : 1;
      next = std::min((panel + panels) * n, units.last);
      const std::int64_t last_block = next - (panel + panels - 1) * n;
      body(ProductPiece{{rows_ * block / n, rows_ * last_block / n},
                        {panel * kHalvesOfPanel, std::min((panel + panels) * kHalvesOfPanel, halves_)}});
    }
  }

 private:
  /// From this number of rows on, a panel is divided, into blocks of at least half as many.
  static constexpr std::int64_t kCutRows = 32;
  static constexpr std::int64_t kHalvesOfPanel = kPanel / kHalfPanel;

  bool by_columns() const { return blocks_of_panel_ == 0; }

  std::int64_t rows_, halves_, blocks_of_panel_;
};

}  // namespace staircase
