// From names on the command line to models on a device.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/text/tokenizer.h"

namespace staircase {

enum class DeviceKind { kAuto, kCpu, kCuda };

/// "auto" takes a usable GPU if there is one, with its table (tuning_file.h). Throws Error if --device cuda
/// finds none.
std::shared_ptr<Device> make_device(DeviceKind kind, int threads);

/// A model and what was typed for it.
struct NamedModel {
  std::string name;
  Model model;
};

/// The tokenizer in a model's folder or .gguf file; tokens that only the model has are empty text. Throws
/// Error if the tokenizer has tokens that the model lacks.
Tokenizer load_tokenizer(const std::filesystem::path& folder, const ModelConfig& config);

/// Where a model is, and what was typed for it.
struct NamedFolder {
  std::string name;
  std::filesystem::path folder;
};

/// The folders of the models of --draft-model. Throws Error for a missing one and UsageError for one that is
/// named twice.
std::vector<NamedFolder> find_drafts(const std::vector<std::string>& names);

/// Loads them in the dtype of `target` and onto its device, so they can propose tokens for it. Throws Error
/// for one whose vocabulary differs from the target's.
std::vector<NamedModel> load_drafts(const std::vector<NamedFolder>& folders, const Model& target,
                                    const std::filesystem::path& target_folder, const Tokenizer& tokenizer);

}  // namespace staircase
