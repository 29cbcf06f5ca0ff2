// Loads the models that the command line names onto a device.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/text/tokenizer.h"

namespace staircase {

enum class DeviceKind { kAuto, kCpu, kCuda };

/// Creates a device. "auto" uses a GPU if one is usable, with its table (tuning_file.h). Throws Error if
/// --device cuda finds no usable GPU.
std::shared_ptr<Device> make_device(DeviceKind kind, int threads);

/// A model and the name that was typed for it.
struct NamedModel {
  std::string name;
  Model model;
};

/// Loads the tokenizer from a model's folder or .gguf file. Tokens that only the model has become empty text.
/// Throws Error if the tokenizer has tokens that the model lacks.
Tokenizer load_tokenizer(const std::filesystem::path& folder, const ModelConfig& config);

/// The folder of a model, and the name that was typed for it.
struct NamedFolder {
  std::string name;
  std::filesystem::path folder;
};

/// Finds the folders of the models that --draft-model names. Throws Error for a missing model, and UsageError
/// for a model that is named twice.
std::vector<NamedFolder> find_drafts(const std::vector<std::string>& names);

/// Loads the draft models onto the device of `target` and in its dtype. Throws Error for a draft whose
/// vocabulary differs from the target's, since it could not propose tokens.
std::vector<NamedModel> load_drafts(const std::vector<NamedFolder>& folders, const Model& target,
                                    const std::filesystem::path& target_folder, const Tokenizer& tokenizer);

}  // namespace staircase
