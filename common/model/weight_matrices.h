// The weights of a model as numbers on the host, for reading or changing them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model.h"

namespace staircase {

/// A weight matrix on the host. The inputs of each output are adjacent.
struct WeightMatrix {
  std::string name;           ///< as in a Hugging Face file, without prefix: "h.0.attn.c_attn.weight";
                              ///< qkv_proj and gate_up_proj are joined matrices
  std::size_t inputs = 0;     ///< number of weights of each output
  std::vector<float> values;  ///< [outputs, inputs]
};

/// Calls `look` with each weight matrix, converted to float32: the token embedding, the matrices of the
/// blocks from first to last, and the output layer unless it is the token embedding.
void for_each_matrix(const Model& model, const std::function<void(const WeightMatrix& matrix)>& look);

/// Loads the model again and replaces the values of each matrix by what `change` returns, rounded to the type
/// of the weights.
Model with_matrices(const Model& model,
                    const std::function<std::vector<float>(const WeightMatrix& matrix)>& change);

/// Reads all readable tensors of the model's files in float32, in Hugging Face's order and by its names
/// without a prefix: "h.0.attn.c_attn.weight". Throws Error for a model of another family, whose tensors have
/// other names.
std::map<std::string, std::vector<float>> stored_weights(const Model& model, std::string_view family);

}  // namespace staircase
