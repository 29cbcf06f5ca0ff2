#include "common/model/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/base/whole_match.h"
#include "common/model/checkpoint.h"
#include "common/model/family.h"
#include "common/model/safetensors.h"
#include "kernels/half.h"

namespace staircase {
namespace {

using nlohmann::json;

constexpr std::size_t kDepth = 20;  // how deep a configuration may nest
constexpr std::string_view kBeforeModules = "base_model.model.";

/// Keys of adapter_config.json that describe how an adapter was trained, or for which model; they change no
/// result. PEFT corrects fan_in_fan_out by itself, and only merged weights depend on it.
constexpr std::string_view kWithoutEffect[] = {
    "auto_mapping", "base_model_name_or_path", "corda_config",  "ensure_weight_tying",
    "eva_config",   "inference_mode",          "lora_dropout",  "lora_ga_config",
    "loftq_config", "megatron_core",           "peft_version",  "qalora_group_size",
    "revision",     "fan_in_fan_out",          "runtime_config"};

/// Keys that this reader obeys.
constexpr std::string_view kObeyed[] = {"alpha_pattern",     "bias",           "exclude_modules",
                                        "init_lora_weights", "layers_pattern", "layers_to_transform",
                                        "lora_alpha",        "peft_type",      "r",
                                        "rank_pattern",      "target_modules", "task_type",
                                        "use_rslora"};

bool is_among(std::span<const std::string_view> names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Whether the value switches its key off: null, false, or an empty list, object or text.
bool is_off(const json& value) {
  return value.empty() || value == false || value == "";
}

/// Whether `ending` is the whole name or follows a dot in it.
bool is_end_of(const std::string& ending, const std::string& name) {
  return name == ending || name.ends_with("." + ending);
}

class AdapterConfig {
 public:
  explicit AdapterConfig(const std::filesystem::path& file)
      : AdapterConfig(file.string(), read_text_file(file)) {}

  const std::string& file() const { return file_; }

  /// Whether the adapter changes the module with this whole name.
  bool targets(const std::string& module) const {
    const json* const excluded = settings_.find("exclude_modules");
    if (excluded && !is_off(*excluded) && names("exclude_modules", module)) return false;
    if (*settings_.find("target_modules") == "all-linear") return true;
    return names("target_modules", module) && is_in_layers(module);
  }

  /// Throws Error for a target without a module of the model, or a layer that it lacks.
  void require_targets(const std::vector<std::string>& modules) const {
    const json& targets = *settings_.find("target_modules");
    for (const json& target : targets.is_array() ? targets : json::array()) {
      if (std::ranges::none_of(modules, [&](const std::string& module) {
            return is_end_of(target.get<std::string>(), module);
          })) {
        throw Error("{}: target_modules names {}, but the model has no such product; its products are {}",
                    file_, shown(target), fmt::join(last_parts(modules), ", "));
      }
    }
    for (const int layer : layers_) {
      if (std::ranges::none_of(modules, [&](const std::string& module) { return layer_of(module) == layer; }))
        throw Error("{}: layers_to_transform names layer {}, which the model lacks", file_, layer);
    }
    if (std::ranges::none_of(modules, [&](const std::string& module) { return this->targets(module); }))
      throw Error("{}: no product of the model is among the target_modules", file_);
  }

  int rank(const std::string& module) const {
    const json* const own = of_pattern("rank_pattern", module);
    return own ? Settings(file_, {{"rank_pattern", *own}}).integer("rank_pattern", 1, kLargestSize)
               : settings_.integer("r", 1, kLargestSize);
  }

  double scale(const std::string& module) const {
    const json* const own = of_pattern("alpha_pattern", module);
    const double alpha = own ? number("alpha_pattern", *own)
                             : number("lora_alpha", *settings_.find("lora_alpha")),
                 r = rank(module);
    return alpha / (settings_.boolean_or("use_rslora", false) ? std::sqrt(r) : r);
  }

 private:
  AdapterConfig(const std::string& file, const std::string& text)
      : file_(file),
        settings_(file, parse_json_object(text, file)),
        ordered_(parse_ordered_json(text, file, kDepth)) {
    const json values = json::parse(text);
    for (const auto& [key, value] : values.items()) {
      if (is_among(kWithoutEffect, key) || is_among(kObeyed, key) || is_off(value)) continue;
      throw Error("{}: {} is {}, which is not supported", file_, key, shown(value));
    }
    if (settings_.text_or("peft_type", "") != "LORA")
      throw Error("{}: peft_type is {}; only LORA is supported", file_,
                  shown(values.value("peft_type", json())));
    settings_.require("bias", {"none"});
    settings_.require("task_type", {"CAUSAL_LM"});
    // All other values also change the model's own weights.
    settings_.require("init_lora_weights", {true, false, "gaussian", "orthogonal", "eva"});
    if (!settings_.find("lora_alpha")) throw Error("{} has no lora_alpha", file_);
    number("lora_alpha", *settings_.find("lora_alpha"));
    settings_.integer("r", 1, kLargestSize);
    if (!settings_.find("target_modules")) throw Error("{} has no target_modules", file_);
    for (const char* key : {"target_modules", "exclude_modules", "layers_pattern"}) {
      const json* const value = settings_.find(key);
      if (!value || value->is_string()) continue;
      if (!value->is_array() || !std::ranges::all_of(*value, [](const json& one) { return one.is_string(); }))
        throw Error("{}: {} is {}, not a name or a list of names", file_, key, shown(*value));
    }
    for (const char* key : {"rank_pattern", "alpha_pattern"}) settings_.object(key);
    layers_ = settings_.tokens("layers_to_transform", static_cast<int>(kLargestSize));
    if (!layers_.empty() && settings_.find("target_modules")->is_string())
      throw Error("{}: layers_to_transform needs a list of target_modules", file_);
  }

  double number(const char* key, const json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      throw Error("{}: {} is {}, not a number", file_, key, shown(value));
    return value.get<double>();
  }

  bool matches(const char* key, const std::string& pattern, const std::string& text) const {
    try {
      return matches_whole(pattern, text);
    } catch (const Error& error) {
      throw Error("{}: {}: {}", file_, key, error.what());
    }
  }

  /// Whether the value of `key`, a pattern or a list of names, matches the module.
  bool names(const char* key, const std::string& module) const {
    const json& pattern = *settings_.find(key);
    if (pattern.is_string()) return matches(key, pattern.get<std::string>(), module);
    return std::ranges::any_of(pattern,
                               [&](const json& name) { return is_end_of(name.get<std::string>(), module); });
  }

  /// The value of the first pattern under `key` that matches the end of the module's name, or nullptr.
  const json* of_pattern(const char* key, const std::string& module) const {
    const json* const values = settings_.find(key);
    if (!values) return nullptr;
    for (const auto& entry : ordered_.at(key).items()) {
      if (matches(key, "(?:.*\\.)?(?:" + entry.key() + ")", module)) return &values->at(entry.key());
    }
    return nullptr;
  }

  /// The layer of a module, found in its name as PEFT finds it: 11 for "transformer.h.11.attn".
  std::optional<int> layer_of(const std::string& module) const {
    const json* const pattern = settings_.find("layers_pattern");
    for (std::size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1)) {
      const std::size_t next = module.find('.', dot + 1);
      const std::string part = module.substr(dot + 1, next - dot - 1);
      if (next == std::string::npos || part.empty() ||
          !std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; }))
        continue;
      const std::string before = module.substr(0, dot), list = before.substr(before.rfind('.') + 1);
      if (!pattern || pattern->empty() || *pattern == "") return std::stoi(part);
      const json all = pattern->is_array() ? *pattern : json::array({*pattern});
      if (std::ranges::any_of(
              all, [&](const json& one) { return matches("layers_pattern", one.get<std::string>(), list); }))
        return std::stoi(part);
    }
    return std::nullopt;
  }

  bool is_in_layers(const std::string& module) const {
    if (layers_.empty()) return true;
    const std::optional<int> layer = layer_of(module);
    return layer && std::ranges::find(layers_, *layer) != layers_.end();
  }

  /// "c_attn", "c_proj" ..., each once.
  static std::set<std::string> last_parts(const std::vector<std::string>& modules) {
    std::set<std::string> parts;
    for (const std::string& module : modules) parts.insert(module.substr(module.rfind('.') + 1));
    return parts;
  }

  std::string file_;
  Settings settings_;
  nlohmann::ordered_json ordered_;  // in the file's order, since the first pattern that matches decides
  std::vector<int> layers_;
};

/// Copies a matrix to the device as [rows, columns] in the type `dtype`.
Tensor matrix_on(Device& device, const std::vector<float>& values, std::int64_t rows, DType dtype) {
  const Shape shape{rows, std::ssize(values) / rows};
  if (dtype == DType::kFloat32)
    return device.load({values.data(), dtype, shape[0], shape[1]}).reshaped(shape);
  std::vector<std::int32_t> pairs((values.size() + 1) / 2);
  auto* const bytes = reinterpret_cast<std::byte*>(pairs.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits =
        dtype == DType::kFloat16 ? float16_from_float32(values[i]) : bfloat16_from_float32(values[i]);
    std::memcpy(bytes + i * sizeof bits, &bits, sizeof bits);
  }
  Tensor tensor = device.allocate(dtype, {2 * std::ssize(pairs)});
  device.copy_from_host(pairs, tensor);
  return tensor.reshaped(shape);
}

}  // namespace

Adapter read_adapter(const std::filesystem::path& folder, Network& network, std::string_view prefix) {
  const AdapterConfig config(folder / "adapter_config.json");
  const std::filesystem::path file = folder / "adapter_model.safetensors";
  if (!is_there(file) && is_there(folder / "adapter_model.bin")) {
    throw Error("{}: only adapter_model.safetensors can be read, not adapter_model.bin", folder.string());
  }
  const Safetensors tensors(file);
  std::vector<std::string> names;
  network.visit_products([&](const Linear&, const std::vector<Module>& modules) {
    for (const Module& module : modules) names.push_back(std::string(prefix) + module.name);
  });
  config.require_targets(names);

  Adapter adapter;
  std::set<std::string> known;
  network.visit_products([&](const Linear&, const std::vector<Module>& modules) {
    for (const Module& module : modules) {
      const std::string name = std::string(prefix) + module.name;
      if (!config.targets(name)) continue;
      const std::int64_t rank = config.rank(name), outputs = std::ssize(module.columns);
      const std::string a = fmt::format("{}{}.lora_A.weight", kBeforeModules, name),
                        b = fmt::format("{}{}.lora_B.weight", kBeforeModules, name);
      AdapterMatrix& matrix = adapter[module.name];
      auto [numbers_of_a, type_of_a] = read_numbers(file, tensors, a, {rank, module.inputs});
      auto [numbers_of_b, type_of_b] = read_numbers(file, tensors, b, {outputs, rank});
      matrix = {static_cast<std::size_t>(rank), static_cast<float>(config.scale(name)),
                type_of_a == type_of_b ? type_of_a : DType::kFloat32, std::move(numbers_of_a),
                std::move(numbers_of_b)};
      if (!std::isfinite(matrix.scale)) throw Error("{}: the scale of {} is not finite", config.file(), name);
      known.insert({a, b});
    }
  });
  for (const auto& entry : tensors.tensors()) {
    if (known.contains(entry.first)) continue;
    throw Error(
        "{}: tensor {} is not lora_A or lora_B of a product that {} targets; embeddings, output layers, "
        "experts and biases cannot be adapted",
        file.string(), quote(entry.first), config.file());
  }
  tensors.require_whole();
  return adapter;
}

std::size_t set_adapters(Network& network, Device& device, std::span<const Adapter> adapters) {
  std::size_t bytes = 0;
  const auto ints = [&](const std::vector<std::int32_t>& values, const Shape& shape) {
    Tensor tensor = device.allocate(DType::kInt32, shape);
    device.copy_from_host(values, tensor);
    return tensor;
  };
  network.visit_products([&](Linear& product, const std::vector<Module>& modules) {
    const auto width = static_cast<std::size_t>(product.weight.out_features);
    std::vector<float> down, up, scales;
    std::optional<DType> dtype;
    std::vector<std::int32_t> columns, firsts{0};
    for (const Adapter& adapter : adapters) {
      for (const Module& module : modules) {
        const auto found = adapter.find(module.name);
        if (found == adapter.end()) continue;
        const AdapterMatrix& matrix = found->second;
        const auto [first, last] = std::minmax_element(module.columns.begin(), module.columns.end());
        dtype = dtype.value_or(matrix.dtype) == matrix.dtype ? matrix.dtype : DType::kFloat32;
        down.insert(down.end(), matrix.a.begin(), matrix.a.end());
        for (std::size_t k = 0; k < matrix.rank; ++k) {
          up.resize(up.size() + width);
          const auto row = up.end() - static_cast<std::ptrdiff_t>(width);
          for (std::size_t o = 0; o < module.columns.size(); ++o) {
            row[module.columns[o]] = matrix.b[o * matrix.rank + k];
          }
          scales.push_back(matrix.scale);
          columns.push_back(static_cast<std::int32_t>(*first));
          columns.push_back(static_cast<std::int32_t>(*last + 1));
        }
      }
      firsts.push_back(static_cast<std::int32_t>(columns.size() / 2));
    }
    product.adapters = {};
    const std::int64_t ranks = std::ssize(columns) / 2;
    if (ranks == 0) return;
    product.adapters = {matrix_on(device, down, ranks, *dtype), matrix_on(device, up, ranks, *dtype),
                        device.load({scales.data(), DType::kFloat32, 1, ranks}), ints(columns, {ranks, 2}),
                        ints(firsts, {std::ssize(firsts)})};
    const LowRank& set = product.adapters;
    for (const Tensor* tensor : {&set.down, &set.up, &set.scales, &set.columns, &set.firsts})
      bytes += tensor->bytes();
  });
  return bytes;
}

}  // namespace staircase
