#include "common/model/draft_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
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
constexpr std::array<std::string_view, 6> kKeys{"base_model_name_or_path", "base_model_fnv1a",
                                                "medusa_num_heads",        "medusa_num_layers",
                                                "_name_or_path",           "transformers_version"};

/// Throws Error for heads that were trained on another model.
void check_model(const Settings& config, const Model& model) {
  const std::filesystem::path weights =
      is_gguf(model.path()) ? model.path() : model.path() / "model.safetensors";
  const std::string trained_on = config.text_or("base_model_name_or_path", ""),
                    hash = config.text_or("base_model_fnv1a", ""), name = model.path().filename().string();
  if (hash.empty() || !is_there(weights)) {
    const std::string last = trained_on.substr(trained_on.find_last_of('/') + 1);
    if (last != name)
      throw Error("{}: these heads were trained for {}, not for {}", config.file(), quote(last), name);
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
    if (std::ranges::find(kKeys, key) != kKeys.end()) continue;
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
    const std::vector<float> stored = read_numbers(file, tensors, name + "weight", {n, n}).first;
    DraftHead head{std::vector<float>(width * width), read_numbers(file, tensors, name + "bias", {n}).first};
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
