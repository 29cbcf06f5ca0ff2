// Writes a GPT-2 of odd sizes with random weights into a folder, in any of the layouts in which such files
// come.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace staircase {

struct TinyTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  std::string dtype = "";  ///< "F32", "F16", "BF16", "I64"; as the whole model where empty
};

struct TinyModel {
  int vocab_size = 101, n_positions = 37, n_embd = 24, n_head = 3, n_layer = 2, n_inner = 50;
  std::map<std::string, TinyTensor> tensors;  ///< without prefix

  /// The weights are multiples of 1/128 below 1, which every format stores exactly.
  explicit TinyModel(std::uint32_t seed = 1, int tokens = 101, int positions = 37);

  const std::vector<float>& values(const std::string& name) const { return tensors.at(name).values; }

  /// The buffers that older versions of transformers stored with the weights.
  void add_masks();

  /// Writes config.json and model.safetensors; `prefix` comes before each name but lm_head's.
  void write(const std::filesystem::path& folder, const std::string& dtype = "F32",
             const std::string& prefix = "") const;
};

}  // namespace staircase
