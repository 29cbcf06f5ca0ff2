#include "common/model/plain_weights.h"

#include <span>
#include <utility>

#include "common/base/error.h"
#include "common/model/adapter.h"
#include "common/model/family.h"
#include "common/model/rotary.h"
#include "common/model/weight_matrices.h"

namespace staircase {
namespace {

using Numbers = std::vector<float>;
using Names = std::span<const std::pair<std::string_view, std::string_view>>;

constexpr std::pair<std::string_view, std::string_view> kGpt2Names[] = {
    {"wte.", "embed_tokens."},
    {"wpe.", "embed_positions."},
    {"h.", "layers."},
    {"ln_1.", "input_layernorm."},
    {"attn.c_attn.", "self_attn.qkv_proj."},
    {"attn.c_proj.", "self_attn.o_proj."},
    {"ln_2.", "post_attention_layernorm."},
    {"mlp.c_fc.", "mlp.up_proj."},
    {"mlp.c_proj.", "mlp.down_proj."},
    {"ln_f.", "norm."},
};
constexpr std::pair<std::string_view, std::string_view> kNeoxNames[] = {
    {"embed_in.", "embed_tokens."},
    {"attention.query_key_value.", "self_attn.qkv_proj."},
    {"attention.dense.", "self_attn.o_proj."},
    {"mlp.dense_h_to_4h.", "mlp.up_proj."},
    {"mlp.dense_4h_to_h.", "mlp.down_proj."},
    {"final_layer_norm.", "norm."},
    {"embed_out.", "lm_head."},
};

Names names_of(std::string_view family) {
  if (family == "gpt2") return kGpt2Names;
  if (family == "gpt_neox") return kNeoxNames;
  return {};
}

/// The step whose plain loops run the family; "" if none does.
std::string_view step_of(std::string_view family) {
  if (family == "gpt2") return "81-plain-attention";
  if (family == "gpt_neox") return "82-rotary-positions";
  if (family == "olmo") return "83-gated-mlp";
  if (family == "llama") return "84-rms-norm";
  if (family == "qwen3") return "86-qk-norm";
  if (family == "qwen3_moe") return "111-experts";
  return "";
}

/// Throws Error for a model of another family.
void check_family(std::string_view own, std::string_view family) {
  if (own == family) return;
  const std::string_view step = step_of(own);
  if (step.empty())
    throw Error("this step runs {}, but the model's family is {}, which no step has in plain loops", family,
                own);
  throw Error("this step runs {}, but the model's family is {}, which {} adds", family, own, step);
}

/// Throws Error for features that change the logits but that a plain pass with this extra does not compute.
void check_extras(const Model& model, const std::map<std::string, Numbers>& weights, Extra extra) {
  const std::string& family = model.config().family;
  if (extra != Extra::kParallelBlocks) {
    const std::string_view step = "88-parallel-blocks";
    if (has_parallel_blocks(model))
      throw Error("this {} has parallel blocks (use_parallel_residual), which {} adds", family, step);
    if (has_exact_gelu(model))
      throw Error("this {} has the exact GELU (hidden_act), which {} adds", family, step);
  }
  if (weights.contains("rope_freqs.weight")) {
    throw Error(
        "this {} scales its rotary positions by a tensor of its GGUF file (rope_freqs.weight), but the "
        "plain loops need the model's folder, whose config.json has the settings",
        family);
  }
  if (!model.config().windows.empty()) {
    throw Error("this {} has layers that see a window only, which no step has in plain loops", family);
  }
  if (family == "qwen3_moe" && !read_settings(model.path()).boolean_or("norm_topk_prob", false)) {
    throw Error("this {} has shares that do not sum to 1 (norm_topk_prob), which no step has in plain loops",
                family);
  }
  if (extra != Extra::kScaledRotation && rotary_scaling(model).factor != 1.0) {
    throw Error("this {} has scaled rotary positions, which {}", family,
                family == "llama" ? "89-scaled-rotation adds" : "no step has in plain loops");
  }
}

/// Replaces each of the names where it stands at the beginning or after a dot.
std::string translated(std::string name, Names names) {
  for (const auto& [from, to] : names) {
    const auto place = name.find(from);
    if (place != name.npos && (place == 0 || name[place - 1] == '.')) name.replace(place, from.size(), to);
  }
  return name;
}

/// Splits tensors of all experts into one tensor per expert, named ….experts.E.… for expert E. The first half
/// of a gate_up_proj becomes gate_proj, the second half up_proj.
std::map<std::string, Numbers> by_expert(std::map<std::string, Numbers> all, std::size_t n_experts) {
  std::map<std::string, Numbers> cut;
  for (auto& [name, stored] : all) {
    const auto place = name.find(".experts.");
    const std::size_t end = place + std::string_view(".experts.").size();
    if (place == name.npos || end == name.size() || (name[end] >= '0' && name[end] <= '9')) {
      cut[name] = std::move(stored);
      continue;
    }
    const std::string part = name.substr(end, name.find('.', end) - end);
    const std::vector<std::string> parts =
        part == "gate_up_proj" ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector{part};
    const auto size = std::ssize(stored) / std::ssize(parts) / static_cast<std::ptrdiff_t>(n_experts);
    auto first = stored.begin();
    for (std::size_t expert = 0; expert < n_experts; ++expert) {
      for (const std::string& one : parts) {
        cut[fmt::format("{}{}.{}.weight", name.substr(0, end), expert, one)] = {first, first + size};
        first += size;
      }
    }
  }
  return cut;
}

/// Transposes a matrix: [rows, columns] to [columns, rows].
Numbers transposed(const Numbers& matrix, std::size_t rows) {
  const std::size_t columns = matrix.size() / rows;
  Numbers turned(matrix.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) turned[c * rows + r] = matrix[r * columns + c];
  }
  return turned;
}

/// Queries, keys or values (`part` 0, 1 or 2) of [inputs, 3 · width] as [inputs, width]. The outputs are
/// ordered by part, or by head as in GPT-NeoX; then `in_head` is the size of a head, otherwise 0.
Numbers third(const Numbers& all, std::size_t width, std::size_t part, std::size_t in_head) {
  Numbers one;
  for (std::size_t input = 0; input < all.size() / (3 * width); ++input) {
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t output =
          in_head == 0 ? part * width + i : (i / in_head * 3 + part) * in_head + i % in_head;
      one.push_back(all[input * 3 * width + output]);
    }
  }
  return one;
}

}  // namespace

std::map<std::string, std::vector<float>> plain_weights(const Model& model, std::string_view family,
                                                        Extra extra) {
  const ModelConfig& config = model.config();
  const std::size_t width = static_cast<std::size_t>(config.query_width());
  check_family(config.family, family);
  std::map<std::string, Numbers> weights, all = stored_weights(model, family);
  check_extras(model, all, extra);
  if (config.n_experts > 0) all = by_expert(std::move(all), static_cast<std::size_t>(config.n_experts));
  for (auto& [stored_name, stored] : all) {
    const std::string name = translated(stored_name, names_of(family));
    const bool is_matrix = name.ends_with("_proj.weight") || name.ends_with("mlp.gate.weight");
    const int inner = name.find(".experts.") == name.npos ? config.n_inner : config.expert_inner;
    if (!is_matrix && !name.ends_with("_proj.bias")) {
      weights[name] = std::move(stored);
      continue;
    }
    if (is_matrix && family != "gpt2") {
      const std::size_t inputs = name.ends_with("o_proj.weight")      ? width
                                 : name.ends_with("down_proj.weight") ? inner
                                                                      : config.n_embd;
      if (stored.empty() || stored.size() % inputs != 0)
        continue;  // a known suffix of a tensor that nothing reads
      stored = transposed(stored, stored.size() / inputs);
    }
    const auto qkv = name.find("qkv_proj");
    if (qkv == name.npos) {
      weights[name] = std::move(stored);
      continue;
    }
    for (std::size_t part = 0; part < 3; ++part) {
      std::string own = name;
      own.replace(qkv, 3, 1, "qkv"[part]);
      weights[own] = third(stored, width, part, family == "gpt_neox" ? config.head_size : 0);
    }
  }
  // As in the engine, a stored output layer takes precedence, even if the two are tied.
  if (!weights.contains("lm_head.weight")) weights["lm_head.weight"] = weights["embed_tokens.weight"];
  return weights;
}

Adapter plain_adapter(const Model& model, const std::filesystem::path& folder, std::string_view family) {
  const ModelConfig& config = model.config();
  check_family(config.family, family);
  Adapter adapter;
  for (auto& [module, matrix] : read_adapter(folder, model.network(), find_family(family)->prefix)) {
    // The translation expects names of weights, which continue after the module.
    std::string name = translated(module + ".", names_of(family));
    name.pop_back();
    const auto qkv = name.find("qkv_proj");
    if (qkv == name.npos) {
      adapter[name] = matrix;
      continue;
    }
    const std::size_t width = static_cast<std::size_t>(config.query_width()), rank = matrix.rank;
    for (std::size_t part = 0; part < 3; ++part) {
      std::string own = name;
      own.replace(qkv, 3, 1, "qkv"[part]);
      adapter[own] = matrix;
      adapter[own].b = transposed(
          third(transposed(matrix.b, 3 * width), width, part, family == "gpt_neox" ? config.head_size : 0),
          rank);
    }
  }
  return adapter;
}

bool has_parallel_blocks(const Model& model) {
  return model.config().family == "gpt_neox" &&
         read_settings(model.path()).boolean_or("use_parallel_residual", true);
}

bool has_exact_gelu(const Model& model) {
  return model.config().family == "gpt_neox" &&
         read_settings(model.path()).text_or("hidden_act", "gelu") == "gelu";
}

Llama3Scaling rotary_scaling(const Model& model) {
  return rotary_scaling(read_settings(model.path()));
}

}  // namespace staircase
