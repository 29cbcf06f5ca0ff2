// The forward pass of Llama and its relatives, with the device's operations (kernels/device.h).
#pragma once

#include "common/model/llama.h"
#include "common/model/pass.h"

namespace staircase {

/// Replaces each number of x by its sum over all ranks, added in rank order, so all get the same bits.
inline void all_reduce(const Pass& pass, Tensor& x) {
  Ranks& ranks = pass.ranks();
  if (ranks.size() == 1) return;
  std::vector<float> sums(x.size());
  std::vector<float> parts(sums.size() * ranks.size());  // the numbers of rank 0, of rank 1 ...
  pass.device().copy_to_host(x, sums);
  ranks.all_gather(sums, parts);
  std::copy_n(parts.begin(), sums.size(), sums.begin());
  for (std::size_t first = sums.size(); first < parts.size(); first += sums.size())
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += parts[first + i];
  pass.device().copy_from_host(sums, x);
}

/// Computes logits from the new tokens of all sequences in the pass. Keys and values go into the cache of the
/// pass, and attention reads those of earlier tokens from it. A rank has its own heads, its own columns of
/// each MLP and its own tokens of the vocabulary.
inline void forward(const LlamaWeights& weights, Pass& pass) {
  Device& device = pass.device();
  // The sum must hold the residual stream once: rank 0 adds its part to x, the others replace x by theirs.
  const Epilogue add_once = pass.ranks().rank() == 0 ? Epilogue::kAdd : Epilogue::kStore;
  Tensor x = pass.residual(), projected = pass.projected(), queries = pass.queries();
  Tensor attended = pass.attended();
  device.embedding(pass.batch(), weights.embeddings.tokens, Tensor(), x);
  all_reduce(pass, x);  // the embedding of a token is zeros on all ranks but one
  pass.show("embeddings", x);
  for (int l = 0; l < std::ssize(weights.blocks); ++l) {
    const LlamaWeights::Block& block = weights.blocks[l];
    KeysValues cached = pass.keys_values(l);
    pass.linear(x, block.input_norm, block.attention_input, Epilogue::kStore, projected);
    device.split_heads(pass.batch(), projected, {block.query_norm, block.key_norm, pass.rotations()}, queries,
                       cached);
    pass.attend(l, queries, cached, x, attended);
    pass.linear(attended, {}, block.attention_output, add_once, x);
    all_reduce(pass, x);

    Tensor hidden = pass.hidden(x);
    pass.linear(x, block.mlp_norm, block.mlp_input, Epilogue::kSiluGate, hidden);
    pass.linear(hidden, {}, block.mlp_output, add_once, x);
    all_reduce(pass, x);
    pass.show("block." + std::to_string(l), x);
  }
  pass.finish(x, weights.final_norm, weights.embeddings.output_layer());
}

}  // namespace staircase
