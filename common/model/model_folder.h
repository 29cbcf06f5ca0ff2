// Finds the folder or GGUF file of a model from the value of an option.
#pragma once

#include <filesystem>
#include <string>

namespace staircase {

/// Returns `name` if it is a .gguf file or a folder, otherwise the folder with this name among the project's
/// models. It looks for these in $STAIRCASE_MODELS, in the prefix or project that contains the running
/// program, in the source tree, and in the prefix that the build was configured for. Throws Error that names
/// the option and the places that were searched. For a folder without config.json that contains one GGUF
/// model, returns that file.
std::filesystem::path find_model(const std::string& name, const std::string& option = "--model");

/// Returns `name` if it is a folder, otherwise the adapter with this name in the folder `adapters` at the
/// same places. Throws Error as find_model does.
std::filesystem::path find_adapter(const std::string& name, const std::string& option = "--adapter");

}  // namespace staircase
