#include "common/model/share.h"

#include <algorithm>
#include <numeric>

#include "common/base/error.h"
#include "kernels/tensor.h"

namespace staircase {
namespace {

/// The keys of the query heads first .. first + count - 1. Query heads that share a key head may go to
/// different ranks; each of these ranks then has a copy of the key head. If the groups of a rank differ in
/// size, each of its query heads gets its own copy.
std::vector<Slice> keys_of(const ModelConfig& config, std::int64_t first, std::int64_t count) {
  const std::int64_t whole = config.key_width(), size = config.head_size,
                     group = config.n_head / config.n_kv_head;
  const std::int64_t first_key = first / group, last_key = (first + count - 1) / group;
  if (first_key == last_key || (first % group == 0 && count % group == 0)) {
    return {{whole, first_key * size, (last_key + 1 - first_key) * size}};
  }
  std::vector<Slice> keys;
  for (std::int64_t head = first; head < first + count; ++head) {
    keys.push_back({whole, head / group * size, size});
  }
  return keys;
}

}  // namespace

Slice slice_of(std::int64_t whole, int rank, int size, std::int64_t group) {
  const std::int64_t groups = (whole + group - 1) / group;
  const auto start = [&](int number) { return std::min(groups * number / size * group, whole); };
  return {whole, start(rank), start(rank + 1) - start(rank)};
}

Share::Share(const ModelConfig& config)
    : queries(config.query_width()),
      keys{config.key_width()},
      inner(config.n_inner),
      expert_inner(config.expert_inner),
      vocabulary(config.vocab_size),
      tokens(config.vocab_size),
      blocks(config.n_layer) {}

Share::Share(const ModelConfig& config, int rank, int size, DType dtype) : Share(config) {
  if (size == 1) return;
  const std::int64_t group = dtype == DType::kInt8 ? kGroup : dtype == DType::kInt4 ? kInt4Group : 1;
  const std::int64_t heads_together = group / std::gcd(group, config.head_size);  // they fill whole groups
  const int columns = config.n_experts > 0 ? std::min(config.n_inner, config.expert_inner) : config.n_inner;
  if (size > std::min(config.n_head, columns)) {
    throw Error("the model has {} heads and {} columns of an MLP; {} ranks do not fit", config.n_head,
                columns, size);
  }
  const auto parts = [](std::int64_t whole, std::int64_t unit) { return (whole + unit - 1) / unit; };
  if (const std::int64_t most = std::min(parts(config.n_head, heads_together), parts(columns, group));
      size > most) {
    throw Error(
        "{} ranks do not fit: in {}, {} weights share a scale, so the {} heads of size {} and {} columns of "
        "an MLP can be cut into at most {} parts",
        size, to_string(dtype), group, config.n_head, config.head_size, columns, most);
  }
  const Slice heads = slice_of(config.n_head, rank, size, heads_together);
  queries = {config.query_width(), heads.first * config.head_size, heads.count * config.head_size};
  keys = keys_of(config, heads.first, heads.count);
  const auto part = [&](int width) {
    return slice_of(width, rank, size, width < kGroup * size ? group : kGroup);
  };
  inner = part(config.n_inner);
  expert_inner = part(config.expert_inner);
  tokens = (config.vocab_size + size - 1) / size;
  const std::int64_t token = std::min<std::int64_t>(rank * tokens, config.vocab_size);
  vocabulary = {config.vocab_size, token, std::min(tokens, config.vocab_size - token)};
  whole = false;
  first = rank == 0;
}

Share Share::of_blocks(const ModelConfig& config, int rank, int size) {
  if (size > config.n_layer) {
    throw Error("the model has {} blocks; {} ranks do not fit", config.n_layer, size);
  }
  Share share(config);
  share.blocks = slice_of(config.n_layer, rank, size);
  return share;
}

ModelConfig Share::part_of(ModelConfig config) const {
  std::int64_t key_width = 0;
  for (const Slice& part : keys) key_width += part.count;
  config.n_head = static_cast<int>(queries.count / config.head_size);
  config.n_kv_head = static_cast<int>(key_width / config.head_size);
  config.n_inner = static_cast<int>(inner.count);
  config.expert_inner = static_cast<int>(expert_inner.count);
  config.n_layer = static_cast<int>(blocks.count);
  return config;
}

}  // namespace staircase
