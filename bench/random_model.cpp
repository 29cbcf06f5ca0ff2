#include "bench/random_model.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/model/family.h"

namespace staircase::bench {
namespace {

/// SplitMix64 (Steele et al. 2014) computes random bits from their index, so threads can divide the work.
std::uint64_t random_bits(std::uint64_t place) {
  std::uint64_t z = (place + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The scaled sum of four uniform numbers of 16 bits. It is close to a normal distribution with deviation 1,
/// and the same on every machine because it needs no logarithm or cosine.
float normal(std::uint64_t place) {
  const std::uint64_t bits = random_bits(place);
  std::int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<std::int64_t>(bits >> (16 * i) & 0xffff);
  constexpr float kDeviationOfSum = 37837.2f;  // 2^16 · sqrt(4 / 12)
  return static_cast<float>(2 * sum - 4 * 0xffff) / (2.0f * kDeviationOfSum);
}

// The standard deviation of GPT-2's initial weights in training (Radford et al. 2019, released code), and a
// tenth of it.
constexpr float kDeviation = 0.02f, kDamped = 0.002f;

struct Entry {
  std::string name;
  std::vector<std::int64_t> shape;
  float mean = 0.0f;
  float deviation = kDeviation;
};

/// Adds the tensors of a model, one after another.
class EntryList {
 public:
  /// `mean` is the mean of the stored gains. Gemma stores gains minus 1.
  void norm(const std::string& name, std::int64_t width, bool has_bias, float mean = 1.0f) {
    list.push_back({name + ".weight", {width}, mean});
    if (has_bias) list.push_back({name + ".bias", {width}});
  }
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
              float deviation = kDeviation) {
    list.push_back({name + ".weight", {rows, columns}, 0.0f, deviation});
  }
  void bias(const std::string& name, std::int64_t width, float deviation = kDeviation) {
    list.push_back({name + ".bias", {width}, 0.0f, deviation});
  }

  std::vector<Entry> list;
};

void add_gpt2(const ModelConfig& config, int damped_from, EntryList& entries) {
  const std::int64_t n_embd = config.n_embd, n_inner = config.n_inner;
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          float deviation = kDeviation) {
    entries.matrix(name, in, out, deviation);
    entries.bias(name, out, deviation);
  };
  entries.matrix("wte", config.vocab_size, n_embd);
  entries.matrix("wpe", config.n_positions, n_embd);
  entries.norm("ln_f", n_embd, true);
  for (int l = 0; l < config.n_layer; ++l) {
    const std::string block = fmt::format("h.{}.", l);
    const float added = l < damped_from ? kDeviation : kDamped;
    entries.norm(block + "ln_1", n_embd, true);
    linear(block + "attn.c_attn", n_embd, 3 * n_embd);
    linear(block + "attn.c_proj", n_embd, n_embd, added);
    entries.norm(block + "ln_2", n_embd, true);
    linear(block + "mlp.c_fc", n_embd, n_inner);
    linear(block + "mlp.c_proj", n_inner, n_embd, added);
  }
}

void add_llama(const ModelConfig& config, int damped_from, EntryList& entries) {
  const std::int64_t n_embd = config.n_embd, n_inner = config.n_inner;
  const std::int64_t query_width = config.query_width(), key_width = config.key_width();
  const bool is_gemma = config.family == "gemma3_text";
  const auto norm = [&](const std::string& name, std::int64_t width) {
    entries.norm(name, width, false, is_gemma ? 0.0f : 1.0f);
  };
  entries.matrix("model.embed_tokens", config.vocab_size, n_embd);
  if (!config.tie_word_embeddings) entries.matrix("lm_head", config.vocab_size, n_embd);
  norm("model.norm", n_embd);
  for (int l = 0; l < config.n_layer; ++l) {
    const std::string block = fmt::format("model.layers.{}.", l), attention = block + "self_attn.";
    const float added = l < damped_from ? kDeviation : kDamped;
    norm(block + "input_layernorm", n_embd);
    entries.matrix(attention + "q_proj", query_width, n_embd);
    entries.matrix(attention + "k_proj", key_width, n_embd);
    entries.matrix(attention + "v_proj", key_width, n_embd);
    if (config.family.starts_with("qwen3") || is_gemma) {
      norm(attention + "q_norm", config.head_size);
      norm(attention + "k_norm", config.head_size);
    }
    entries.matrix(attention + "o_proj", n_embd, query_width, added);
    norm(block + "post_attention_layernorm", n_embd);
    if (is_gemma) {
      norm(block + "pre_feedforward_layernorm", n_embd);
      norm(block + "post_feedforward_layernorm", n_embd);
    }
    const auto add_mlp = [&](const std::string& name, std::int64_t inner) {
      entries.matrix(name + "gate_proj", inner, n_embd);
      entries.matrix(name + "up_proj", inner, n_embd);
      entries.matrix(name + "down_proj", n_embd, inner, added);
    };
    if (config.n_experts == 0) {
      add_mlp(block + "mlp.", n_inner);
      continue;
    }
    entries.matrix(block + "mlp.gate", config.n_experts, n_embd);
    for (int e = 0; e < config.n_experts; ++e)
      add_mlp(fmt::format("{}mlp.experts.{}.", block, e), config.expert_inner);
  }
}

/// Lists the tensors of a model. Contributions to the residual stream are damped in the blocks from
/// `damped_from` on. The blocks come last, so a model with fewer blocks is equal in everything else.
std::vector<Entry> entries_of(const ModelConfig& config, int damped_from) {
  EntryList entries;
  config.family == "gpt2" ? add_gpt2(config, damped_from, entries) : add_llama(config, damped_from, entries);
  return entries.list;
}

std::int64_t size(const Entry& entry) {
  return std::accumulate(entry.shape.begin(), entry.shape.end(), std::int64_t{1}, std::multiplies<>());
}

nlohmann::json gpt2_settings(int n_layer, int n_embd, int n_head) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"activation_function", "gelu_new"},
          {"vocab_size", 50257},
          {"n_positions", 1024},
          {"n_ctx", 1024},
          {"n_embd", n_embd},
          {"n_layer", n_layer},
          {"n_head", n_head},
          {"n_inner", nullptr},
          {"layer_norm_epsilon", 1e-5},
          {"bos_token_id", 50256},
          {"eos_token_id", 50256},
          {"dtype", "float32"},
          {"tie_word_embeddings", true}};
}

/// The published dimensions of a model of the Llama, Qwen3 or Gemma 3 family. Two shapes are ours. One is a
/// mixture of GPT-2's size, in which a token's experts have as many weights as GPT-2's MLP. The other has one
/// MLP of that size instead.
struct LlamaShape {
  const char *name, *family, *architecture;
  int vocab_size, n_positions, n_embd, n_inner, n_layer, n_head, n_kv_head, head_size;
  double theta;
  bool tied;
  int n_experts = 0, experts_per_token = 0, expert_inner = 0;
};
constexpr LlamaShape kLlamaShapes[] = {
    {"smollm2-135m", "llama", "LlamaForCausalLM", 49152, 8192, 576, 1536, 30, 9, 3, 64, 1e5, true},
    {"gemma-3-270m", "gemma3_text", "Gemma3ForCausalLM", 262144, 32768, 640, 2048, 18, 4, 1, 256, 1e6, true},
    {"qwen3-0.6b", "qwen3", "Qwen3ForCausalLM", 151936, 40960, 1024, 3072, 28, 16, 8, 128, 1e6, true},
    {"llama-3.2-1b", "llama", "LlamaForCausalLM", 128256, 131072, 2048, 8192, 16, 32, 8, 64, 5e5, true},
    {"llama-3.1-8b", "llama", "LlamaForCausalLM", 128256, 131072, 4096, 14336, 32, 32, 8, 128, 5e5, false},
    {"qwen3-30b-a3b-2-layers", "qwen3_moe", "Qwen3MoeForCausalLM", 151936, 40960, 2048, 6144, 2, 32, 4, 128,
     1e6, false, 128, 8, 768},
    {"mixture-124m", "qwen3_moe", "Qwen3MoeForCausalLM", 50257, 1024, 768, 2048, 12, 12, 12, 64, 1e4, true, 8,
     2, 1024},
    {"dense-124m", "qwen3", "Qwen3ForCausalLM", 50257, 1024, 768, 2048, 12, 12, 12, 64, 1e4, true}};

nlohmann::json llama_settings(const LlamaShape& shape) {
  const bool is_gemma = shape.family == std::string_view("gemma3_text");
  nlohmann::json settings{
      {"model_type", shape.family},
      {"architectures", {shape.architecture}},
      {is_gemma ? "hidden_activation" : "hidden_act", is_gemma ? "gelu_pytorch_tanh" : "silu"},
      {"vocab_size", shape.vocab_size},
      {"max_position_embeddings", shape.n_positions},
      {"hidden_size", shape.n_embd},
      {"intermediate_size", shape.n_inner},
      {"num_hidden_layers", shape.n_layer},
      {"num_attention_heads", shape.n_head},
      {"num_key_value_heads", shape.n_kv_head},
      {"head_dim", shape.head_size},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", shape.theta},
      {"bos_token_id", 1},
      {"eos_token_id", 2},
      {"dtype", "float32"},
      {"tie_word_embeddings", shape.tied}};
  if (is_gemma) settings.update({{"sliding_window", 512}, {"query_pre_attn_scalar", shape.head_size}});
  if (shape.n_experts > 0) {
    settings.update({{"num_experts", shape.n_experts},
                     {"num_experts_per_tok", shape.experts_per_token},
                     {"moe_intermediate_size", shape.expert_inner},
                     {"norm_topk_prob", true}});
  }
  return settings;
}

/// Returns the config.json of this shape.
nlohmann::json published_settings(const std::string& name) {
  if (name == "124m") return gpt2_settings(12, 768, 12);
  if (name == "355m") return gpt2_settings(24, 1024, 16);
  if (name == "774m") return gpt2_settings(36, 1280, 20);
  if (name == "1558m") return gpt2_settings(48, 1600, 25);
  std::string names = "124m, 355m, 774m, 1558m";
  for (const LlamaShape& shape : kLlamaShapes) {
    if (name == shape.name) return llama_settings(shape);
    names += std::string(", ") + shape.name;
  }
  throw UsageError("--shape {}: the shapes are {}", name, names);
}

void write_config(const nlohmann::json& settings, const std::filesystem::path& file) {
  std::ofstream stream(file);
  stream << settings.dump(2) << '\n';
  if (!stream.flush()) throw Error("{} cannot be written", file.string());
}

void write_weights(const std::vector<Entry>& list, const std::filesystem::path& file) {
  nlohmann::json header{{"__metadata__", {{"format", "pt"}}}};
  std::int64_t offset = 0;
  for (const Entry& entry : list) {
    const std::int64_t end = offset + size(entry) * static_cast<std::int64_t>(sizeof(float));
    header[entry.name] = {{"dtype", "F32"}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  // The format requires that the tensors begin at a multiple of 8.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();

  std::ofstream stream(file, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(&length), sizeof length);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<float> values;
  std::uint64_t place = 0;  // position in the stream of random numbers; the seed is the start
  for (const Entry& entry : list) {
    values.resize(static_cast<std::size_t>(size(entry)));
#pragma omp parallel for
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = entry.mean + entry.deviation * normal(place + i);
    place += values.size();
    stream.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  if (!stream.flush()) throw Error("{} cannot be written: is the disk full?", file.string());
}

void write_model(const nlohmann::json& settings, int damped_from, const std::filesystem::path& folder) {
  const ModelConfig config = read_config(Settings("config.json", settings), folder);
  std::filesystem::create_directories(folder);
  // The file has another name until it is complete, so an interrupted run leaves no folder that looks like a
  // model.
  const std::filesystem::path part = folder / "model.safetensors.part";
  write_weights(entries_of(config, std::min(damped_from, config.n_layer)), part);
  write_config(settings, folder / "config.json");
  std::filesystem::rename(part, folder / "model.safetensors");
}

}  // namespace

ModelConfig published_shape(const std::string& name) {
  return read_config(Settings(name, published_settings(name)), {});
}

void write_random_model(const std::string& shape, const std::filesystem::path& folder) {
  write_model(published_settings(shape), std::numeric_limits<int>::max(), folder);
}

void write_random_pair(const std::string& shape, const std::filesystem::path& target,
                       const std::filesystem::path& draft) {
  nlohmann::json settings = published_settings(shape);
  write_model(settings, 1, target);
  settings[settings.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = 1;
  write_model(settings, 1, draft);
}

}  // namespace staircase::bench
