// Adapters: low-rank changes to a model's matrices (Hu et al. 2021, section 4.1), in the files that PEFT
// writes.
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

/// The change to one module. For an input x, it adds scale · B (A x) to the module's result.
struct AdapterMatrix {
  std::size_t rank = 0;
  float scale = 0.0f;
  DType dtype = DType::kFloat32;  ///< a type that holds every number of the file exactly
  std::vector<float> a;           ///< [rank, inputs]
  std::vector<float> b;           ///< [outputs, rank]
};

/// All changes of an adapter, by module name without prefix: "h.0.attn.c_attn".
using Adapter = std::map<std::string, AdapterMatrix, std::less<>>;

/// Reads adapter_config.json and adapter_model.safetensors from `folder` for this network, whose module names
/// may begin with `prefix`. Matrices may be F32, F16 or BF16. The scale is lora_alpha / r, or lora_alpha /
/// sqrt(r) with use_rslora (Kalajdzievski 2023, section 3). Throws Error with one sentence for a missing or
/// broken file, an unsupported setting that changes the result, and matrices that do not fit the network.
Adapter read_adapter(const std::filesystem::path& folder, Network& network, std::string_view prefix);

/// Reads an adapter for a model, with the module names of plain_weights.h. GPT-2 and GPT-NeoX compute
/// queries, keys and values in one module: here each of the three has the whole of A and its own part of B.
/// Throws Error as read_adapter does, and for a model that is not of this family.
Adapter plain_adapter(const Model& model, const std::filesystem::path& folder, std::string_view family);

/// Sets the adapters of the network's products, replacing earlier ones. Returns their size on the device in
/// bytes.
std::size_t set_adapters(Network& network, Device& device, std::span<const Adapter> adapters);

}  // namespace staircase
