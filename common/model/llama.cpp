// Llama (Touvron et al. 2023) and the families that build on its block: rotary positions, a gated MLP
// (SwiGLU), RMSNorm, and query heads that share key heads. SmolLM2 and TinyLlama are of this family as well.
//
//   OLMo          (Groeneveld et al. 2024)  layer norm without weights in place of RMSNorm
//   Mistral       (Jiang et al. 2023)       attention to a window of the newest positions
//   Qwen2         (Yang et al. 2024)        biases on queries, keys and values
//   Qwen3         (Yang et al. 2025)        RMSNorm on each head of queries and keys
//   Gemma 3       (Gemma Team 2025)         the same, and on what a block adds; a GELU in the gate; layers
//                                           with a window, which rotate faster
//
// What a family lacks is empty here, and the operations leave it out.
#include <fmt/format.h>

#include <cmath>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/model/family.h"
#include "common/model/llama.h"
#include "kernels/half.h"

namespace staircase {
namespace {

constexpr double kUsualHead = 256.0;  // in transformers, of Gemma
constexpr int kUsualWindow = 4096;    // in transformers, of Mistral, Qwen and Gemma

bool is_gemma(const Settings& settings) {
  return settings.text_or("model_type", "") == "gemma3_text";
}

/// Which layers have a window, by the list layer_types.
std::vector<bool> listed_layers(const Settings& settings, const nlohmann::json& types, int n_layer) {
  if (!types.is_array() || std::ssize(types) != n_layer) {
    throw Error("{}: layer_types is {}, not a list of {} types, one for each layer", settings.file(),
                shown(types), n_layer);
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

/// All layers but each sixth have a window, or as a setting says.
void apply_gemma_window(const Settings& settings, ModelConfig& config) {
  const int period = settings.integer_or("sliding_window_pattern", 6, 1, kLargestSize);
  std::vector<bool> slides;
  for (int layer = 1; layer <= config.n_layer; ++layer) slides.push_back(layer % period != 0);
  if (const nlohmann::json* types = settings.find("layer_types"))
    slides = listed_layers(settings, *types, config.n_layer);
  if (std::ranges::count(slides, true) == 0) return;
  if (settings.is_null("sliding_window")) {
    throw Error("{}: sliding_window is null, but layers have a window, which needs a number",
                settings.file());
  }
  const int window = settings.integer_or("sliding_window", kUsualWindow, 1, kLargestSize);
  // Also where the context is no longer: these layers rotate in their own way.
  for (const bool one : slides) config.windows.push_back(one ? window : kNoWindow);
}

/// How the layers without a window rotate, and then those with one.
const RotaryKeys kGemmaRotaries[] = {
    {.usual_theta = 1e6, .layers = "full_attention"},
    {.theta = "rope_local_base_freq", .layers = "sliding_attention", .scales = false}};

std::vector<Rotary> rotaries_of(const Settings& settings, int head_size) {
  if (!is_gemma(settings)) return {Rotary(settings, head_size)};
  std::vector<Rotary> rotaries;
  for (const RotaryKeys& keys : kGemmaRotaries) rotaries.emplace_back(settings, head_size, keys);
  return rotaries;
}

/// As in transformers: in Mistral all layers have the window. Qwen has a switch, and the layers are those
/// from max_window_layers on or those in a list, which transformers does not run without the switch.
void apply_window(const Settings& settings, ModelConfig& config) {
  const std::string type = settings.text_or("model_type", "");
  const bool mistral = type == "mistral", qwen = type.starts_with("qwen");
  std::vector<bool> slides(static_cast<std::size_t>(config.n_layer), mistral);
  if (const nlohmann::json* types = settings.find("layer_types"); types && !mistral) {
    slides = listed_layers(settings, *types, config.n_layer);
    const bool has_window =
        settings.boolean_or("use_sliding_window", false) && !settings.is_null("sliding_window");
    if (qwen && std::ranges::count(slides, true) > 0 && !has_window) {
      throw Error(
          "{}: layer_types names layers with a window, which need a sliding_window, and a "
          "use_sliding_window of true",
          settings.file());
    }
  } else if (!mistral && settings.boolean_or("use_sliding_window", false)) {
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

/// A head size of 0: the width divided by the number of heads.
ModelConfig configure(const Settings& settings, int head_size) {
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
  config.n_kv_head = settings.integer_or("num_key_value_heads", gemma ? 4 : config.n_head, 1, kLargestSize);
  config.n_inner = settings.integer("intermediate_size", 1, kLargestSize);
  config.norm_epsilon = static_cast<float>(settings.positive_or("rms_norm_eps", 1e-6));
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
    throw Error(
        "{}: {} of the {} features of a head would turn, and only all of them are supported in this family",
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

ModelConfig configure_olmo(const Settings& settings) {
  settings.require("clip_qkv", {});
  ModelConfig config = configure_llama(settings);
  config.norm_epsilon = 1e-5f;  // in OLMo's code, not in its settings
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

ModelConfig configure_gemma3(const Settings& settings) {
  settings.require("hidden_activation", {"gelu_pytorch_tanh"});
  settings.require("attn_logit_softcapping", {});
  settings.require("final_logit_softcapping", {});
  settings.require("use_bidirectional_attention", {false});
  settings.positive_or("query_pre_attn_scalar", kUsualHead);
  ModelConfig config =
      configure(settings, settings.integer_or("head_dim", static_cast<int>(kUsualHead), 1, kLargestSize));
  config.vector_numbers += std::size_t{2} * config.n_layer * (config.n_embd + config.head_size);
  return config;
}

/// Gemma multiplies its embeddings by the root of their width, in their own type.
float embedding_scale(const ModelConfig& config, DType dtype) {
  if (config.family != "gemma3_text") return 1.0f;
  const float scale = std::sqrt(static_cast<float>(config.n_embd));
  const DType rounds = kv_dtype(dtype);  // that of embeddings in whole numbers, too
  if (rounds == DType::kFloat16) return float32_from_float16(float16_from_float32(scale));
  return rounds == DType::kBFloat16 ? float32_from_bfloat16(bfloat16_from_float32(scale)) : scale;
}

class Llama : public Network {
 public:
  Llama(const Settings& settings, const ModelConfig& config, WeightReader& weights)
      : rotaries_(rotaries_of(settings, config.head_size)),
        gate_(config.family == "gemma3_text" ? Epilogue::kGeluGate : Epilogue::kSiluGate) {
    const std::int64_t n_embd = config.n_embd;
    const Share& share = weights.share();
    const bool gemma = config.family == "gemma3_text";
    // Gemma's residual stream is kept divided by that scale, which its norms do not see: their epsilon is
    // divided by the square, and what a block adds by the scale.
    const float scale = embedding_scale(config, weights.dtype());
    const auto output = [&](const std::string& name, const Slice& in) {
      return Linear{weights.matrix(name + ".weight", WeightOrder::kOutputFirst, in, {n_embd})};
    };
    // Hugging Face stores Gemma's gains without their 1, GGUF files with it.
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
    // What attention multiplies a score by, beyond 1 / sqrt(head_size), is part of Gemma's queries.
    const double query_gain =
        gemma ? std::sqrt(config.head_size / settings.positive_or("query_pre_attn_scalar", kUsualHead)) : 1.0;
    const auto head_norm = [&](const std::string& name, double gain) {
      if (gemma) return gemma_norm(name, config.head_size, static_cast<float>(gain), config.norm_epsilon);
      return config.family == "qwen3" ? norm(name, config.head_size) : Norm();
    };
    const auto added_norm = [&](const std::string& name) {
      return gemma ? gemma_norm(name, n_embd, 1.0f / scale, config.norm_epsilon) : Norm();
    };
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
           .query_norm = head_norm(attention + "q_norm", query_gain),
           .key_norm = head_norm(attention + "k_norm", 1.0),
           .attention_output = output(attention + "o_proj", share.queries),
           .attention_norm = added_norm(block + "post_attention_layernorm"),
           .mlp_norm =
               norm(block + (gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm"), n_embd),
           .mlp_input = {weights.gated_matrix(block + "mlp.gate_proj.weight", block + "mlp.up_proj.weight",
                                              n_embd, share.inner)},
           .mlp_output = output(block + "mlp.down_proj", share.inner),
           .mlp_output_norm = added_norm(block + "post_feedforward_layernorm"),
           .rotary = gemma && config.window(static_cast<int>(share.blocks.first) + l) != kNoWindow});
    }
    if (share.has_last_block()) weights_.final_norm = norm("norm", n_embd);
    // GGUF files store the factors of a scaled rotation instead of its settings.
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
                         {block.query_norm, block.key_norm, pass.rotations(block.rotary)}, queries,
                         keys_values);
      pass.attend(l, queries, keys_values, x, attended);
      add(pass, attended, block.attention_output, block.attention_norm, x);
      Tensor hidden = pass.hidden(x);
      pass.linear(x, block.mlp_norm, block.mlp_input, gate_, hidden);
      add(pass, hidden, block.mlp_output, block.mlp_output_norm, x);
      pass.show(fmt::format("block.{}", pass.first_block() + l++), x);
    }
    pass.finish(x, weights_.final_norm, weights_.embeddings.output_layer());
  }

  std::span<const Rotary> rotaries() const override { return rotaries_; }

  const LlamaWeights& weights() const { return weights_; }

  void visit_weights(const VisitWeight& visit) override {
    visit("embed_tokens.weight", weights_.embeddings.tokens);
    for (int l = 0; LlamaWeights::Block & block : weights_.blocks) {
      const std::string name = fmt::format("layers.{}.", l++);
      visit(name + "self_attn.qkv_proj.weight", block.attention_input.weight);
      visit(name + "self_attn.o_proj.weight", block.attention_output.weight);
      visit(name + "mlp.gate_up_proj.weight", block.mlp_input.weight);
      visit(name + "mlp.down_proj.weight", block.mlp_output.weight);
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

  std::vector<Rotary> rotaries_;
  Epilogue gate_;
  LlamaWeights weights_;
};

std::unique_ptr<Network> load(const Settings& settings, const ModelConfig& config, WeightReader& weights) {
  return std::make_unique<Llama>(settings, config, weights);
}

const std::vector<std::string_view> kBuffers{".rotary_emb.inv_freq"};

}  // namespace

const LlamaWeights& llama_weights(const Model& model) {
  const auto* const llama = dynamic_cast<const Llama*>(&model.network());
  if (llama != nullptr && model.config().family != "gemma3_text") return llama->weights();
  throw Error("this pass computes Llama and its relatives, but the model is a {}", model.config().family);
}

const Family kLlama{"llama", "model.", kBuffers, configure_llama, load};
const Family kMistral{"mistral", "model.", kBuffers, configure_llama, load};
const Family kOlmo{"olmo", "model.", kBuffers, configure_olmo, load};
const Family kQwen2{"qwen2", "model.", kBuffers, configure_qwen2, load};
const Family kQwen3{"qwen3", "model.", kBuffers, configure_qwen3, load};
const Family kGemma3{"gemma3_text", "model.", kBuffers, configure_gemma3, load};

}  // namespace staircase
