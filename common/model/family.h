// The parts in which families of models differ, each family in its own file: its configuration keys, the
// names of its weights, and its way from tokens to logits. Read two of these files side by side to see how
// the families differ. To add one, copy gpt_neox.cpp; a relative of Llama goes into llama.cpp. Then name it
// below, in family.cpp and meson.build, and for GGUF files in gguf_names.cpp and gguf_config.cpp.
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

/// The weights of a model.
class Network {
 public:
  virtual ~Network() = default;

  /// From the tokens of the pass to its logits: operations, and what Pass offers. Only Pass copies to the
  /// host: for watchers, and between ranks whose devices are not linked.
  virtual void run(Pass& pass) const = 0;

  /// [n_embd, vocab_size], applied to the hidden states after the last norm.
  virtual const Weight& output_layer() const = 0;

  /// How positions rotate queries and keys: one for all layers, or one for each type of layers, all of one
  /// size; none for a model that does not rotate them.
  virtual std::span<const Rotary> rotaries() const = 0;

  /// Calls visit(name, weight) for each matrix: the token embedding, those of the blocks from first to last,
  /// and the output layer unless it is the token embedding.
  virtual void visit_weights(const VisitWeight& visit) = 0;

  /// Calls visit(product, modules) for each product that adapters may change: those of attention and of MLPs,
  /// but not of experts.
  virtual void visit_products(const VisitProduct& visit) = 0;
};

struct Family {
  std::string_view model_type;            ///< of config.json
  std::string_view prefix;                ///< which may precede the names of weights
  std::vector<std::string_view> buffers;  ///< suffixes of tensors that older files have and that add nothing
  /// Throws Error for an unsupported setting and for impossible values.
  ModelConfig (*configure)(const Settings& settings);
  /// Reads the weights of a model that `configure` has accepted: no more than the share of `weights`.
  std::unique_ptr<Network> (*load)(const Settings& settings, const ModelConfig& config,
                                   WeightReader& weights);
};

extern const Family kGpt2, kGptNeox, kOlmo, kLlama, kMistral, kQwen2, kQwen3, kGemma3, kOlmoe, kMixtral,
    kQwen3Moe;

/// The family of that model_type, or nullptr.
const Family* find_family(std::string_view model_type);

/// All of them, for messages: "gpt2, gpt_neox, ...".
std::string family_names();

/// The settings of a model: the config.json of a folder, or the same from a GGUF file.
Settings read_settings(const std::filesystem::path& model);

/// As in config.h, from settings that were read already.
ModelConfig read_config(const Settings& settings, const std::filesystem::path& model);

/// The largest size that a setting may name.
constexpr std::uint64_t kLargestSize = 1 << 24;

/// Every matrix has fewer than 2^31 elements, so an int can index it; throws Error for others.
void check_matrix(const Settings& settings, std::string_view name, std::int64_t rows, std::int64_t columns);

}  // namespace staircase
