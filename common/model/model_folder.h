// Finds a model, a folder or a GGUF file, from the value of an option.
#pragma once

#include <filesystem>
#include <string>

namespace staircase {

/// `name` as a .gguf file or a folder; otherwise the folder of that name among the models of this project.
/// They are in $STAIRCASE_MODELS, in the prefix or the project in which the running program lies, in the
/// source tree, or in the prefix that the build was for. Throws Error that names the option and the places
/// where it looked. A folder without config.json, but with one GGUF model, is that file.
std::filesystem::path find_model(const std::string& name, const std::string& option = "--model");

/// An adapter: `name` as a folder, otherwise the folder of that name in `adapters` at the same places. Throws
/// as above.
std::filesystem::path find_adapter(const std::string& name, const std::string& option = "--adapter");

}  // namespace staircase
