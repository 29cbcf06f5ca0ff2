// Llama (Touvron et al. 2023) and the families that build on its block: rotary positions, a gated MLP
// (SwiGLU), RMSNorm, and query heads that share key heads. SmolLM2 and TinyLlama also belong to this family.
//
//   OLMo          (Groeneveld et al. 2024)  layer norm without weights in place of RMSNorm
//   Mistral       (Jiang et al. 2023)       attention to a window of the newest positions
//   Qwen2         (Yang et al. 2024)        biases on queries, keys and values
//   Qwen3         (Yang et al. 2025)        RMSNorm on each head of queries and keys
//   Gemma 3       (Gemma Team 2025)         the same, and on what a block adds; a GELU in the gate; layers
//                                           with a window, which rotate faster
//   Mixtral       (Jiang et al. 2024)       a mixture of experts: some MLPs, of which a router chooses a few
//   OLMoE         (Muennighoff et al. 2024) the same, and RMSNorm on all heads of queries together, and keys
//   Qwen3-MoE     (Yang et al. 2025)        Qwen3 with a mixture in some blocks or in all
//
// Weights that a family lacks are empty here, and the operations skip them.
#include <fmt/format.h>

#include <cmath>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/model/family.h"
#include "common/model/llama.h"
#include "kernels/half.h"

namespace staircase {
namespace {

constexpr double kUsualHead = 256.0;  // transformers' default for Gemma
constexpr int kMostExperts = 1 << 16;
constexpr int kUsualWindow = 4096;  // transformers' default for Mistral, Qwen and Gemma

bool is_gemma(const Settings& settings) {
  return settings.text_or("model_type", "") == "gemma3_text";
}

/// Which layers have a window according to the list layer_types.
std::vector<bool> listed_layers(const Settings& settings, const nlohmann::json& types, int n_layer) {
  if (!types.is_array() || std::ssize(types) != n_layer) {
    throw Error("{}: layer_types is {}, not a list of {} types, one for each layer", settings.file(),
                types.is_array() ? fmt::format("a list of {}", types.size()) : shown(types), n_layer);
  }
  std::vector<bool> slides;
  for (const nlohmann::json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      throw Error("{}: a layer's type in layer_types is {}, not \"full_attention\" or \"sliding_attention\"",
                  settings.file(), shown(type));
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

/// All layers except every sixth have a window, unless a setting states otherwise.
void apply_gemma_window(const Settings& settings, ModelConfig& config) {
  const int period = settings.integer_or("sliding_window_pattern", 6, 1, kLargestSize);
  std::vector<bool> slides;
  for (int layer = 1; layer <= config.n_layer; ++layer) slides.push_back(layer % period != 0);
  if (const nlohmann::json* types = settings.find("layer_types"))
    slides = listed_layers(settings, *types, config.n_layer);
  if (std::ranges::count(slides, true) == 0) return;
  if (settings.is_null("sliding_window")) {
    throw Error("{}: sliding_window is null, but some layers have a window and need its size",
                settings.file());
  }
  const int window = settings.integer_or("sliding_window", kUsualWindow, 1, kLargestSize);
  // Needed even if the context is not longer than the window: these layers have a rotation of their own.
  for (const bool one : slides) config.windows.push_back(one ? window : kNoWindow);
}

/// The rotation of layers without a window, then of layers with one.
const RotaryKeys kGemmaRotaries[] = {
    {.usual_theta = 1e6, .layers = "full_attention"},
    {.theta = "rope_local_base_freq", .layers = "sliding_attention", .scales = false}};

std::vector<Rotary> rotaries_of(const Settings& settings, int head_size) {
  if (settings.text_or("model_type", "") == "mixtral") {
    return {Rotary(settings, head_size, {.usual_theta = 1e6})};
  }
  if (!is_gemma(settings)) return {Rotary(settings, head_size)};
  std::vector<Rotary> rotaries;
  for (const RotaryKeys& keys : kGemmaRotaries) rotaries.emplace_back(settings, head_size, keys);
  return rotaries;
}

/// Applies windows as transformers does. In Mistral and Mixtral every layer has the window. Qwen has a
/// switch: with it, the layers from max_window_layers on have the window, or the layers in a list; in
/// Qwen3-MoE every layer has it. A list that names such layers without the switch is an error, because
/// transformers cannot run it.
void apply_window(const Settings& settings, ModelConfig& config) {
  const std::string type = settings.text_or("model_type", "");
  const bool qwen = type.starts_with("qwen"), moe = type == "qwen3_moe",
             all = type == "mistral" || type == "mixtral" || moe;
  if (type == "mixtral" && !settings.find("sliding_window")) return;
  if (moe && !settings.boolean_or("use_sliding_window", false)) return;
  std::vector<bool> slides(static_cast<std::size_t>(config.n_layer), all);
  if (const nlohmann::json* types = settings.find("layer_types"); types && !all) {
    slides = listed_layers(settings, *types, config.n_layer);
    const bool has_window =
        settings.boolean_or("use_sliding_window", false) && !settings.is_null("sliding_window");
    if (qwen && std::ranges::count(slides, true) > 0 && !has_window) {
      throw Error(
          "{}: layer_types names layers with a window, which need a sliding_window and a "
          "use_sliding_window of true",
          settings.file());
    }
  } else if (!all && settings.boolean_or("use_sliding_window", false)) {
    const int first = settings.integer_or("max_window_layers", 28, 0, kLargestSize);
    for (int layer = first; layer < config.n_layer; ++layer) slides[static_cast<std::size_t>(layer)] = true;
  }
  if (std::ranges::count(slides, true) == 0 || settings.is_null("sliding_window")) return;
  const int window = settings.integer_or("sliding_window", kUsualWindow, 1, kLargestSize);
  if (window >= config.n_positions) return;
  if (!settings.find("sliding_window")) {
    config.remarks.push_back(fmt::format(
        "sliding_window is not stated, so its layers see {} positions, as in transformers", window));
  }
  for (const bool one : slides) config.windows.push_back(one ? window : kNoWindow);
}

/// The default sizes of a mixture of experts in transformers.
struct UsualMixture {
  int experts, chosen;
};

/// Published folders have num_experts, but transformers 5 writes num_local_experts; Mixtral always has
/// num_local_experts.
int count_experts(const Settings& settings, int usual) {
  const nlohmann::json* const one = settings.find("num_experts");
  const nlohmann::json* const other = settings.find("num_local_experts");
  if (one && other && *one != *other) {
    throw Error("{}: num_experts is {} and num_local_experts {}, but both must be the same number",
                settings.file(), shown(*one), shown(*other));
  }
  return settings.integer_or(one ? "num_experts" : "num_local_experts", usual, 1, kMostExperts);
}

/// Which blocks have experts: every decoder_sparse_step-th block that mlp_only_layers does not list.
std::vector<bool> blocks_with_experts(const Settings& settings, int n_layer) {
  std::vector<bool> mixed;
  const int step = settings.integer_or("decoder_sparse_step", 1, 1, kLargestSize);
  for (int layer = 1; layer <= n_layer; ++layer) mixed.push_back(layer % step == 0);
  const nlohmann::json* const dense = settings.find("mlp_only_layers");
  if (dense == nullptr) return mixed;
  if (!dense->is_array()) {
    throw Error("{}: mlp_only_layers is {}, not a list of layers", settings.file(), shown(*dense));
  }
  for (const nlohmann::json& layer : *dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= n_layer) {
      throw Error("{}: mlp_only_layers lists {}, not a layer from 0 to {}", settings.file(), shown(layer),
                  n_layer - 1);
    }
    mixed[layer.get<std::size_t>()] = false;
  }
  return mixed;
}

/// Rejects settings that transformers ignores in families whose blocks all have experts.
void require_experts_everywhere(const Settings& settings) {
  settings.require("decoder_sparse_step", {1});
  settings.require("mlp_only_layers", {nlohmann::json::array()});
}

/// The shares of the chosen experts sum to 1 only if the softmax is over the chosen experts alone.
RouterSoftmax router_softmax(const Settings& settings) {
  const bool chosen =
      settings.text_or("model_type", "") == "mixtral" || settings.boolean_or("norm_topk_prob", false);
  return chosen ? RouterSoftmax::kChosen : RouterSoftmax::kAll;
}

/// Adds experts of this width to the configuration.
void apply_experts(const Settings& settings, const UsualMixture& usual, int width, ModelConfig& config) {
  for (const char* const shared : {"n_shared_experts", "shared_expert_intermediate_size"})
    settings.require(shared, {0});
  settings.require("scoring_func", {"softmax"});
  settings.require("routed_scaling_factor", {1.0});
  const int experts = count_experts(settings, usual.experts);
  const int chosen = settings.integer_or("num_experts_per_tok", usual.chosen, 1, experts);
  const std::vector<bool> mixed = blocks_with_experts(settings, config.n_layer);
  const auto blocks = std::ranges::count(mixed, true);
  router_softmax(settings);
  if (blocks == 0) return;
  config.n_experts = experts;
  config.experts_per_token = chosen;
  config.expert_inner = width;
  config.vector_numbers += static_cast<std::size_t>(blocks) * config.n_embd * experts;
  if (blocks == config.n_layer) config.n_inner = width;
  // If blocks differ, every block counts as the larger kind.
  const std::int64_t columns = std::max<std::int64_t>(std::int64_t{experts} * width, config.n_inner);
  config.mlp_matrices = static_cast<int>(3 * ((columns + config.n_inner - 1) / config.n_inner));
}

/// Defaults of transformers that depend on the family. An n_kv_head of 0 means as many key heads as query
/// heads.
struct Usual {
  int n_kv_head = 0;
  double norm_epsilon = 1e-6;
};

/// Reads the configuration. A head size of 0 means the width divided by the number of heads.
ModelConfig configure(const Settings& settings, int head_size, const Usual& usual = {}) {
  const bool gemma = is_gemma(settings);
  settings.require("hidden_act", {gemma ? "gelu_pytorch_tanh" : "silu"});
  settings.require("attention_bias", {false});
  settings.require("mlp_bias", {false});
  settings.require("pretraining_tp", {1});

  ModelConfig config;
  config.vocab_size = settings.integer("vocab_size", 1, kLargestSize);
  config.n_positions = settings.integer("max_position_embeddings", 1, kLargestSize);
  config.n_embd = settings.integer("hidden_size", 1, kLargestSize);
  config.n_layer = settings.integer("num_hidden_layers", 1, kLargestSize);
  config.n_head = settings.integer("num_attention_heads", 1, kLargestSize);
  config.n_kv_head = settings.integer_or(
      "num_key_value_heads", usual.n_kv_head > 0 ? usual.n_kv_head : config.n_head, 1, kLargestSize);
  config.n_inner = settings.integer("intermediate_size", 1, kLargestSize);
  config.norm_epsilon = static_cast<float>(settings.positive_or("rms_norm_eps", usual.norm_epsilon));
  config.tie_word_embeddings = settings.boolean_or("tie_word_embeddings", gemma);
  if (config.n_head % config.n_kv_head != 0) {
    throw Error("{}: num_attention_heads is {}, not a multiple of num_key_value_heads, which is {}",
                settings.file(), config.n_head, config.n_kv_head);
  }
  config.head_size = head_size > 0 ? head_size : config.n_embd / config.n_head;
  if (head_size == 0 && config.n_embd % config.n_head != 0) {
    throw Error("{}: hidden_size is {}, not a multiple of num_attention_heads, which is {}", settings.file(),
                config.n_embd, config.n_head);
  }
  const std::vector<Rotary> rotaries = rotaries_of(settings, config.head_size);
  for (const Rotary& rotary : rotaries) {
    if (rotary.size() == config.head_size) continue;
    throw Error("{}: {} of the {} features of a head would rotate, but in this family all of them must",
                settings.file(), rotary.size(), config.head_size);
  }
  config.rotary_size = rotaries[0].size();
  config.rope_theta = rotaries[0].theta();
  config.n_positions = std::max(config.n_positions, rotaries[0].context());
  config.mlp_matrices = 3;
  config.vector_numbers = (std::size_t{2} * config.n_layer + 1) * config.n_embd;
  gemma ? apply_gemma_window(settings, config) : apply_window(settings, config);
  return config;
}

ModelConfig configure_llama(const Settings& settings) {
  return configure(settings, settings.integer_or("head_dim", 0, 1, kLargestSize));
}

ModelConfig configure_mixtral(const Settings& settings) {
  settings.require("norm_topk_prob", {true});
  require_experts_everywhere(settings);
  ModelConfig config = configure(settings, settings.integer_or("head_dim", 0, 1, kLargestSize),
                                 {.n_kv_head = 8, .norm_epsilon = 1e-5});
  apply_experts(settings, {.experts = 8, .chosen = 2}, config.n_inner, config);
  return config;
}

ModelConfig configure_olmoe(const Settings& settings) {
  settings.require("clip_qkv", {});
  require_experts_everywhere(settings);
  ModelConfig config =
      configure(settings, settings.integer_or("head_dim", 0, 1, kLargestSize), {.norm_epsilon = 1e-5});
  config.vector_numbers += std::size_t{1} * config.n_layer * (config.query_width() + config.key_width());
  apply_experts(settings, {.experts = 64, .chosen = 8}, config.n_inner, config);
  return config;
}

ModelConfig configure_olmo(const Settings& settings) {
  settings.require("clip_qkv", {});
  ModelConfig config = configure_llama(settings);
  config.norm_epsilon = 1e-5f;  // set in OLMo's code, not in its settings
  config.vector_numbers = 0;
  return config;
}

ModelConfig configure_qwen2(const Settings& settings) {
  ModelConfig config = configure_llama(settings);
  config.vector_numbers += std::size_t{1} * config.n_layer * (config.query_width() + 2 * config.key_width());
  return config;
}

ModelConfig configure_qwen3(const Settings& settings) {
  ModelConfig config = configure(settings, settings.integer_or("head_dim", 128, 1, kLargestSize));
  config.vector_numbers += std::size_t{2} * config.n_layer * config.head_size;
  return config;
}

ModelConfig configure_qwen3_moe(const Settings& settings) {
  ModelConfig config =
      configure(settings, settings.integer_or("head_dim", 0, 1, kLargestSize), {.n_kv_head = 4});
  config.vector_numbers += std::size_t{2} * config.n_layer * config.head_size;
  apply_experts(settings, {.experts = 128, .chosen = 8},
                settings.integer_or("moe_intermediate_size", 768, 1, kLargestSize), config);
  return config;
}

ModelConfig configure_gemma3(const Settings& settings) {
  settings.require("hidden_activation", {"gelu_pytorch_tanh"});
  settings.require("use_bidirectional_attention", {false});
  settings.positive_or("query_pre_attn_scalar", kUsualHead);
  ModelConfig config =
      configure(settings, settings.integer_or("head_dim", static_cast<int>(kUsualHead), 1, kLargestSize),
                {.n_kv_head = 4});
  config.vector_numbers += std::size_t{2} * config.n_layer * (config.n_embd + config.head_size);
  return config;
}

/// Gemma multiplies its embeddings by the square root of their width, rounded to their type.
float embedding_scale(const ModelConfig& config, DType dtype) {
  if (config.family != "gemma3_text") return 1.0f;
  const float scale = std::sqrt(static_cast<float>(config.n_embd));
  const DType rounds = kv_dtype(dtype);  // also the type for embeddings in int8 or int4
  if (rounds == DType::kFloat16) return float32_from_float16(float16_from_float32(scale));
  return rounds == DType::kBFloat16 ? float32_from_bfloat16(bfloat16_from_float32(scale)) : scale;
}

/// Reads the experts of a block, which are stored in one of three forms. Published folders have separate
/// matrices for each expert. Transformers 5 has two tensors for all experts and joins the gate and up
/// matrices; GGUF has three tensors.
std::vector<LlamaWeights::Block::Expert> read_experts(WeightReader& weights, const std::string& mlp,
                                                      const ModelConfig& config) {
  using Part = WeightReader::Part;
  const Slice& inner = weights.share().expert_inner;
  const std::int64_t n_embd = config.n_embd, experts = config.n_experts;
  const std::string all = mlp + "experts.";
  const bool is_pair = weights.has(all + "gate_up_proj"), is_triple = weights.has(all + "gate_proj.weight"),
             is_mixtral = mlp.ends_with("block_sparse_moe.");
  std::vector<LlamaWeights::Block::Expert> read;
  for (std::int64_t e = 0; e < experts; ++e) {
    // In a tensor of all experts: `count` outputs from `first` on, out of the `outputs` of each expert.
    const auto of_all = [&](const char* name, std::int64_t outputs, std::int64_t first, std::int64_t count) {
      return Part{all + name, {experts * outputs, e * outputs + first, count}, experts};
    };
    const std::string own = fmt::format("{}{}.", all, e);
    Part gate{own + (is_mixtral ? "w1.weight" : "gate_proj.weight"), inner},
        up{own + (is_mixtral ? "w3.weight" : "up_proj.weight"), inner},
        down{own + (is_mixtral ? "w2.weight" : "down_proj.weight"), n_embd};
    if (is_pair) {
      gate = of_all("gate_up_proj", 2 * inner.whole, inner.first, inner.count);
      up = of_all("gate_up_proj", 2 * inner.whole, inner.whole + inner.first, inner.count);
      down = of_all("down_proj", n_embd, 0, n_embd);
    } else if (is_triple) {
      gate = of_all("gate_proj.weight", inner.whole, inner.first, inner.count);
      up = of_all("up_proj.weight", inner.whole, inner.first, inner.count);
      down = of_all("down_proj.weight", n_embd, 0, n_embd);
    }
    read.push_back({{weights.gated_matrix(gate, up, n_embd)}, {weights.matrix(down, inner)}});
  }
  return read;
}

class Llama : public Network {
 public:
  Llama(const Settings& settings, const ModelConfig& config, WeightReader& weights)
      : rotaries_(rotaries_of(settings, config.head_size)),
        gate_(config.family == "gemma3_text" ? Epilogue::kGeluGate : Epilogue::kSiluGate),
        router_softmax_(config.n_experts > 0 ? router_softmax(settings) : RouterSoftmax::kAll),
        heads_together_(config.family == "olmoe") {
    const std::int64_t n_embd = config.n_embd;
    const Share& share = weights.share();
    const bool gemma = config.family == "gemma3_text";
    if (heads_together_ && !share.whole) {
      throw Error(
          "{}: olmoe normalizes the queries of all heads together, so its heads cannot be split "
          "between ranks; split whole blocks instead",
          settings.file());
    }
    // Gemma's residual stream is kept divided by this scale. A norm cancels the scale if its epsilon is
    // divided by the square; what a block adds is divided by the scale.
    const float scale = embedding_scale(config, weights.dtype());
    const auto output = [&](const std::string& name, const Slice& in) {
      return Linear{weights.matrix(name + ".weight", WeightOrder::kOutputFirst, in, {n_embd})};
    };
    // Hugging Face stores Gemma's gains minus 1; GGUF files store the gains.
    const auto gemma_norm = [&](const std::string& name, std::int64_t width, float factor, float epsilon) {
      std::vector<float> gains = weights.values(name + ".weight", width);
      for (float& gain : gains) gain = (weights.from_gguf() ? gain : 1.0f + gain) * factor;
      return Norm{NormKind::kRms, weights.vector(gains), {}, epsilon};
    };
    const auto norm = [&](const std::string& name, std::int64_t width) {
      if (config.family == "olmo") return Norm{NormKind::kLayer, {}, {}, config.norm_epsilon};
      if (gemma) return gemma_norm(name, width, 1.0f, config.norm_epsilon / (scale * scale));
      return Norm{NormKind::kRms, weights.vector(name + ".weight", width), {}, config.norm_epsilon};
    };
    // Gemma may scale scores by a number other than 1 / sqrt(head_size). Its query norm contains the quotient
    // of the two.
    const double query_gain =
        gemma ? std::sqrt(config.head_size / settings.positive_or("query_pre_attn_scalar", kUsualHead)) : 1.0;
    const auto head_norm = [&](const std::string& name, double gain, std::int64_t all_heads) {
      if (gemma) return gemma_norm(name, config.head_size, static_cast<float>(gain), config.norm_epsilon);
      if (heads_together_) return norm(name, all_heads);
      return config.family.starts_with("qwen3") ? norm(name, config.head_size) : Norm();
    };
    const auto added_norm = [&](const std::string& name) {
      return gemma ? gemma_norm(name, n_embd, 1.0f / scale, config.norm_epsilon) : Norm();
    };
    std::vector<bool> mixed;
    if (config.n_experts > 0) mixed = blocks_with_experts(settings, static_cast<int>(share.blocks.whole));
    weights_.embeddings = weights.embeddings("embed_tokens.weight", "lm_head.weight", config);
    for (int l = 0; l < config.n_layer; ++l) {
      const std::string block = fmt::format("layers.{}.", share.blocks.first + l),
                        attention = block + "self_attn.";
      const auto parts = [&](const std::string& ending) {
        std::vector<WeightReader::Part> parts{{attention + "q_proj" + ending, share.queries}};
        for (const char* name : {"k_proj", "v_proj"}) {
          for (const Slice& keys : share.keys) parts.push_back({attention + name + ending, keys});
        }
        return parts;
      };
      weights_.blocks.push_back(
          {.input_norm = norm(block + "input_layernorm", n_embd),
           .attention_input = {weights.matrix(parts(".weight"), n_embd),
                               config.family == "qwen2" ? weights.vector(parts(".bias")) : Tensor()},
           .query_norm = head_norm(attention + "q_norm", query_gain, config.query_width()),
           .key_norm = head_norm(attention + "k_norm", 1.0, config.key_width()),
           .attention_output = output(attention + "o_proj", share.queries),
           .attention_norm = added_norm(block + "post_attention_layernorm"),
           .mlp_norm =
               norm(block + (gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm"), n_embd),
           .mlp_output_norm = added_norm(block + "post_feedforward_layernorm"),
           .rotary = gemma && config.window(static_cast<int>(share.blocks.first) + l) != kNoWindow});
      LlamaWeights::Block& loaded = weights_.blocks.back();
      if (!mixed.empty() && mixed[static_cast<std::size_t>(share.blocks.first + l)]) {
        // Mixtral's published name, then transformers' name.
        const std::string old = block + "block_sparse_moe.",
                          mlp = weights.has(old + "gate.weight") ? old : block + "mlp.";
        loaded.router = {weights.router(mlp + "gate.weight", config.n_experts, n_embd)};
        loaded.experts = read_experts(weights, mlp, config);
        continue;
      }
      const std::string mlp = block + "mlp.";
      loaded.mlp_input = {weights.gated_matrix({mlp + "gate_proj.weight", share.inner},
                                               {mlp + "up_proj.weight", share.inner}, n_embd)};
      loaded.mlp_output = output(mlp + "down_proj", share.inner);
    }
    if (share.has_last_block()) weights_.final_norm = norm("norm", n_embd);
    // GGUF files store the factors of a scaled rotation, not its settings.
    if (weights.has("rope_freqs.weight")) {
      rotaries_[0].divide_speeds(weights.values("rope_freqs.weight", rotaries_[0].size() / 2));
    }
  }

  void run(Pass& pass) const override {
    Device& device = pass.device();
    Tensor x = pass.residual(), projected = pass.projected(), queries = pass.queries();
    Tensor attended = pass.attended();
    if (pass.begins()) {
      device.embedding(pass.batch(), weights_.embeddings.tokens, Tensor(), x);
      pass.all_reduce(x);
      pass.show("embeddings", x);
    }
    for (int l = 0; const LlamaWeights::Block& block : weights_.blocks) {
      KeysValues keys_values = pass.keys_values(l);
      pass.linear(x, block.input_norm, block.attention_input, Epilogue::kStore, projected);
      device.split_heads(pass.batch(), projected,
                         {block.query_norm, block.key_norm, pass.rotations(block.rotary), heads_together_},
                         queries, keys_values);
      pass.announce(block.attention_output, block.mlp_input);
      pass.attend(l, queries, keys_values, x, attended);
      add(pass, attended, block.attention_output, block.attention_norm, x);
      if (block.experts.empty()) {
        Tensor hidden = pass.hidden(x);
        pass.linear(x, block.mlp_norm, block.mlp_input, gate_, hidden);
        add(pass, hidden, block.mlp_output, block.mlp_output_norm, x);
      } else {
        add_experts(pass, l, block, x);
      }
      pass.show(fmt::format("block.{}", pass.first_block() + l++), x);
    }
    pass.finish(x, weights_.final_norm, output_layer());
  }

  const Weight& output_layer() const override { return weights_.embeddings.output_layer(); }

  std::span<const Rotary> rotaries() const override { return rotaries_; }

  const LlamaWeights& weights() const { return weights_; }

  void visit_products(const VisitProduct& visit) override {
    for (int l = 0; LlamaWeights::Block & block : weights_.blocks) {
      const std::string name = fmt::format("layers.{}.", l++), attention = name + "self_attn.",
                        mlp = name + "mlp.";
      const std::int64_t width = block.attention_input.weight.in_features,
                         queries = block.attention_output.weight.in_features,
                         keys = (block.attention_input.weight.out_features - queries) / 2;
      visit(block.attention_input,
            {{attention + "q_proj", width, neighbouring_columns(0, queries)},
             {attention + "k_proj", width, neighbouring_columns(queries, keys)},
             {attention + "v_proj", width, neighbouring_columns(queries + keys, keys)}});
      visit(block.attention_output, {{attention + "o_proj", queries, neighbouring_columns(0, width)}});
      if (!block.experts.empty()) continue;
      const std::int64_t inner = block.mlp_output.weight.in_features;
      Module gate{mlp + "gate_proj", width}, up{mlp + "up_proj", width};
      for (std::int64_t i = 0; i < inner; ++i) {
        gate.columns.push_back(i / kGateColumns * 2 * kGateColumns + i % kGateColumns);
        up.columns.push_back(gate.columns.back() + kGateColumns);
      }
      visit(block.mlp_input, {gate, up});
      visit(block.mlp_output, {{mlp + "down_proj", inner, neighbouring_columns(0, width)}});
    }
  }

  void visit_weights(const VisitWeight& visit) override {
    visit("embed_tokens.weight", weights_.embeddings.tokens);
    for (int l = 0; LlamaWeights::Block & block : weights_.blocks) {
      const std::string name = fmt::format("layers.{}.", l++);
      visit(name + "self_attn.qkv_proj.weight", block.attention_input.weight);
      visit(name + "self_attn.o_proj.weight", block.attention_output.weight);
      if (block.experts.empty()) {
        visit(name + "mlp.gate_up_proj.weight", block.mlp_input.weight);
        visit(name + "mlp.down_proj.weight", block.mlp_output.weight);
        continue;
      }
      visit(name + "mlp.gate.weight", block.router.weight);
      for (int e = 0; LlamaWeights::Block::Expert & expert : block.experts) {
        const std::string own = fmt::format("{}mlp.experts.{}.", name, e++);
        visit(own + "gate_up_proj.weight", expert.input.weight);
        visit(own + "down_proj.weight", expert.output.weight);
      }
    }
    if (weights_.embeddings.output) visit("lm_head.weight", *weights_.embeddings.output);
  }

 private:
  /// x += norm(inside W).
  static void add(Pass& pass, const Tensor& inside, const Linear& layer, const Norm& norm, Tensor& x) {
    if (norm.kind == NormKind::kNone) {
      pass.linear(inside, {}, layer, pass.add_once(), x);
      pass.all_reduce(x);
      return;
    }
    Tensor added = pass.added(x);
    pass.linear(inside, {}, layer, Epilogue::kStore, added);
    pass.all_reduce(added);
    pass.device().add_normalized(added, norm, x);
  }

  /// x += for each row, the sum of the results of its chosen experts, each weighted by its share. An expert
  /// multiplies all its rows at once, so its weights are read once, or never if no row chose it.
  void add_experts(const Pass& pass, int layer, const LlamaWeights::Block& block, Tensor& x) const {
    Device& device = pass.device();
    Mixture mixture = pass.mixture(x);
    device.normalize(x, block.mlp_norm, mixture.normed);
    pass.linear(mixture.normed, {}, block.router, Epilogue::kStore, mixture.scores);
    device.choose_experts(mixture.scores, router_softmax_, mixture.chosen, mixture.shares);
    const ExpertRows sorted = pass.sort_by_expert(layer, mixture.chosen);
    device.gather_rows(mixture.normed, sorted.sources, mixture.inputs);
    multiply_experts(pass, block, sorted.firsts, mixture);
    device.combine_rows(mixture.outputs, sorted.places, mixture.shares, pass.add_once(), x);
    pass.all_reduce(x);
  }

  /// mixture.outputs = the results of the experts for mixture.inputs, whose rows are sorted by expert.
  void multiply_experts(const Pass& pass, const LlamaWeights::Block& block,
                        const std::vector<std::int64_t>& firsts, Mixture& mixture) const {
    Device& device = pass.device();
    const std::int64_t width = pass.config().expert_inner;
    if (device.joins_groups(mixture.inputs.dim(0))) {
      std::vector<const Weight*> inputs, outputs;
      for (const LlamaWeights::Block::Expert& expert : block.experts) {
        inputs.push_back(&expert.input.weight);
        outputs.push_back(&expert.output.weight);
      }
      Tensor hidden = pass.hidden(mixture.inputs, width);
      device.linear_groups(mixture.inputs, firsts, inputs, gate_, hidden);
      device.linear_groups(hidden, firsts, outputs, Epilogue::kStore, mixture.outputs);
      return;
    }
    for (std::size_t e = 0; e < block.experts.size(); ++e) {
      const std::int64_t first = firsts[e], count = firsts[e + 1] - first;
      if (count == 0) continue;
      const LlamaWeights::Block::Expert& expert = block.experts[e];
      const Tensor inputs = mixture.inputs.rows(first, count);
      Tensor hidden = pass.hidden(inputs, width), outputs = mixture.outputs.rows(first, count);
      pass.linear(inputs, {}, expert.input, gate_, hidden);
      pass.linear(hidden, {}, expert.output, Epilogue::kStore, outputs);
    }
  }

  std::vector<Rotary> rotaries_;
  Epilogue gate_;
  RouterSoftmax router_softmax_;
  bool heads_together_;
  LlamaWeights weights_;
};

std::unique_ptr<Network> load(const Settings& settings, const ModelConfig& config, WeightReader& weights) {
  return std::make_unique<Llama>(settings, config, weights);
}

const std::vector<std::string_view> kBuffers{".rotary_emb.inv_freq"};

}  // namespace

const LlamaWeights& llama_weights(const Model& model) {
  const auto* const llama = dynamic_cast<const Llama*>(&model.network());
  const ModelConfig& config = model.config();
  const bool differs = config.family == "gemma3_text" || config.family == "olmoe" || config.n_experts > 0;
  if (llama != nullptr && !differs) return llama->weights();
  throw Error("this pass computes Llama and its relatives, but the model is a {}", config.family);
}

const Family kLlama{"llama", "model.", kBuffers, configure_llama, load};
const Family kMistral{"mistral", "model.", kBuffers, configure_llama, load};
const Family kOlmo{"olmo", "model.", kBuffers, configure_olmo, load};
const Family kQwen2{"qwen2", "model.", kBuffers, configure_qwen2, load};
const Family kQwen3{"qwen3", "model.", kBuffers, configure_qwen3, load};
const Family kGemma3{"gemma3_text", "model.", kBuffers, configure_gemma3, load};

const Family kOlmoe{"olmoe", "model.", kBuffers, configure_olmoe, load};
const Family kMixtral{"mixtral", "model.", kBuffers, configure_mixtral, load};
const Family kQwen3Moe{"qwen3_moe", "model.", kBuffers, configure_qwen3_moe, load};

}  // namespace staircase
