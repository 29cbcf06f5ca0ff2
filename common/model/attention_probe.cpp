#include "common/model/attention_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "kernels/hadamard.h"
#include "kernels/half.h"

namespace staircase {
namespace {

/// The numbers of one head from an int4 cache, with the cache's rotation undone.
std::vector<float> widened_int4(std::string_view bytes) {
  const std::int64_t head_size = head_size_of(DType::kInt4, std::ssize(bytes));
  std::vector<float> values;
  for (std::int64_t i = 0; i < head_size; ++i) {
    const std::int64_t place = i / 32 * 16 + i % 16, group = place / 8;
    const auto pair = static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(place)]);
    std::uint16_t ends[2];
    std::memcpy(ends, bytes.data() + head_size / 2 + group * 4, sizeof ends);
    const int level = i % 32 < 16 ? pair % 16 : pair / 16;
    values.push_back(float32_from_bfloat16(ends[0]) +
                     static_cast<float>(level) * float32_from_bfloat16(ends[1]));
  }
  rotate_head(values.data(), head_size);
  return values;
}

/// The numbers of one head, which `bytes` holds in the cache's type.
std::vector<float> widened(std::string_view bytes, DType dtype) {
  if (dtype == DType::kInt4) return widened_int4(bytes);
  if (dtype == DType::kInt8) {
    float scale = 0.0f;
    const std::string_view integers = bytes.substr(0, bytes.size() - sizeof scale);
    std::memcpy(&scale, bytes.data() + integers.size(), sizeof scale);
    std::vector<float> values(integers.size());
    std::ranges::transform(integers, values.begin(), [&](char value) {
      return scale * static_cast<float>(static_cast<std::int8_t>(value));
    });
    return values;
  }
  std::vector<float> values(bytes.size() / size_of(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<std::uint16_t> halves(values.size());
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  std::ranges::transform(halves, values.begin(),
                         dtype == DType::kFloat16 ? float32_from_float16 : float32_from_bfloat16);
  return values;
}

/// The keys of one row of a cache, on the host.
class RowKeys {
 public:
  /// The keys at the first `count` positions of row `row`.
  RowKeys(Device& device, const KeysValues& keys_values, std::int64_t row, std::int64_t count)
      : keys_(keys_values.keys),
        count_(count),
        block_size_(keys_.dim(2)),
        position_bytes_(static_cast<std::size_t>(keys_.dim(3)) * size_of(keys_.dtype())) {
    numbers_ = {static_cast<std::int32_t>(row)};  // without a table, a row is one block
    if (keys_values.blocks.size() > 0) {
      numbers_.resize(static_cast<std::size_t>((count + block_size_ - 1) / block_size_));
      device.copy_to_host(keys_values.blocks.rows(row, 1), std::as_writable_bytes(std::span(numbers_)));
    }
    for (const std::int32_t block : numbers_) {
      const Tensor source = keys_.rows(block, 1);
      std::string& copied = blocks_.emplace_back(source.bytes(), '\0');
      device.copy_to_host(source, std::as_writable_bytes(std::span(copied)));
    }
  }

  /// Whether a later position has overwritten this one, which happens in a ring.
  bool is_overwritten(std::int64_t position) const {
    const auto block = [&](std::int64_t p) { return numbers_[static_cast<std::size_t>(p / block_size_)]; };
    for (std::int64_t later = position + block_size_; later < count_; later += block_size_) {
      if (block(later) == block(position)) return true;
    }
    return false;
  }

  /// The bytes of a head's key at a position.
  std::string_view at(std::int64_t head, std::int64_t position) const {
    const std::int64_t place = head * block_size_ + position % block_size_;
    return std::string_view(blocks_[static_cast<std::size_t>(position / block_size_)])
        .substr(static_cast<std::size_t>(place) * position_bytes_, position_bytes_);
  }

  /// A head's key at a position, [head_size].
  std::vector<float> values(std::int64_t head, std::int64_t position) const {
    return widened(at(head, position), keys_.dtype());
  }

  /// A hash of the keys of all heads at a position.
  std::size_t hash(std::int64_t position) const {
    std::string all;
    for (std::int64_t head = 0; head < keys_.dim(1); ++head) all += at(head, position);
    return std::hash<std::string>()(all);
  }

 private:
  Tensor keys_;
  std::int64_t count_;
  std::int64_t block_size_;
  std::size_t position_bytes_;
  std::vector<std::int32_t> numbers_;  // the numbers of the row's blocks
  std::vector<std::string> blocks_;    // [n_head, block_size, head_size] each
};

}  // namespace

void AttentionProbe::begin(std::span<const std::span<const int>> sequences,
                           std::span<const std::int32_t> starts) {
  sequences_ = sequences;
  starts_ = starts;
}

void AttentionProbe::compute(Device& device, const Tensor& queries, const KeysValues& keys_values) {
  const auto head_size = static_cast<std::size_t>(keys_values.head_size());
  const auto n_embd = static_cast<std::size_t>(queries.dim(1));
  // Neighbouring query heads share a key head.
  const std::int64_t group = queries.dim(1) / (keys_values.keys.dim(1) * keys_values.head_size());
  std::vector<float> all_queries(static_cast<std::size_t>(queries.size()));
  device.copy_to_host(queries, all_queries);
  std::span<const float> rest(all_queries);

  weights_.assign(sequences_.size(), {});
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    if (sequences_[s].empty()) continue;
    const auto start = static_cast<std::size_t>(starts_[s]), end = start + sequences_[s].size();
    const RowKeys row(device, keys_values, static_cast<std::int64_t>(s), static_cast<std::int64_t>(end));
    AttentionWeights& seen = weights_[s];
    std::vector<std::vector<float>> keys;
    for (std::size_t p = 0; p < end; ++p) {
      const auto position = static_cast<std::int64_t>(p);
      keys.push_back(row.values(head_.head / group, position));
      // A cache may move positions and share them between rows, but it never changes a key. So a key
      // identifies its token.
      const std::size_t hash = row.hash(position);
      if (p >= start) known_[hash] = sequences_[s][p - start];
      const auto known = known_.find(hash);
      const bool is_known = known != known_.end() && !row.is_overwritten(position);
      seen.tokens.push_back(is_known ? known->second : -1);
    }
    for (std::size_t seeing = start + 1; seeing <= end; ++seeing, rest = rest.subspan(n_embd)) {
      const std::span<const float> query =
          rest.subspan(static_cast<std::size_t>(head_.head) * head_size, head_size);
      std::vector<float>& weights = seen.rows.emplace_back();
      const auto window = static_cast<std::size_t>(keys_values.window);
      const std::size_t first = seeing > window ? seeing - window : 0;
      for (std::size_t p = first; p < seeing; ++p) {
        const float score = std::inner_product(query.begin(), query.end(), keys[p].begin(), 0.0f);
        weights.push_back(score / std::sqrt(static_cast<float>(head_size)));
      }
      if (!softmax_in_place(weights)) {
        throw Error("head {} of layer {} computed a non-finite score: the model's weights are broken",
                    head_.head, head_.layer);
      }
      weights.insert(weights.begin(), first, 0.0f);
    }
  }
}

}  // namespace staircase
