// Adapters: low-rank changes of a model's matrices (Hu et al. 2021, section 4.1), as PEFT stores them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.h"

namespace staircase {

class Model;
class Network;

/// What an adapter adds to a module's result y: scale · B (A x).
struct AdapterMatrix {
  std::size_t rank = 0;
  float scale = 0.0f;
  DType dtype = DType::kFloat32;  ///< holds every number of the file exactly
  std::vector<float> a;           ///< [rank, inputs]
  std::vector<float> b;           ///< [outputs, rank]
};

/// The changes of an adapter, by the names of modules without prefix: "h.0.attn.c_attn".
using Adapter = std::map<std::string, AdapterMatrix, std::less<>>;

/// Reads adapter_config.json and adapter_model.safetensors of a folder for that network; `prefix` precedes
/// the names of its modules. Matrices may be F32, F16 or BF16. The scale is lora_alpha / r, or with
/// use_rslora lora_alpha / sqrt(r) (Kalajdzievski 2023, section 3). Throws Error with one sentence for a
/// missing or broken file, a setting that changes the result and is not supported, and for matrices that do
/// not fit the network.
Adapter read_adapter(const std::filesystem::path& folder, Network& network, std::string_view prefix);

/// The same for a model, by the names of plain_weights.h. GPT-2 and GPT-NeoX compute queries, keys and values
/// as one module: each of the three then has all of A, and its part of B. Throws Error for a model of another
/// family, too.
Adapter plain_adapter(const Model& model, const std::filesystem::path& folder, std::string_view family);

/// Gives these adapters to the network's products, in the place of earlier ones, and returns their bytes on
/// the device.
std::size_t set_adapters(Network& network, Device& device, std::span<const Adapter> adapters);

}  // namespace staircase
