// embedding: out[t] = token_table[tokens[t]] + position_table[position of t], or the first term alone.
//
// token_table [vocab_size, width], position_table [n_positions, width], out [n_tokens, width]. Each token
// takes 12 · width bytes (10 with a table in 16 bits, 9 in 8 bits) and one addition per element. The limit is
// bandwidth, or launch latency for a few tokens.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/weights.cuh"

namespace staircase {
namespace cuda {

constexpr int kEmbeddingThreads = 256;

/// One block per token. position_table may be null.
template <typename Stored>
__global__ __launch_bounds__(kEmbeddingThreads) void embed(Sequences sequences, const std::int32_t* tokens,
                                                           WeightRows<Stored> token_table,
                                                           const float* position_table, int width,
                                                           float* out) {
  begin_after_previous();
  const int t = static_cast<int>(blockIdx.x);
  const WeightRow<Stored> token_row = token_table[tokens[t]];
  float* const out_row = out + static_cast<std::int64_t>(t) * width;
  if (position_table == nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < width; i += kEmbeddingThreads) out_row[i] = token_row[i];
    return;
  }
  const std::int64_t position = sequences.position(sequences.of_token(t), t);
  const float* const position_row = position_table + position * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kEmbeddingThreads) {
    out_row[i] = token_row[i] + position_row[i];
  }
}

}  // namespace cuda

void CudaDevice::embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                           Tensor& out) {
  if (listed(Operation::kEmbedding, batch, token_table, position_table, out)) return;
  cuda::with_rows(token_table, [&]<typename Stored>(cuda::WeightRows<Stored> table) {
    cuda::launch("embedding was started", stream(), cuda::blocks(batch.n_tokens()), cuda::kEmbeddingThreads,
                 0, cuda::embed<Stored>, cuda::Sequences(batch), batch.tokens.data<std::int32_t>(), table,
                 position_table.data<float>(), static_cast<int>(out.dim(1)), out.data<float>());
  });
}

}  // namespace staircase
