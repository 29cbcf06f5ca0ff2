// The weights of a model as numbers on the host: to look at them, or to change them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// A weight matrix on the host, in the layout of the products: the inputs of an output are adjacent.
struct WeightMatrix {
  std::string name;           ///< as in a Hugging Face file, without prefix: "h.0.attn.c_attn.weight"; of
                              ///< parts in one matrix, qkv_proj and gate_up_proj
  std::size_t inputs = 0;     ///< weights of an output
  std::vector<float> values;  ///< [outputs, inputs]
};

/// Calls the visitor with each weight matrix, converted back from its type. These are the token embedding,
/// those of the blocks from first to last, and the output layer unless it is the token embedding.
void for_each_matrix(const Model& model, const std::function<void(const WeightMatrix& matrix)>& look);

/// The same model, read again, after `change` has edited the values of each of these matrices. They are
/// rounded to the type of the weights.
Model with_matrices(const Model& model,
                    const std::function<std::vector<float>(const WeightMatrix& matrix)>& change);

/// The readable tensors of the model's files in float32, in Hugging Face's order and by its names without a
/// prefix: "h.0.attn.c_attn.weight". Throws Error for a model of another family, whose tensors have other
/// names.
std::map<std::string, std::vector<float>> stored_weights(const Model& model, std::string_view family);

}  // namespace staircase
