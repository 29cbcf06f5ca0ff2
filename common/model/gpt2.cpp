// GPT-2 (Radford et al. 2019): learned positions, layer norm, and an MLP with GELU.
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/model/family.h"

namespace staircase {
namespace {

ModelConfig configure(const Settings& settings) {
  // The tanh approximation of GELU has two names in transformers.
  settings.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  settings.require("scale_attn_weights", {true});
  settings.require("scale_attn_by_inverse_layer_idx", {false});

  ModelConfig config;
  config.vocab_size = settings.integer("vocab_size", 1, kLargestSize);
  config.n_positions = settings.integer("n_positions", 1, kLargestSize);
  config.n_embd = settings.integer("n_embd", 1, kLargestSize);
  config.n_layer = settings.integer("n_layer", 1, kLargestSize);
  config.n_head = config.n_kv_head = settings.integer("n_head", 1, kLargestSize);
  config.n_inner = settings.integer_or("n_inner", 4 * config.n_embd, 1, kLargestSize);
  config.norm_epsilon = static_cast<float>(settings.positive_or("layer_norm_epsilon", 1e-5));
  config.tie_word_embeddings = settings.boolean_or("tie_word_embeddings", true);
  if (config.n_embd % config.n_head != 0) {
    throw Error("{}: n_embd is {}, not a multiple of n_head, which is {}", settings.file(), config.n_embd,
                config.n_head);
  }
  config.head_size = config.n_embd / config.n_head;
  const std::size_t n = config.n_embd, biases = 3 * n + n + config.n_inner + n, norms = 2 * 2 * n;
  config.vector_numbers = config.n_layer * (biases + norms) + 2 * n + config.n_positions * n;
  check_matrix(settings, "n_positions x width", config.n_positions, config.n_embd);
  for (const char* name : {"reorder_and_upcast_attn", "add_cross_attention"}) {
    if (settings.boolean_or(name, false))
      config.remarks.push_back(fmt::format("{} has no effect here", name));
  }
  return config;
}

class Gpt2 : public Network {
 public:
  Gpt2(const ModelConfig& config, WeightReader& weights) {
    const std::int64_t n_embd = config.n_embd;
    const Share& share = weights.share();
    const auto norm = [&](const std::string& name) {
      return Norm{NormKind::kLayer, weights.vector(name + ".weight", n_embd),
                  weights.vector(name + ".bias", n_embd), config.norm_epsilon};
    };
    const auto input = [&](const std::string& name, const std::vector<Slice>& out) {
      std::vector<WeightReader::Part> biases;
      for (const Slice& slice : out) biases.push_back({name + ".bias", slice});
      return Linear{weights.matrix(name + ".weight", WeightOrder::kInputFirst, n_embd, out),
                    weights.vector(biases)};
    };
    const auto output = [&](const std::string& name, const Slice& in) {
      return Linear{weights.matrix(name + ".weight", WeightOrder::kInputFirst, in, {n_embd}),
                    weights.on_first_rank(name + ".bias", {n_embd})};
    };
    // Each rank takes three slices of [q | k | v]: the same heads from each part.
    std::vector<Slice> query_key_value{3 * n_embd};
    if (!share.whole) {
      query_key_value.clear();
      for (std::int64_t part = 0; part < 3; ++part) {
        query_key_value.push_back({3 * n_embd, part * n_embd + share.queries.first, share.queries.count});
      }
    }
    embeddings_ = weights.embeddings("wte.weight", "lm_head.weight", config);
    if (share.has_first_block())
      positions_ = weights.on_first_rank("wpe.weight", {config.n_positions, n_embd});
    for (int l = 0; l < config.n_layer; ++l) {
      const std::string block = fmt::format("h.{}.", share.blocks.first + l);
      blocks_.push_back({.ln_1 = norm(block + "ln_1"),
                         .attention_input = input(block + "attn.c_attn", query_key_value),
                         .attention_output = output(block + "attn.c_proj", share.queries),
                         .ln_2 = norm(block + "ln_2"),
                         .mlp_input = input(block + "mlp.c_fc", {share.inner}),
                         .mlp_output = output(block + "mlp.c_proj", share.inner)});
    }
    if (share.has_last_block()) ln_f_ = norm("ln_f");
  }

  void run(Pass& pass) const override {
    Device& device = pass.device();
    Tensor x = pass.residual(), queries = pass.queries(), attended = pass.attended();
    if (pass.begins()) {
      device.embedding(pass.batch(), embeddings_.tokens, positions_, x);
      pass.all_reduce(x);
      pass.show("embeddings", x);
    }
    for (int l = 0; const Block& block : blocks_) {
      KeysValues keys_values = pass.keys_values(l);
      pass.query_key_value(x, block.ln_1, block.attention_input, queries, keys_values);
      pass.announce(block.attention_output, block.mlp_input);
      pass.attend(l, queries, keys_values, x, attended);
      pass.linear(attended, {}, block.attention_output, pass.add_once(), x);
      pass.all_reduce(x);
      Tensor hidden = pass.hidden(x);
      pass.linear(x, block.ln_2, block.mlp_input, Epilogue::kGelu, hidden);
      pass.linear(hidden, {}, block.mlp_output, pass.add_once(), x);
      pass.all_reduce(x);
      pass.show(fmt::format("block.{}", pass.first_block() + l++), x);
    }
    pass.finish(x, ln_f_, output_layer());
  }

  const Weight& output_layer() const override { return embeddings_.output_layer(); }

  std::span<const Rotary> rotaries() const override { return {}; }

  void visit_weights(const VisitWeight& visit) override {
    visit("wte.weight", embeddings_.tokens);
    for (int l = 0; Block & block : blocks_) {
      const std::string name = fmt::format("h.{}.", l++);
      visit(name + "attn.c_attn.weight", block.attention_input.weight);
      visit(name + "attn.c_proj.weight", block.attention_output.weight);
      visit(name + "mlp.c_fc.weight", block.mlp_input.weight);
      visit(name + "mlp.c_proj.weight", block.mlp_output.weight);
    }
    if (embeddings_.output) visit("lm_head.weight", *embeddings_.output);
  }

  void visit_products(const VisitProduct& visit) override {
    for (int l = 0; Block & block : blocks_) {
      const std::string name = fmt::format("h.{}.", l++);
      const auto product = [&](const std::string& module, Linear& linear) {
        visit(linear, {{name + module, linear.weight.in_features,
                        neighbouring_columns(0, linear.weight.out_features)}});
      };
      product("attn.c_attn", block.attention_input);
      product("attn.c_proj", block.attention_output);
      product("mlp.c_fc", block.mlp_input);
      product("mlp.c_proj", block.mlp_output);
    }
  }

 private:
  struct Block {
    Norm ln_1;
    Linear attention_input;   // [n_embd, 3 n_head head_size]
    Linear attention_output;  // [n_head head_size, n_embd]
    Norm ln_2;
    Linear mlp_input;   // [n_embd, n_inner]
    Linear mlp_output;  // [n_inner, n_embd]
  };

  Embeddings embeddings_;
  Tensor positions_;  // [n_positions, n_embd], on the first rank
  std::vector<Block> blocks_;
  Norm ln_f_;
};

std::unique_ptr<Network> load(const Settings&, const ModelConfig& config, WeightReader& weights) {
  return std::make_unique<Gpt2>(config, weights);
}

}  // namespace

const Family kGpt2{"gpt2", "transformer.", {".attn.bias", ".attn.masked_bias"}, configure, load};

}  // namespace staircase
