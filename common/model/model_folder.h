// Finds a model, a folder or a GGUF file, from the value of an option.
#pragma once

#include <filesystem>
#include <string>

namespace staircase {

/// `name` as a .gguf file or a folder; otherwise the folder of that name among the models of this project: in
/// $STAIRCASE_MODELS, then in the installed prefix or the project of the running program, then where it was
/// built or should have been installed. Throws Error that names the option and
/// the places where it looked. A folder without config.json, but with one GGUF model, is that file.
std::filesystem::path find_model(const std::string& name, const std::string& option = "--model");

}  // namespace staircase
