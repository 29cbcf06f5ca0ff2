// Adapters: low-rank changes of a model's matrices (Hu et al. 2021, section 4.1), as PEFT stores them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.h"

namespace staircase {

class Network;

/// What an adapter adds to a module's result: y += up (down x).
struct AdapterMatrix {
  std::int64_t rank = 0;
  std::vector<float> down;  ///< A: [rank, inputs]
  std::vector<float> up;    ///< B, times its scale: [outputs, rank]
};

/// The changes of an adapter, by the names of modules without prefix: "h.0.attn.c_attn".
using Adapter = std::map<std::string, AdapterMatrix>;

/// Reads adapter_config.json and adapter_model.safetensors of a folder for that network; `prefix` precedes
/// the names of its modules. Matrices may be F32, F16 or BF16. The scale is lora_alpha / r, or with
/// use_rslora lora_alpha / sqrt(r) (Kalajdzievski 2023, section 3). Throws Error with one sentence for a
/// missing or broken file, a setting that changes the result and is not supported, and for matrices that do
/// not fit the network.
Adapter read_adapter(const std::filesystem::path& folder, Network& network, std::string_view prefix);

/// Gives these adapters to the network's products, in the place of earlier ones, and returns their bytes on
/// the device.
std::size_t set_adapters(Network& network, Device& device, std::span<const Adapter> adapters);

}  // namespace staircase
