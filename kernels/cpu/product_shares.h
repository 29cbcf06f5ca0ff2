// How the threads divide a product out [rows, columns].
//
// A few rows are divided only by columns, in halves of a panel, so each weight is read once. 768 columns are
// 24 halves: eight of 16 threads get two and eight get one, which is 75 % of what 16 threads could do. With
// many rows, the rows of a panel are also divided: 512 rows into 32 blocks of 16 rows. Then 12 panels are 384
// blocks, 24 for each of 16 threads. Blocks are numbered panel by panel, and a thread gets neighbouring
// numbers. So most of its panels are whole, and few panels are read by two threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_device.h"

namespace staircase {

/// A rectangle of a product: a range of rows and a range of halves of panels.
struct ProductPiece {
  IndexRange rows, halves;
};

class ProductShares {
 public:
  ProductShares(std::int64_t rows, std::int64_t columns)
      : rows_(rows),
        halves_(divide_up(columns, kHalfPanel)),
        // An even number, so no thread gets more work than if halves were divided.
        blocks_of_panel_(rows / kCutRows * 2) {}

  /// The units that the threads divide: blocks or halves of a panel.
  std::int64_t count() const {
    return by_columns() ? halves_ : divide_up(halves_, kHalvesOfPanel) * blocks_of_panel_;
  }

  /// Calls body(piece) for the pieces that make up these units. Whole panels form one piece, with at most one
  /// piece before it and one after it.
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
  /// From this number of rows on, a panel is divided into blocks of at least half as many rows.
  static constexpr std::int64_t kCutRows = 32;
  static constexpr std::int64_t kHalvesOfPanel = kPanel / kHalfPanel;

  bool by_columns() const { return blocks_of_panel_ == 0; }

  std::int64_t rows_, halves_, blocks_of_panel_;
};

}  // namespace staircase
