// The file with the table of a GPU's fastest kernels (kernels/tuning.h). `tools/gpu-check --tune` writes it,
// and programs read it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/device.h"
#include "kernels/tuning.h"

namespace staircase {

/// The file with the table of this card: the file that STAIRCASE_TUNING names. If the variable is not set,
/// the file in the user's cache folder with the card's name, such as
/// "~/.cache/staircase/tuning-nvidia-h200.json". Empty if STAIRCASE_TUNING is empty, or if there is no cache
/// folder.
std::filesystem::path tuning_file(const std::string& card);

/// Reads the table from the text of a file: {"card": "NVIDIA H200", "products": [{"rows": 1, "in": 768,
/// "out": 2304, "dtype": "bfloat16", "gated": false, "lanes": 32, "inputs": 24, "blocks": 6}, ...]}. Further
/// keys are ignored. Throws Error for anything else, for another card, and for a form that no kernel has;
/// `file` is for the message.
cuda::Tuning read_tuning(std::string_view text, const std::string& card, const std::string& file);

/// Returns the text of such a file.
std::string written(const cuda::Tuning& tuning, const std::string& card);

/// Lets the device use its table, if there is one. For an unusable table in the cache folder, prints a
/// warning and leaves the device unchanged. Throws Error for an unusable table that STAIRCASE_TUNING names.
void use_tuning(Device& device);

}  // namespace staircase
