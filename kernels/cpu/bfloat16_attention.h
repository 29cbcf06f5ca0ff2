// The attention of attention.cpp for keys and values in bfloat16, on processors that multiply bfloat16
// (VDPBF16PS, see bfloat16_tile.h). Queries and the weights of the values are also rounded to bfloat16; the
// sums are float32. Call these functions only if multiplies() the type of the cache.
//
// As in attention.cpp, every way to compute a query's result gives the same bits. A score is the sum of 16
// chains: chain c adds the products of the features 2c and 2c + 1, then of the features 32 later, and so on.
// Chains two apart are added first, then neighbours, then neighbouring groups of four. Each feature of the
// result is one chain in the order of the positions, two at a time.
//
// On processors that multiply matrices (TDPBF16PS), both products have that instruction's order of addition:
// 32 features, or 32 positions from the first position on, at a time. Vectors add the values of a few queries
// in this order: interleaving values for matrices would take longer, and memory would be idle meanwhile.
// There, keys and values of an int8 or int4 cache are multiplied in the same way. The integers of int8 are
// exact in bfloat16; their scales multiply the scores, and the weights before these are rounded. Numbers of
// int4 are rounded.
#pragma once

#include <cstdint>

#include "kernels/cpu/runs.h"

namespace staircase::bfloat16 {

/// Whether these functions take keys and values of this type on this processor.
bool multiplies(DType dtype);

/// The maximum number of queries per tile in attend_packed.
std::int64_t packed_queries();

/// How many floats the scores of `rows` queries on `total` positions take. Weights take their place.
std::int64_t score_floats(std::int64_t rows, std::int64_t total);

/// How many more floats of scratch memory a thread needs.
std::int64_t scratch_floats(std::int64_t head_size);

/// Attention for a tile of queries on unpacked keys and values, in three parts. First the scores of the
/// positions `first` .. `last` - 1. `first` is a multiple of 16, and so is `last`, except at the end. After
/// the keys, values are prefetched.
void score_in_place(const QueryTile& tile, const HeadOfCache& head, IndexRange positions, float* scores,
                    float* scratch);

/// Then each query's weights from its scores. Returns 1 / the sum of the weights of query `row`.
float weigh_in_place(const QueryTile& tile, const HeadOfCache& head, std::int64_t row, float* scores);

/// Then the means of the features `features.first` .. `features.last` - 1 of the values, both multiples of
/// 32, except at the end: out [rows, head_size]. After the last values, the keys of the `next` head are
/// prefetched.
void add_in_place(const QueryTile& tile, const HeadOfCache& head, const HeadOfCache& next,
                  IndexRange features, const float* inverse_sums, float* scores, float* scratch, float* out);

/// Packs keys into panels [total / 64, head_size / 2, 64, 2] and values into [head_size / 64, total / 2, 64,
/// 2]. The head size, and the positions of the values, are padded with zeros to multiples of 32. The keys'
/// scales follow after total rounded up to 64 keys, and the values' scales after as many values.
void pack(const HeadOfCache& head, std::int64_t total, std::uint16_t* packed_keys,
          std::uint16_t* packed_values);

/// attend_in_place with keys and values from `pack`. The tile does not count the first `skipped` of the
/// packed positions, which are whole panels.
void attend_packed(const QueryTile& tile, const HeadOfCache& head, std::uint16_t* packed_keys,
                   std::uint16_t* packed_values, std::int64_t total, std::int64_t skipped, float* scores,
                   float* scratch, float* out);

}  // namespace staircase::bfloat16
