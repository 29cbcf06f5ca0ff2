// The table of a GPU's fastest kernels (kernels/tuning.h) as a file, which `tools/gpu-check --tune`
// writes and programs read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/device.h"
#include "kernels/tuning.h"

namespace staircase {

/// Where the table of that card is: the file that STAIRCASE_TUNING names. If it is not set, one with the
/// card's name in the user's cache folder, "~/.cache/staircase/tuning-nvidia-h200.json". Empty if
/// STAIRCASE_TUNING is empty, or if there is no such folder.
std::filesystem::path tuning_file(const std::string& card);

/// The table in the text of a file: {"card": "NVIDIA H200", "products": [{"rows": 1, "in": 768, "out": 2304,
/// "dtype": "bfloat16", "gated": false, "lanes": 32, "inputs": 24, "blocks": 6}, ...]}. Further keys are for
/// people. Throws Error for anything else, for another card, and for a form that no kernel has; `file` is for
/// the message.
cuda::Tuning read_tuning(std::string_view text, const std::string& card, const std::string& file);

/// The text of such a file.
std::string written(const cuda::Tuning& tuning, const std::string& card);

/// Lets the device use its table, if there is one. A table in the cache folder that cannot be used is a
/// warning, and the device stays as it is; one that STAIRCASE_TUNING names is an Error.
void use_tuning(Device& device);

}  // namespace staircase
