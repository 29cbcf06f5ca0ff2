// The CPU as a device. Each operation is in the file named after it, query_key_value in linear.cpp; they
// share the threads of thread_team.h and the register tile of tile-inl.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/thread_team.h"
#include "kernels/device.h"
#include "kernels/platform.h"

namespace staircase {

/// Weights are kept in panels of 64 output columns: packed[out / 64][in][out % 64], the last panel padded
/// with zeros. A tile of tile-inl.h takes the whole width if it can, so it reads memory from front to back as
/// one stream, which the processor prefetches best. 64 floats are four registers of AVX-512, eight of AVX2.
constexpr std::int64_t kPanel = 64;

/// In bfloat16, two neighbours of `in` are interleaved, packed[out / 64][in / 2][out % 64][in % 2], since the
/// processor multiplies them as a pair (bfloat16_tile.h); `in` is padded to an even number with zeros.
constexpr std::int64_t kPair = 2;

/// The index of column `out` of row `in` in a panel, from its first element, if this many neighbouring rows
/// are interleaved.
template <std::int64_t kInterleaved>
constexpr std::int64_t place_in_panel(std::int64_t in, std::int64_t out) {
  return in / kInterleaved * kInterleaved * kPanel + out * kInterleaved + in % kInterleaved;
}

/// The threads divide the columns of a product in halves of a panel.
constexpr std::int64_t kHalfPanel = 32;

/// How far ahead weights, keys and values are prefetched. By itself, the processor stops prefetching at the
/// end of a page, and does not reach far enough while it is busy with the rows of a tile. Prefetching too
/// early costs time as well: an EPYC is best at 8 KB, a Xeon at 3 KB, where 8 KB slow one token of float16
/// down by a quarter.
#if defined(__x86_64__)
inline const bool kIsIntel = __builtin_cpu_is("intel");
#else
constexpr bool kIsIntel = false;
#endif
inline const std::int64_t kBytesAhead = kIsIntel ? 3072 : 8192;

/// Tiles of rows that go down a panel together: the first one brings the weights into the first-level cache,
/// where the second one finds them, so memory would idle meanwhile. Therefore both also prefetch what is
/// kBytesFarAhead, into the next cache: each half of the lines, so neither is delayed more than the other.
///
/// If a panel serves tile after tile, memory would idle from the second tile on. Then kNext prefetches a line
/// of the next panel at each step, so after four tiles all of it is in flight.
enum class TileRole { kAlone, kFirst, kSecond, kNext };
constexpr std::int64_t kBytesFarAhead = 16384;

/// A single row on a Xeon likewise prefetches what is this far ahead, into the second-level cache.
constexpr std::int64_t kBytesFarAheadOfRow = 24576;

/// Up to this many elements of a row or a few are finished before another thread is woken.
constexpr std::int64_t kFewElements = 8192;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// That number as rows of such a width, at least one.
constexpr std::int64_t few_rows(std::int64_t width) {
  return divide_up(kFewElements, width);
}

/// From this number of new tokens on, packing the keys and values of a sequence pays off, and a free thread
/// takes kTileQueries of a head, or more by matrices (bfloat16_attention.h). With fewer, it takes a head.
constexpr std::int64_t kManyQueries = 16;
constexpr std::int64_t kTileQueries = 6;

/// Without packing, up to this many queries that share keys and values read them together. Each number of
/// them has its own code, in three types. A page loads this code, so a browser has less of it.
#ifdef __wasm__
constexpr std::int64_t kMostQueries = 4;
#else
constexpr std::int64_t kMostQueries = 8;
#endif

/// `normalize` for one row, or `add_normalized`, on the thread that calls it. The norm has a kind.
void normalize_row(const float* x, const Norm& norm, std::int64_t width, float* out, bool adds = false);

/// Where head 0 of one token belongs.
struct TokenPlaces {
  float* query;
  std::int64_t key_value;  ///< the index of its first element among the keys, and among the values
};

/// Those of all tokens of a batch.
std::vector<TokenPlaces> places_of(const Batch& batch, const Tensor& queries, const KeysValues& keys_values);

/// The blocks of a row, from its first position on; without a block table, the row itself, whose number is
/// `row`.
inline const std::int32_t* blocks_of(const KeysValues& keys_values, const std::int32_t& row) {
  const Tensor& blocks = keys_values.blocks;
  return blocks.size() == 0 ? &row : blocks.data<std::int32_t>() + row * blocks.dim(1);
}

/// The keys and values of one head of one sequence, from position `first` on. In a paged cache a block begins
/// there.
struct HeadOfCache {
  const KeysValues& keys_values;
  std::int32_t row;
  std::int64_t head;
  std::int64_t first = 0;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : team_(threads) {}

  std::string description() const override;

  Tensor allocate(DType dtype, const Shape& shape) override;
  void copy_from_host(std::span<const std::int32_t> source, Tensor& destination) override;
  void copy_to_host(const Tensor& source, std::span<std::byte> destination) override;
  std::span<const float> to_host(const Tensor& source, Tensor& memory) override;
  Tensor load(const HostArray& array) override;
  Weight load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) override;
  DType operand_dtype(std::int64_t rows, DType weights) const override;
  bool keeps(DType dtype, std::int64_t head_size) const override {
    return is_quantized(dtype) ? head_size % head_multiple(dtype) == 0 : Device::keeps(dtype, head_size);
  }

  void embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                 Tensor& out) override;
  void normalize(const Tensor& x, const Norm& norm, Tensor& out) override;
  void add_normalized(const Tensor& x, const Norm& norm, Tensor& out) override;
  void linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias, Epilogue epilogue,
              Tensor& out) override;
  void linear_groups(const Tensor& x, std::span<const std::int64_t> firsts,
                     std::span<const Weight* const> weights, Epilogue epilogue, Tensor& out) override;
  /// With few rows, starting the threads and waiting for them takes a while beside a product.
  bool joins_groups(std::int64_t rows) const override { return rows <= kJoinedRows; }
  void add_low_rank(const Tensor& x, const Tensor& adapters, const LowRank& change, Tensor& out) override;
  void activate(const Tensor& x, Epilogue epilogue, Tensor& out) override;
  void query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                       const Tensor& bias, Tensor& queries, KeysValues& keys_values) override;
  void split_heads(const Batch& batch, const Tensor& projected, const HeadRule& rule, Tensor& queries,
                   KeysValues& keys_values) override;
  void attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                 Tensor& out) override;
  void gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) override;
  void choose_experts(const Tensor& scores, RouterSoftmax softmax, Tensor& chosen, Tensor& shares) override;
  void combine_rows(const Tensor& x, const Tensor& places, const Tensor& shares, Epilogue epilogue,
                    Tensor& out) override;
  using Device::argmax;
  void argmax(const Tensor& x, Tensor& out, Batch* batch) override;
  void k_largest(const Tensor& x, std::int64_t k, Tensor& out) override;
  /// The rows are on the host, and the heap of a large k costs more than a second look at a short row.
  bool is_worth_searching(std::int64_t k, std::int64_t width) const override { return 64 * k <= width; }

 private:
  static constexpr std::int64_t kJoinedRows = 32;

  void do_copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                         std::int64_t to_first) override;

  float* scratch(std::int64_t floats) { return grown(scratch_, floats); }

  /// Calls body(rows) for a few rows of x at a time, until threads have taken all.
  template <typename Body>
  void each_few_rows(const Tensor& x, const Body& body) {
    const std::int64_t rows = x.dim(0), few = few_rows(x.dim(1));
    parallel_ranges(team_, divide_up(rows, few), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) body(IndexRange{i * few, std::min((i + 1) * few, rows)});
    });
  }

  void normalize_rows(const Tensor& x, const Norm& norm, Tensor& out, bool adds);

  /// norm(x) [rows, in] as products with that weight take it: rounded to bfloat16 if the weights are
  /// bfloat16, and in groups of 8 bits if they are int8 or int4. It is stored in the device's memory, or is x
  /// itself if there is nothing to do.
  Tensor as_operand(const Tensor& x, const Norm& norm, const Weight& weight);

  ThreadTeam team_;
  platform::Arena weight_memory_;
  Tensor scratch_;
  Tensor normed_;     // the rows that `linear` multiplies, once their norm is applied
  Tensor projected_;  // queries, keys and values, before query_key_value rounds these to int8
};

}  // namespace staircase
