// One number for a model. Ranks compare these numbers before they load the model, and a saved conversation
// stores the number of its model.
#pragma once

#include <cstdint>
#include <filesystem>

#include "common/model/checkpoint.h"

namespace staircase {

/// Returns a hash that distinguishes models without reading all their weights. It covers `dtype`, the
/// settings, the tokenizer and the chat template. Of each tensor it covers the name, type and shape, and some
/// bytes at `places` places from the first byte to the last; `places` is at least 2. Two places are enough
/// for ranks, which read only their own part of a file.
std::uint64_t fingerprint(const std::filesystem::path& model, const Checkpoint& checkpoint, DType dtype,
                          std::size_t places = 2);

}  // namespace staircase
