// attention.cpp again, for keys and values in bfloat16, on processors that multiply in it (VDPBF16PS, see
// bfloat16_tile.h). Queries and the weights of the values are rounded to bfloat16 as well; the sums are
// float32. Only if has_bfloat16_tile().
//
// Here, too, every way to compute a query's result gives the same bits. A score is the sum of 16 chains:
// chain c adds the products of the features 2c and 2c + 1, then of those 32 further on, and so on. Chains two
// apart are added first, then neighbours, then neighbouring groups of four. A feature of the result is one
// chain in the order of the positions, two at a time.
//
// Processors that multiply matrices (TDPBF16PS) do so for both products and add in that instruction's order:
// 32 features, or 32 positions from the first one on, at a time.
#pragma once

#include <cstdint>

#include "kernels/cpu/runs.h"

namespace staircase::bfloat16 {

/// The most queries of a tile for attend_packed.
std::int64_t packed_queries();

/// Floats of memory that the two functions below need: for a tile of queries on `total` positions.
std::int64_t scratch_floats(std::int64_t head_size, std::int64_t total);

/// A tile of queries on unpacked keys and values. out [rows, head_size]. The keys of the head that is `next`
/// are prefetched after the last values.
void attend_in_place(const QueryTile& tile, const Runs<std::uint16_t>& runs, const Runs<std::uint16_t>& next,
                     float* scratch, float* out);

/// Keys into panels [total / 64, head_size / 2, 64, 2] and values into [head_size / 64, total / 2, 64, 2].
/// The head size, and the positions of the values, are padded with zeros to multiples of 32.
void pack(const Runs<std::uint16_t>& runs, std::int64_t total, std::uint16_t* packed_keys,
          std::uint16_t* packed_values);

/// attend_in_place with the keys and values that `pack` has packed. The first `skipped` of these positions,
/// whole panels, are not among those of the tile.
void attend_packed(const QueryTile& tile, std::int64_t head_size, const std::uint16_t* packed_keys,
                   const std::uint16_t* packed_values, std::int64_t total, std::int64_t skipped,
                   float* scratch, float* out);

}  // namespace staircase::bfloat16
