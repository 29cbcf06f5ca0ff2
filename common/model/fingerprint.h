// One number for a model, so that ranks can compare theirs before they load them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "common/model/checkpoint.h"

namespace staircase {

/// Tells two models apart without reading all their weights. It covers the settings and the tokenizer, each
/// tensor's name, type and shape, and the first and the last of its bytes.
std::uint64_t fingerprint(const std::filesystem::path& model, const Checkpoint& checkpoint, DType dtype);

}  // namespace staircase
