// The CPU as a device. Each operation is in the file named after it, except query_key_value, which is in
// linear.cpp. They share the threads of thread_team.h and the register tile of tile-inl.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/thread_team.h"
#include "kernels/device.h"
#include "kernels/platform.h"

namespace staircase {

/// Weights are kept in panels of 64 output columns: packed[out / 64][in][out % 64], the last panel padded
/// with zeros. A tile of tile-inl.h spans the whole width if it can, so it reads memory from front to back as
/// one stream, which the processor prefetches best. 64 floats fill four registers of AVX-512 or eight of
/// AVX2.
constexpr std::int64_t kPanel = 64;

/// In bfloat16, two neighbouring inputs are interleaved, packed[out / 64][in / 2][out % 64][in % 2], because
/// the processor multiplies them as a pair (bfloat16_tile.h). An odd number of inputs is padded with zeros.
constexpr std::int64_t kPair = 2;

/// The index of row `in`, column `out` within a panel, if kInterleaved neighbouring rows are interleaved.
template <std::int64_t kInterleaved>
constexpr std::int64_t place_in_panel(std::int64_t in, std::int64_t out) {
  return in / kInterleaved * kInterleaved * kPanel + out * kInterleaved + in % kInterleaved;
}

/// The threads divide the columns of a product in halves of a panel.
constexpr std::int64_t kHalfPanel = 32;

/// How far ahead weights, keys and values are prefetched. The processor's own prefetching stops at the end of
/// a page, and does not reach far enough while the processor is busy with the rows of a tile. Prefetching too
/// early also costs time: 8 KB is best on an EPYC and 3 KB on a Xeon, where 8 KB would make a float16 token a
/// quarter slower.
#if defined(__x86_64__)
inline const bool kIsIntel = __builtin_cpu_is("intel");
#else
constexpr bool kIsIntel = false;
#endif
inline const std::int64_t kBytesAhead = kIsIntel ? 3072 : 8192;

/// The role of a tile among several tiles of rows that go down a panel together. The first tile brings the
/// weights into the first-level cache, and the second finds them there, so memory would be idle meanwhile.
/// Therefore both also prefetch weights kBytesFarAhead into the second-level cache. Each prefetches half of
/// the lines, so neither is delayed more than the other.
///
/// If a panel serves tile after tile, memory would be idle from the second tile on. A tile with the role
/// kNext therefore prefetches a line of the next panel at each step, so after four tiles the whole panel is
/// in flight.
enum class TileRole { kAlone, kFirst, kSecond, kNext };
constexpr std::int64_t kBytesFarAhead = 16384;

/// With a single row on a Xeon, weights this far ahead are prefetched into the second-level cache.
constexpr std::int64_t kBytesFarAheadOfRow = 24576;

/// A share of rows has at least this many elements: waking another thread for fewer would not pay off.
constexpr std::int64_t kFewElements = 8192;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// The fewest rows of this width that have at least kFewElements elements.
constexpr std::int64_t few_rows(std::int64_t width) {
  return divide_up(kFewElements, width);
}

/// From this number of new tokens on, packing the keys and values of a sequence pays off. A free thread then
/// claims kTileQueries queries of a head, or more with matrix instructions (bfloat16_attention.h). With fewer
/// tokens, it claims a whole head.
constexpr std::int64_t kManyQueries = 16;
constexpr std::int64_t kTileQueries = 6;

/// Without packing, up to this many queries that share keys and values read them together. Each number of
/// queries is compiled separately for each cache type. A web page must download this code, so in a browser
/// there is less of it.
#ifdef __wasm__
constexpr std::int64_t kMostQueries = 4;
#else
constexpr std::int64_t kMostQueries = 8;
#endif

/// Computes `normalize`, or `add_normalized` if `adds`, for one row on the calling thread. The norm's kind is
/// not kNone.
void normalize_row(const float* x, const Norm& norm, std::int64_t width, float* out, bool adds = false);

/// Where head 0 of one token is stored.
struct TokenPlaces {
  float* query;
  std::int64_t key_value;  ///< the index of its first element in the keys, and in the values
};

/// Returns the places of all tokens of a batch.
std::vector<TokenPlaces> places_of(const Batch& batch, const Tensor& queries, const KeysValues& keys_values);

/// Returns the numbers of a row's blocks, in the order of its positions. Without a block table the row is its
/// only block.
inline const std::int32_t* blocks_of(const KeysValues& keys_values, const std::int32_t& row) {
  const Tensor& blocks = keys_values.blocks;
  return blocks.size() == 0 ? &row : blocks.data<std::int32_t>() + row * blocks.dim(1);
}

/// A byte of a head in an int4 cache (KeysValues in device.h).
enum class Int4Byte : std::uint8_t {};

/// The keys and values of one head of one sequence, from position `first` on. In a paged cache, `first` is
/// the first position of a block.
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

  void embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                 Tensor& out) override;
  void normalize(const Tensor& x, const Norm& norm, Tensor& out) override;
  void add_normalized(const Tensor& x, const Norm& norm, Tensor& out) override;
  void linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias, Epilogue epilogue,
              Tensor& out) override;
  void linear_groups(const Tensor& x, std::span<const std::int64_t> firsts,
                     std::span<const Weight* const> weights, Epilogue epilogue, Tensor& out) override;
  /// With few rows, starting the threads and waiting for them takes a long time compared with one product.
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
  /// The rows are already on the host. If k is large for the width, the heap of k_largest costs more than
  /// searching the whole row.
  bool is_worth_searching(std::int64_t k, std::int64_t width) const override { return 64 * k <= width; }

 private:
  static constexpr std::int64_t kJoinedRows = 32;

  void do_copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                         std::int64_t to_first) override;

  float* scratch(std::int64_t floats) { return grown(scratch_, floats); }

  /// Calls body(rows) for a few rows of x at a time, on all threads.
  template <typename Body>
  void each_few_rows(const Tensor& x, const Body& body) {
    const std::int64_t rows = x.dim(0), few = few_rows(x.dim(1));
    parallel_ranges(team_, divide_up(rows, few), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) body(IndexRange{i * few, std::min((i + 1) * few, rows)});
    });
  }

  void normalize_rows(const Tensor& x, const Norm& norm, Tensor& out, bool adds);

  /// Returns norm(x) [rows, in] as a product with this weight needs it: rounded to bfloat16 for bfloat16
  /// weights, and in groups of 8 bits for int8 or int4. The result is in the device's scratch memory, or is x
  /// itself if nothing has to be done.
  Tensor as_operand(const Tensor& x, const Norm& norm, const Weight& weight);

  ThreadTeam team_;
  platform::Arena weight_memory_;
  Tensor scratch_;
  Tensor normed_;     // the rows that `linear` multiplies, after their norm
  Tensor projected_;  // queries, keys and values before query_key_value quantizes keys and values
};

}  // namespace staircase
