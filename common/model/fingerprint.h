// One number for a model: ranks compare theirs before they load them, and a saved conversation names its own.
#pragma once

#include <cstdint>
#include <filesystem>

#include "common/model/checkpoint.h"

namespace staircase {

/// Tells two models apart without reading all their weights. It covers the settings, the tokenizer and the
/// chat template, each tensor's name, type and shape, and some of its bytes at that many places from the
/// first to the last. Two of them are enough for ranks, which read only their own part of a file.
std::uint64_t fingerprint(const std::filesystem::path& model, const Checkpoint& checkpoint, DType dtype,
                          std::size_t places = 2);

}  // namespace staircase
