// The forward pass of Llama and its relatives, with the device's operations (kernels/device.h).
#pragma once

#include "common/model/llama.h"
#include "common/model/pass.h"

namespace staircase {

/// Computes logits from the new tokens of all sequences in the pass. Keys and values go into the cache of the
/// pass, and attention reads those of earlier tokens from it.
inline void forward(const LlamaWeights& weights, Pass& pass) {
  Device& device = pass.device();
  Tensor x = pass.residual(), projected = pass.projected(), queries = pass.queries();
  Tensor attended = pass.attended();
  device.embedding(pass.batch(), weights.embeddings.tokens, Tensor(), x);
  pass.show("embeddings", x);
  for (int l = 0; l < std::ssize(weights.blocks); ++l) {
    const LlamaWeights::Block& block = weights.blocks[l];
    KeysValues cached = pass.keys_values(l);
    pass.linear(x, block.input_norm, block.attention_input, Epilogue::kStore, projected);
    device.split_heads(pass.batch(), projected, {block.query_norm, block.key_norm, pass.rotations()}, queries,
                       cached);
    pass.attend(l, queries, cached, x, attended);
    pass.linear(attended, {}, block.attention_output, Epilogue::kAdd, x);

    Tensor hidden = pass.hidden(x);
    pass.linear(x, block.mlp_norm, block.mlp_input, Epilogue::kSiluGate, hidden);
    pass.linear(hidden, {}, block.mlp_output, Epilogue::kAdd, x);
    pass.show("block." + std::to_string(l), x);
  }
  pass.finish(x, weights.final_norm, weights.embeddings.output_layer());
}

}  // namespace staircase
