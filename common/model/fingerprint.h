// One number for a model: ranks compare theirs before they load them, and a saved conversation names its own.
#pragma once

#include <cstdint>
#include <filesystem>

#include "common/model/checkpoint.h"

namespace staircase {

/// Tells two models apart without reading all their weights. It covers the settings, the tokenizer and the
/// chat template, each tensor's name, type and shape, and some of its bytes at ten places from the first to
/// the last.
std::uint64_t fingerprint(const std::filesystem::path& model, const Checkpoint& checkpoint, DType dtype);

}  // namespace staircase
