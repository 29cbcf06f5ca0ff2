// attention: out = softmax(q Kᵀ / sqrt(head_size)) V for each head; each query sees its own position and
// earlier ones.
//
// queries and out [n_tokens, n_head head_size], keys and values [n_rows, n_kv_head, capacity, head_size], or
// in blocks; query head h uses the keys of head h / (n_head / n_kv_head). Each pair of a token and a position
// that it sees takes 4 · n_head head_size operations.
//
// There are three kernels, two for many queries and one for a few. All use the online softmax (Milakov and
// Gimelshein 2018, section 3; for attention Dao et al. 2022). It processes some scores at a time and, at a
// new largest score, scales down the sums so far. So no whole row of scores is ever stored in memory.
//
//   attend_tile.cuh               many queries, in float32
//   attend_tile_tensor_cores.cuh  many queries, keys and values in 16 bits: some ten times the arithmetic
//   attend_split.cuh              a few queries: several blocks share the keys
//
// In int8 a head's key and its value at a position each have a scale. In int4 each group of their numbers has
// a least number and a step (KeysValues in device.h). Integers are widened when they are loaded into
// registers or shared memory, and tensor cores are not used.
//
// If heads share keys, decoding needs less bandwidth: a block of attend_split computes up to 8 heads of a
// group, so it reads the keys once for all of them. With many queries, each head has its own tiles. A tile is
// full even with one head; with several heads it would read just as many keys.
//
// Each kernel is a list of phases. Phases that also occur in kernels/cpu/attention.cpp have the same names:
// multiply_keys, exponentials, add_values.
#include <algorithm>

#include "kernels/cuda/attend_split.cuh"
#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/attend_tile_tensor_cores.cuh"
#include "kernels/cuda/cuda_device.h"

namespace staircase {
namespace cuda {

/// Tiles pay off from this mean number of new tokens per sequence on, because most rows of a tile are then in
/// use.
constexpr std::int64_t kManyQueries = 12;

/// Calls use(heads as a std::integral_constant), for every value of heads_at_once.
template <typename Use>
void with_heads_at_once(int heads, const Use& use) {
  if (heads == 1) use(std::integral_constant<int, 1>());
  if (heads == 2) use(std::integral_constant<int, 2>());
  if (heads == 4) use(std::integral_constant<int, 4>());
  if (heads == 8) use(std::integral_constant<int, 8>());
}

}  // namespace cuda

template <typename Stored>
void CudaDevice::attend(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                        Tensor& out) {
  using namespace cuda;
  const std::int64_t n_tokens = batch.n_tokens(), n_kv_head = keys_values.keys.dim(1);
  const int size = static_cast<int>(keys_values.head_size());
  const std::int64_t n_head = queries.dim(1) / size;
  const Heads<Stored> heads{Sequences(batch),
                            queries.data<float>(),
                            keys_values.keys.data<Stored>(),
                            keys_values.values.data<Stored>(),
                            static_cast<int>(n_head),
                            static_cast<int>(n_kv_head),
                            size,
                            static_cast<int>(keys_values.keys.dim(3)),
                            Blocks(keys_values),
                            keys_values.window,
                            1.0f / std::sqrt(static_cast<float>(size)),
                            out.dtype(),
                            out.data<void>()};
  const unsigned grid_heads = blocks(n_head);

  // Only the GPU knows the lengths of the sequences, so the choice depends on the mean number of new tokens.
  if (n_tokens >= kManyQueries * batch.n_sequences() && size <= kLargestTiledHead) {
    if constexpr (sizeof(Stored) == 2) {
      if (has_tensor_cores_ && size % 16 == 0) {
        const dim3 grid(query_tiles(batch, kTensorCoreQueries), grid_heads);
        const auto start = [&](auto kernel, std::size_t shared_bytes) {
          launch("attention was started", stream(), grid, kTensorCoreThreads, shared_bytes, kernel, heads);
        };
        if (size <= 64) {
          start(attend_tile_tensor_cores<64, 64, Stored>, tensor_core_shared_bytes(64, size));
        } else {
          start(attend_tile_tensor_cores<kLargestTiledHead, 32, Stored>, tensor_core_shared_bytes(32, size));
        }
        return;
      }
    }
    launch("attention was started", stream(), dim3(query_tiles(batch, kTileQueries), grid_heads),
           kTileThreads, tile_shared_bytes(size),
           size <= 64 ? attend_tile<64, Stored> : attend_tile<kLargestTiledHead, Stored>, heads);
    return;
  }

  constexpr int kVector = kPieceFeatures<Stored>;
  const int vector = size % kVector == 0 ? kVector : 1;
  if (size / vector > kSplitThreads) {
    throw std::runtime_error(
        "attention on the GPU supports heads of up to " + std::to_string(kVector * kSplitThreads) +
        " features where their number is a multiple of " + std::to_string(kVector) + ", else of up to " +
        std::to_string(kSplitThreads) + ", not of " + std::to_string(size));
  }
  // Start four blocks per multiprocessor, as long as each block has at least about 64 keys when the cache or
  // the window is full.
  const int at_once = heads_at_once(heads.group());
  const std::int64_t head_blocks = n_kv_head * divide_up(heads.group(), at_once);
  const std::int64_t block_rows = std::max<std::int64_t>(1, n_tokens * head_blocks);
  const std::int64_t longest = std::min<std::int64_t>(heads.blocks.capacity(), keys_values.window);
  const std::int64_t splits = std::clamp<std::int64_t>(
      std::min(divide_up<std::int64_t>(4 * multiprocessors_, block_rows), longest / 64), 1, kMaxSplits);
  NextWeights next{};
  // Weights get half of the L2 cache: keys, values and the outputs of the products need the rest.
  std::int64_t room = l2_bytes_ / 2;
  for (int i = 0; i < 2; ++i) {
    if (announced_[i].size() == 0) continue;
    next.set(i, announced_[i], room);
    room -= next.bytes[i];
  }
  Splits parts{};
  if (splits > 1) {
    const std::int64_t rows = n_tokens * n_head;
    parts.sums = scratch(rows * splits * (size + 2) + 1);
    // The states begin at an even number of floats, so that pairs of floats are aligned.
    parts.states =
        reinterpret_cast<float2*>(parts.sums + divide_up<std::int64_t>(rows * splits * size, 2) * 2);
    parts.done = zeros(block_rows);
  }
  with_heads_at_once(at_once, [&]<int kHeads>(std::integral_constant<int, kHeads>) {
    const auto start = [&](auto kernel) {
      launch("attention was started", stream(), dim3(blocks(n_tokens), blocks(head_blocks), blocks(splits)),
             kSplitThreads, split_shared_bytes(kHeads, size, vector), kernel, heads, parts, next);
    };
    if constexpr (kIsRotated<Stored>) {  // all sizes are multiples of a piece
      start(attend_split<kHeads, kVector, Stored>);
    } else {
      start(vector == kVector ? attend_split<kHeads, kVector, Stored> : attend_split<kHeads, 1, Stored>);
    }
  });
}

void CudaDevice::attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                           Tensor& out) {
  if (listed(Operation::kAttention, batch, queries, keys_values, out)) return;
  if (keys_values.keys.dtype() == DType::kInt8) {
    attend<std::int8_t>(batch, queries, keys_values, out);
  } else if (keys_values.keys.dtype() == DType::kInt4) {
    attend<cuda::Int4Byte>(batch, queries, keys_values, out);
  } else {
    cuda::with_type(keys_values.keys.dtype(), keys_values.keys.data<void>(), [&](auto* keys) {
      attend<std::remove_pointer_t<decltype(keys)>>(batch, queries, keys_values, out);
    });
  }
  announced_ = {};
}

void CudaDevice::announce(const Weight& first, const Weight& second) {
  if (list_) {
    list_->add(first);
    list_->add(second);
  } else {
    announced_ = {first.packed, second.packed};
  }
}

}  // namespace staircase
