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

/// "auto" takes a GPU where there is one to use. Throws Error where --device cuda finds none.
std::shared_ptr<Device> make_device(DeviceKind kind, int threads);

/// A model and what was typed for it.
struct NamedModel {
  std::string name;
  Model model;
};

/// The tokenizer in a model's folder; tokens that only the model has are the empty text. Throws Error when
/// the tokenizer knows tokens that the model does not.
Tokenizer load_tokenizer(const std::filesystem::path& folder, const ModelConfig& config);

/// Where a model is, and what was typed for it.
struct NamedFolder {
  std::string name;
  std::filesystem::path folder;
};

/// The folders of the models of --draft-model. Throws Error for one that is not there and UsageError for one
/// that is named twice.
std::vector<NamedFolder> find_drafts(const std::vector<std::string>& names);

/// Loads them onto the device of `target`, to which they are to propose tokens, in its dtype. Throws Error
/// for one that does not mean the same by every token as the target does.
std::vector<NamedModel> load_drafts(const std::vector<NamedFolder>& folders, const Model& target,
                                    const std::filesystem::path& target_folder, const Tokenizer& tokenizer);

}  // namespace staircase
