#include "common/model/draft_heads.h"

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/json_file.h"
#include "common/model/checkpoint.h"
#include "common/model/gguf.h"
#include "common/model/safetensors.h"
#include "common/model/settings.h"

namespace staircase {
namespace {

constexpr std::uint64_t kMostHeads = 64;

/// The numbers of a tensor of that shape.
std::vector<float> read(const std::string& file, const Safetensors& tensors, const std::string& name,
                        const std::vector<std::int64_t>& shape) {
  const StoredTensor* const tensor = tensors.find(name);
  if (tensor == nullptr) throw Error("{} has no tensor {}, which its configuration requires", file, name);
  if (tensor->shape != shape) {
    throw Error("{}: tensor {} has shape {}, but for this model it must be {}", file, name,
                to_string(tensor->shape), to_string(shape));
  }
  const std::map<std::string, DType> types{
      {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}};
  const auto type = types.find(tensor->dtype);
  if (type == types.end())
    throw Error("{}: tensor {} is stored as {}; F32, F16 and BF16 can be read", file, name, tensor->dtype);
  std::vector<float> values =
      to_floats({tensor->bytes.data(), type->second, shape.size() > 1 ? shape.front() : 1, shape.back()});
  if (!all_finite(values)) throw Error("{}: tensor {} has a non-finite value", file, name);
  return values;
}

/// Throws Error for heads that were trained on another model.
void check_model(const Settings& config, const Model& model) {
  const std::filesystem::path weights =
      is_gguf(model.path()) ? model.path() : model.path() / "model.safetensors";
  const std::string trained_on = config.text_or("base_model_name_or_path", ""),
                    hash = config.text_or("base_model_fnv1a", ""), name = model.path().filename().string();
  if (hash.empty() || !is_there(weights)) {
    const std::string last = trained_on.substr(trained_on.find_last_of('/') + 1);
    if (last != name) throw Error("{}: these heads are of {}, not of {}", config.file(), quote(last), name);
    return;
  }
  Hash bytes;
  bytes.add(MappedFile(weights).bytes());
  const std::string own = fmt::format("{:016x}", bytes.value());
  if (own != hash) {
    throw Error("{}: these heads were trained on {} with base_model_fnv1a {}, but {} has {}", config.file(),
                quote(trained_on), quote(hash), weights.string(), own);
  }
}

}  // namespace

std::vector<DraftHead> read_draft_heads(const Model& model, const std::filesystem::path& folder) {
  const std::string config_file = (folder / "config.json").string();
  const nlohmann::json values = parse_json_object(read_text_file(config_file), config_file);
  for (const auto& [key, value] : values.items()) {
    if (key.starts_with("base_model_") || key.starts_with("medusa_num_") || key == "_name_or_path" ||
        key == "transformers_version")
      continue;
    throw Error("{}: {} is {}, which is not supported", config_file, quote(key), shown(value));
  }
  const Settings config(config_file, values);
  const int count = config.integer("medusa_num_heads", 1, kMostHeads);
  config.require("medusa_num_layers", {1});
  check_model(config, model);

  const std::filesystem::path file = folder / "medusa_lm_head.safetensors";
  const Safetensors tensors(file);
  const auto width = static_cast<std::size_t>(model.config().n_embd);
  const std::int64_t n = model.config().n_embd;
  std::vector<DraftHead> heads;
  for (int k = 0; k < count; ++k) {
    const std::string name = fmt::format("{}.0.linear.", k);
    const std::vector<float> stored = read(file.string(), tensors, name + "weight", {n, n});
    DraftHead head{std::vector<float>(width * width), read(file.string(), tensors, name + "bias", {n})};
    for (std::size_t o = 0; o < width; ++o) {
      for (std::size_t i = 0; i < width; ++i) head.weight[i * width + o] = stored[o * width + i];
    }
    heads.push_back(std::move(head));
  }
  if (tensors.tensors().size() != 2 * heads.size()) {
    throw Error(
        "{} has {} tensors, but the weights and biases of its heads are {}: output layers of heads "
        "are not supported",
        file.string(), tensors.tensors().size(), 2 * heads.size());
  }
  tensors.require_whole();
  return heads;
}

}  // namespace staircase
