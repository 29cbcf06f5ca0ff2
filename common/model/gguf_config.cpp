#include "common/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "common/base/error.h"
#include "common/model/gguf_names.h"

namespace staircase {

using nlohmann::json;

namespace {

/// Settings that change what llama.cpp computes, unless they are off.
constexpr std::string_view kChanging[] = {"attention.causal",
                                          "attention.clamp_kqv",
                                          "attention.max_alibi_bias",
                                          "attention.output_scale",
                                          "attention.scale",
                                          "attention.sliding_window",
                                          "attention.sliding_window_pattern",
                                          "attention.temperature_scale",
                                          "attn_logit_softcapping",
                                          "embedding_scale",
                                          "expert_count",
                                          "expert_gating_func",
                                          "expert_shared_count",
                                          "expert_weights_scale",
                                          "final_logit_softcapping",
                                          "hidden_activation",
                                          "logit_scale",
                                          "nextn_predict_layers",
                                          "residual_scale",
                                          "rope.dimension_sections",
                                          "rope.scale_linear",
                                          "rope.scaling.attn_factor",
                                          "rope.scaling.factor",
                                          "rope.scaling.type",
                                          "rope.scaling.yarn_attn_factor"};
constexpr std::string_view kHarmless[] = {"expert_used_count", "rope.scaling.finetuned", "tensor_data_layout",
                                          "vocab_size"};

/// Reads the family's metadata: "attention.head_count" is "llama.attention.head_count" in the file.
class Reader {
 public:
  explicit Reader(const GgufFile& file)
      : file_(file), type_(model_type(gguf_family(file))), prefix_(*file.text("general.architecture") + '.') {
    // GGUF has no architecture for Mixtral: it is a llama with experts.
    if (type_ == "llama" && file_.integer(prefix_ + "expert_count").value_or(0) > 0) type_ = "mixtral";
  }

  GgufConfig read() {
    set("model_type", type_);
    set("vocab_size", vocabulary());
    set("tie_word_embeddings", !has_tensor("output.weight"));
    if (type_ == "gpt2") {
      read_gpt2();
    } else if (type_ == "gpt_neox") {
      read_gpt_neox();
    } else if (type_ == "gemma3_text") {
      read_gemma3();
    } else {
      read_llama();
    }
    read_tokens();
    check_the_rest();
    return std::move(config_);
  }

 private:
  void read_gpt2() {
    set("n_positions", size("context_length"));
    set("n_embd", size("embedding_length"));
    set("n_layer", size("block_count"));
    set("n_head", size("attention.head_count"));
    set("n_inner", size("feed_forward_length"));
    set("layer_norm_epsilon", number("attention.layer_norm_epsilon"));
    set("activation_function", "gelu_new");
  }

  void read_gpt_neox() {
    read_sizes();
    set("layer_norm_eps", number("attention.layer_norm_epsilon"));
    set("use_parallel_residual", file_.boolean(key("use_parallel_residual")).value_or(true));
    read_rotation(head_size());
    if (!has("rope.freq_base")) assume("how fast positions rotate", "a rope_theta of 10000");
    set("hidden_act", "gelu");
    assume("the activation", "\"gelu\", the exact one, as in Pythia");
  }

  void read_llama() {
    const std::int64_t head = read_heads();
    if (has("attention.key_length")) set("head_dim", head);
    if (type_ == "olmo") {
      set("clip_qkv", optional_number("attention.clamp_kqv"));
    } else {
      set("rms_norm_eps", number("attention.layer_norm_rms_epsilon"));
    }
    set("hidden_act", "silu");
    read_rotation(head);
    if (type_ == "mixtral" || type_ == "olmoe" || type_ == "qwen3_moe") read_experts();
    if (type_ != "qwen2") set("attention_bias", has_tensor("blk.0.attn_q.bias"));
    if (type_ == "llama") set("mlp_bias", has_tensor("blk.0.ffn_up.bias"));
    read_window();
  }

  /// Reads the experts as llama.cpp does. A file rarely states expert_weights_norm, so the default is how the
  /// family was trained.
  void read_experts() {
    set("num_experts", size("expert_count"));
    set("num_experts_per_tok", size("expert_used_count"));
    set("norm_topk_prob", file_.boolean(key("expert_weights_norm")).value_or(type_ != "olmoe"));
    const std::int64_t width = size("expert_feed_forward_length", size("feed_forward_length"));
    if (type_ != "qwen3_moe") {
      set("intermediate_size", width);
      return;
    }
    set("moe_intermediate_size", width);
    json dense = json::array();
    for (std::int64_t block = 0; block < size("block_count"); ++block) {
      if (!has_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", block))) dense.push_back(block);
    }
    set("mlp_only_layers", dense);
  }

  void read_gemma3() {
    const std::int64_t head = read_heads();
    set("head_dim", head);
    set("rms_norm_eps", number("attention.layer_norm_rms_epsilon"));
    set("hidden_activation", "gelu_pytorch_tanh");
    set("attention_bias", has_tensor("blk.0.attn_q.bias"));
    // The file does not state this number. Among the published models, only those with 62 blocks have a
    // different one.
    const std::int64_t blocks = size("block_count");
    set("query_pre_attn_scalar", blocks == 62 ? head_size() : head);
    read_rotation(head);
    json& rotations = config_.settings["rope_parameters"];
    rotations = {
        {"full_attention", rotations},
        {"sliding_attention",
         {{"rope_type", "default"}, {"rope_theta", optional_number("rope.freq_base_swa", 10000.0)}}}};
    // If the file states no window, no layer has one. Otherwise every sixth layer has none, unless a period
    // or a list is stated.
    const json window = optional_size("attention.sliding_window");
    const std::string pattern = key("attention.sliding_window_pattern");
    if (window.is_null() || window == 0) {
      set("sliding_window_pattern", 1);
      return;
    }
    set("sliding_window", window);
    const auto found = file_.metadata().find(pattern);
    if (found == file_.metadata().end() || !std::holds_alternative<GgufArray>(found->second)) {
      set("sliding_window_pattern", optional_size("attention.sliding_window_pattern"));
      return;
    }
    json types = json::array();
    const auto listed = file_.integers(pattern);
    for (const std::int64_t slides : *listed)
      types.push_back(slides != 0 ? "sliding_attention" : "full_attention");
    set("layer_types", types);
  }

  /// Reads the number and the size of the heads. Returns their size.
  std::int64_t read_heads() {
    read_sizes();
    const std::int64_t heads = size("attention.head_count");
    set("num_key_value_heads", size("attention.head_count_kv", heads));
    const std::int64_t head = size("attention.key_length", head_size());
    if (const std::int64_t values = size("attention.value_length", head); values != head) {
      throw Error(
          "{}: {}attention.value_length is {} and key_length {}, and only heads with as many values as "
          "keys are supported",
          file_.file().string(), prefix_, values, head);
    }
    return head;
  }

  void read_sizes() {
    set("hidden_size", size("embedding_length"));
    set("intermediate_size", size("feed_forward_length"));
    set("num_hidden_layers", size("block_count"));
    set("num_attention_heads", size("attention.head_count"));
    set("max_position_embeddings", size("context_length"));
  }

  std::int64_t head_size() const {
    const std::int64_t width = size("embedding_length"), heads = size("attention.head_count");
    if (width < heads) {
      throw Error("{}: {}embedding_length is {}, less than the {} heads", file_.file().string(), prefix_,
                  width, heads);
    }
    return width / heads;
  }

  void read_rotation(std::int64_t head) {
    json rotation{{"rope_type", "default"}, {"rope_theta", optional_number("rope.freq_base", 10000.0)}};
    const std::int64_t turned = size("rope.dimension_count", head);
    if (turned != head) {
      // The smallest share that yields this many features when it is multiplied again.
      double share = static_cast<double>(turned) / static_cast<double>(head);
      if (share * static_cast<double>(head) < static_cast<double>(turned)) share = std::nextafter(share, 2.0);
      rotation["partial_rotary_factor"] = share;
    }
    const json factor = optional_number("rope.scaling.factor", optional_number("rope.scale_linear"));
    const std::string type =
        file_.text(key("rope.scaling.type")).value_or(factor.is_null() ? "none" : "linear");
    if (type != "none" && !(factor.is_null() && type == "linear")) {
      rotation["rope_type"] = type;
      rotation["factor"] = factor;
      rotation["original_max_position_embeddings"] = optional_size("rope.scaling.original_context_length");
    }
    set("rope_parameters", rotation);
  }

  void read_window() {
    const json window = optional_size("attention.sliding_window");
    if (window.is_null() || window == 0) return;
    set("sliding_window", window);
    set("use_sliding_window", true);
    set("max_window_layers", 0);
  }

  void read_tokens() {
    if (const auto begin = file_.integer("tokenizer.ggml.bos_token_id")) set("bos_token_id", *begin);
    const std::vector<int> ends = gguf_end_tokens(file_);
    if (!ends.empty()) set("eos_token_id", ends.size() == 1 ? json(ends[0]) : json(ends));
  }

  /// The number of rows in the embedding; a model may have more rows than its tokenizer has tokens.
  std::int64_t vocabulary() const {
    const auto found = file_.tensors().find("token_embd.weight");
    if (found == file_.tensors().end())
      throw Error("{} has no tensor token_embd.weight", file_.file().string());
    return found->second.shape[0];
  }

  bool has_tensor(std::string_view name) const { return file_.tensors().contains(name); }

  /// The name of a setting in the file; marks it as read.
  std::string key(std::string_view setting) const {
    asked_.insert(prefix_ + std::string(setting));
    return prefix_ + std::string(setting);
  }

  bool has(std::string_view setting) const { return file_.metadata().contains(key(setting)); }

  std::int64_t size(std::string_view setting, std::int64_t fallback = 0) const {
    key(setting);
    return gguf_size(file_, setting, fallback);
  }

  double number(std::string_view setting) const {
    const json value = optional_number(setting);
    if (value.is_null()) throw Error("{} has no {}", file_.file().string(), key(setting));
    return value;
  }

  json optional_number(std::string_view setting, const json& fallback = {}) const {
    const auto value = file_.number(key(setting));
    return value ? json(*value) : fallback;
  }

  json optional_size(std::string_view setting) const {
    const auto value = file_.integer(key(setting));
    return value ? json(*value) : json();
  }

  void set(const std::string& key, const json& value) { config_.settings[key] = value; }

  void assume(std::string_view what, std::string_view assumption) {
    config_.remarks.push_back(
        fmt::format("{} does not state {}, so {} is assumed", file_.file().string(), what, assumption));
  }

  /// Reports settings that nothing has read: throws Error for those that would change the result, and remarks
  /// on the others.
  void check_the_rest() {
    for (const auto& [name, value] : file_.metadata()) {
      if (!name.starts_with(prefix_) || asked_.contains(name)) continue;
      const std::string_view setting = std::string_view(name).substr(prefix_.size());
      if (std::ranges::find(kHarmless, setting) != std::end(kHarmless)) continue;
      if (std::ranges::find(kChanging, setting) == std::end(kChanging)) {
        config_.remarks.push_back(
            fmt::format("{} has {}, which has no effect here", file_.file().string(), name));
      } else if (!is_off(value, setting)) {
        throw Error("{}: {} is {}, which is not supported", file_.file().string(), name, shown(value));
      }
    }
  }

  /// Whether a setting with that value has no effect.
  static bool is_off(const GgufValue& value, std::string_view setting) {
    if (setting == "attention.causal") return value == GgufValue(true);
    if (setting.ends_with("attn_factor")) return value == GgufValue(1.0);
    if (setting == "expert_weights_scale" && value == GgufValue(1.0)) return true;
    if (setting == "expert_gating_func") return value == GgufValue(std::uint64_t{1});  // a softmax
    return value == GgufValue(std::uint64_t{0}) || value == GgufValue(std::int64_t{0}) ||
           value == GgufValue(0.0);
  }

  const GgufFile& file_;
  std::string type_, prefix_;
  GgufConfig config_;
  mutable std::set<std::string> asked_;
};

/// Tokens that end a text or a turn of a conversation in the supported families.
constexpr std::string_view kEndMarks[] = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>",
                                          "<|eom_id|>",    "<|im_end|>",      "<|end|>",
                                          "<end_of_turn>", "<EOT>",           "</s>"};

/// Whether a token with the text of an end mark is one, even if the file types it as normal. Only "</s>" must
/// have a matching type, since it is a normal token in vocabularies for code.
bool ends_text(std::string_view mark, std::int64_t type) {
  constexpr std::int64_t kControl = 3, kUserDefined = 4;
  return mark != "</s>" || type == kControl || type == kUserDefined;
}

}  // namespace

GgufConfig gguf_config(const GgufFile& file) {
  return Reader(file).read();
}

std::vector<int> gguf_end_tokens(const GgufFile& file) {
  std::vector<int> ends;
  const auto add = [&](std::uint64_t token) {
    if (token > std::numeric_limits<std::int32_t>::max()) return;  // means "none"
    const int id = static_cast<int>(token);
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  };
  for (const char* key : {"eos", "eot", "eom"}) {
    if (const auto token = file.integer(fmt::format("tokenizer.ggml.{}_token_id", key))) add(*token);
  }
  const auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) return ends;
  auto types = file.integers("tokenizer.ggml.token_type").value_or(std::vector<std::int64_t>());
  types.resize(tokens->size(), 1);  // normal
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const std::string_view text = (*tokens)[i];
    if (std::ranges::find(kEndMarks, text) != std::end(kEndMarks) && ends_text(text, types[i])) add(i);
  }
  return ends;
}

}  // namespace staircase
