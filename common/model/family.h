// What differs between families of models: configuration keys, names of weights, and the way from tokens to
// logits. Each family has its own file; read two of them side by side to compare the families. To add a
// family, copy gpt_neox.cpp, or extend llama.cpp for a relative of Llama. Then name it below, in family.cpp
// and meson.build, and for GGUF files in gguf_names.cpp and gguf_config.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/config.h"
#include "common/model/pass.h"
#include "common/model/rotary.h"
#include "common/model/settings.h"
#include "common/model/weights.h"

namespace staircase {

/// The weights of a model, and its way from tokens to logits.
class Network {
 public:
  virtual ~Network() = default;

  /// Computes the logits from the tokens of the pass, using only device operations and the functions of Pass.
  /// Only Pass copies to the host: for watchers, and between ranks whose devices are not linked.
  virtual void run(Pass& pass) const = 0;

  /// [n_embd, vocab_size], applied to the hidden states after the last norm.
  virtual const Weight& output_layer() const = 0;

  /// How positions rotate queries and keys: one rotation for all layers, or one for each type of layer, all
  /// of the same size. Empty for a model that rotates nothing.
  virtual std::span<const Rotary> rotaries() const = 0;

  /// Calls visit(name, weight) for each matrix: the token embedding, the matrices of the blocks from first to
  /// last, and the output layer unless it is the token embedding.
  virtual void visit_weights(const VisitWeight& visit) = 0;

  /// Calls visit(product, modules) for each product that adapters may change: the products of attention and
  /// of MLPs, but not of experts.
  virtual void visit_products(const VisitProduct& visit) = 0;
};

struct Family {
  std::string_view model_type;            ///< model_type in config.json
  std::string_view prefix;                ///< may precede the names of weights
  std::vector<std::string_view> buffers;  ///< suffixes of tensors in older files that carry no information
  /// Throws Error for an unsupported setting and for impossible values.
  ModelConfig (*configure)(const Settings& settings);
  /// Reads the weights of a model that `configure` has accepted, but only the share of `weights`.
  std::unique_ptr<Network> (*load)(const Settings& settings, const ModelConfig& config,
                                   WeightReader& weights);
};

extern const Family kGpt2, kGptNeox, kOlmo, kLlama, kMistral, kQwen2, kQwen3, kGemma3, kOlmoe, kMixtral,
    kQwen3Moe;

/// The family with this model_type, or nullptr.
const Family* find_family(std::string_view model_type);

/// The names of all families, for messages: "gpt2, gpt_neox, ...".
std::string family_names();

/// Reads the settings of a model: config.json from a folder, or the same settings from a GGUF file.
Settings read_settings(const std::filesystem::path& model);

/// As read_config in config.h, but from settings that were already read.
ModelConfig read_config(const Settings& settings, const std::filesystem::path& model);

/// The largest size that a setting may name.
constexpr std::uint64_t kLargestSize = 1 << 24;

/// Throws Error for a matrix of 2^31 elements or more: an int could not index it.
void check_matrix(const Settings& settings, std::string_view name, std::int64_t rows, std::int64_t columns);

}  // namespace staircase
