// GPT-NeoX (Black et al. 2022), the family of Pythia: rotary positions on a part of each head. The attention
// and MLP of a block either read the same residual stream ("parallel") or run one after another.
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/model/family.h"

namespace staircase {
namespace {

constexpr RotaryKeys kRotation{"rotary_emb_base", "rope_theta", "rotary_pct", "partial_rotary_factor", 0.25};

ModelConfig configure(const Settings& settings) {
  settings.require("hidden_act", {"gelu", "gelu_new", "gelu_pytorch_tanh"});
  settings.require("attention_bias", {true});

  ModelConfig config;
  config.vocab_size = settings.integer("vocab_size", 1, kLargestSize);
  config.n_positions = settings.integer("max_position_embeddings", 1, kLargestSize);
  config.n_embd = settings.integer("hidden_size", 1, kLargestSize);
  config.n_layer = settings.integer("num_hidden_layers", 1, kLargestSize);
  config.n_head = config.n_kv_head = settings.integer("num_attention_heads", 1, kLargestSize);
  config.n_inner = settings.integer("intermediate_size", 1, kLargestSize);
  config.norm_epsilon = static_cast<float>(settings.positive_or("layer_norm_eps", 1e-5));
  config.tie_word_embeddings = settings.boolean_or("tie_word_embeddings", false);
  if (config.n_embd % config.n_head != 0) {
    throw Error("{}: hidden_size is {}, not a multiple of num_attention_heads, which is {}", settings.file(),
                config.n_embd, config.n_head);
  }
  config.head_size = config.n_embd / config.n_head;
  const Rotary rotary(settings, config.head_size, kRotation);
  config.rotary_size = rotary.size();
  config.rope_theta = rotary.theta();
  config.n_positions = std::max(config.n_positions, rotary.context());
  const std::size_t n = config.n_embd, biases = 3 * n + n + config.n_inner + n, norms = 2 * 2 * n;
  config.vector_numbers = config.n_layer * (biases + norms) + 2 * n;
  return config;
}

class GptNeox : public Network {
 public:
  GptNeox(const Settings& settings, const ModelConfig& config, WeightReader& weights)
      : head_size_(config.head_size),
        rotary_(settings, config.head_size, kRotation),
        parallel_(settings.boolean_or("use_parallel_residual", true)),
        gelu_(settings.text_or("hidden_act", "gelu") == "gelu" ? Epilogue::kGeluErf : Epilogue::kGelu) {
    const std::int64_t n_embd = config.n_embd;
    const Share& share = weights.share();
    const auto norm = [&](const std::string& name) {
      return Norm{NormKind::kLayer, weights.vector(name + ".weight", n_embd),
                  weights.vector(name + ".bias", n_embd), config.norm_epsilon};
    };
    const auto output = [&](const std::string& name, const Slice& in) {
      return Linear{weights.matrix(name + ".weight", WeightOrder::kOutputFirst, in, {n_embd}),
                    weights.on_first_rank(name + ".bias", {n_embd})};
    };
    embeddings_ = weights.embeddings("embed_in.weight", "embed_out.weight", config);
    for (int l = 0; l < config.n_layer; ++l) {
      const std::string block = fmt::format("layers.{}.", share.blocks.first + l),
                        mlp_input = block + "mlp.dense_h_to_4h";
      const WeightReader::Part mlp_bias{mlp_input + ".bias", share.inner};
      blocks_.push_back(
          {.input_norm = norm(block + "input_layernorm"),
           .attention_input = attention_input(block + "attention.query_key_value", config, weights),
           .attention_output = output(block + "attention.dense", share.queries),
           .mlp_norm = norm(block + "post_attention_layernorm"),
           .mlp_input = {weights.matrix(mlp_input + ".weight", WeightOrder::kOutputFirst, n_embd,
                                        {share.inner}),
                         weights.vector(std::span(&mlp_bias, 1))},
           .mlp_output = output(block + "mlp.dense_4h_to_h", share.inner)});
    }
    if (share.has_last_block()) final_norm_ = norm("final_layer_norm");
  }

  void run(Pass& pass) const override {
    Device& device = pass.device();
    const HeadRule rule{{}, {}, pass.rotations()};
    Tensor x = pass.residual(), projected = pass.projected(), queries = pass.queries();
    Tensor attended = pass.attended();
    if (pass.begins()) {
      device.embedding(pass.batch(), embeddings_.tokens, Tensor(), x);
      pass.all_reduce(x);
      pass.show("embeddings", x);
    }
    for (int l = 0; const Block& block : blocks_) {
      KeysValues keys_values = pass.keys_values(l);
      pass.linear(x, block.input_norm, block.attention_input, Epilogue::kStore, projected);
      device.split_heads(pass.batch(), projected, rule, queries, keys_values);
      pass.announce(block.attention_output, block.mlp_input);
      pass.attend(l, queries, keys_values, x, attended);
      Tensor hidden = pass.hidden(x);
      if (parallel_) {  // x + attention(x) + mlp(x): the MLP reads x before attention is added
        pass.linear(x, block.mlp_norm, block.mlp_input, gelu_, hidden);
        pass.linear(attended, {}, block.attention_output, pass.add_once(), x);
        pass.linear(hidden, {}, block.mlp_output, Epilogue::kAdd, x);  // one sum over the ranks adds both
      } else {
        pass.linear(attended, {}, block.attention_output, pass.add_once(), x);
        pass.all_reduce(x);
        pass.linear(x, block.mlp_norm, block.mlp_input, gelu_, hidden);
        pass.linear(hidden, {}, block.mlp_output, pass.add_once(), x);
      }
      pass.all_reduce(x);
      pass.show(fmt::format("block.{}", pass.first_block() + l++), x);
    }
    pass.finish(x, final_norm_, output_layer());
  }

  const Weight& output_layer() const override { return embeddings_.output_layer(); }

  std::span<const Rotary> rotaries() const override { return {&rotary_, 1}; }

  void visit_weights(const VisitWeight& visit) override {
    visit("embed_in.weight", embeddings_.tokens);
    for (int l = 0; Block & block : blocks_) {
      const std::string name = fmt::format("layers.{}.", l++);
      visit(name + "attention.query_key_value.weight", block.attention_input.weight);
      visit(name + "attention.dense.weight", block.attention_output.weight);
      visit(name + "mlp.dense_h_to_4h.weight", block.mlp_input.weight);
      visit(name + "mlp.dense_4h_to_h.weight", block.mlp_output.weight);
    }
    if (embeddings_.output) visit("embed_out.weight", *embeddings_.output);
  }

  void visit_products(const VisitProduct& visit) override {
    for (int l = 0; Block & block : blocks_) {
      const std::string name = fmt::format("layers.{}.", l++);
      const auto product = [&](const std::string& module, Linear& linear) {
        visit(linear, {{name + module, linear.weight.in_features,
                        neighbouring_columns(0, linear.weight.out_features)}});
      };
      // The module's outputs are [q | k | v] head by head.
      Module heads{name + "attention.query_key_value", block.attention_input.weight.in_features};
      const std::int64_t width = block.attention_input.weight.out_features / 3;
      for (std::int64_t first = 0; first < width; first += head_size_) {
        for (std::int64_t part = 0; part < 3; ++part) {
          const auto columns = neighbouring_columns(part * width + first, head_size_);
          heads.columns.insert(heads.columns.end(), columns.begin(), columns.end());
        }
      }
      visit(block.attention_input, {heads});
      product("attention.dense", block.attention_output);
      product("mlp.dense_h_to_4h", block.mlp_input);
      product("mlp.dense_4h_to_h", block.mlp_output);
    }
  }

 private:
  struct Block {
    Norm input_norm;
    Linear attention_input;   // [n_embd, 3 n_head head_size]
    Linear attention_output;  // [n_head head_size, n_embd]
    Norm mlp_norm;
    Linear mlp_input;   // [n_embd, n_inner]
    Linear mlp_output;  // [n_inner, n_embd]
  };

  /// The file stores [q | k | v] head by head; the device needs all queries, then all keys, then all values.
  /// The heads of a rank lie side by side in the file.
  static Linear attention_input(const std::string& name, const ModelConfig& config, WeightReader& weights) {
    std::vector<std::int64_t> starts;
    for (std::int64_t part = 0; part < 3; ++part) {
      for (std::int64_t head = 0; head < config.n_head; ++head) {
        starts.push_back((3 * head + part) * config.head_size);
      }
    }
    const Slice& heads = weights.share().queries;
    const Slice own{3 * heads.whole, 3 * heads.first, 3 * heads.count};
    const std::vector<float> stored = weights.values(name + ".bias", own.whole);
    std::vector<float> bias;
    for (const std::int64_t start : starts) {
      const auto first = stored.begin() + own.first + start;
      bias.insert(bias.end(), first, first + config.head_size);
    }
    return {weights.reordered_matrix({name + ".weight", own}, starts, config.head_size, config.n_embd),
            weights.vector(bias)};
  }

  std::int64_t head_size_;
  Rotary rotary_;
  bool parallel_;
  Epilogue gelu_;
  Embeddings embeddings_;
  std::vector<Block> blocks_;
  Norm final_norm_;
};

std::unique_ptr<Network> load(const Settings& settings, const ModelConfig& config, WeightReader& weights) {
  return std::make_unique<GptNeox>(settings, config, weights);
}

}  // namespace

const Family kGptNeox{"gpt_neox",
                      "gpt_neox.",
                      {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"},
                      configure,
                      load};

}  // namespace staircase
