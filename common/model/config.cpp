// Reads and checks config.json. A setting that would change the computation and is not implemented is an
// error: a model that runs must be the model that was trained.
#include "common/model/config.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"

namespace staircase {

using nlohmann::json;

namespace {

/// The file's settings, one at a time. A missing key and null both mean the default, as in transformers.
class Settings {
 public:
  explicit Settings(const std::filesystem::path& file)
      : file_(file.string()), values_(parse_json_object(read_file(file), file_)) {}

  /// The value of `name`, or nullptr.
  const json* find(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() || found->is_null() ? nullptr : &*found;
  }

  /// Whether the file says itself that there is no such thing.
  bool is_null(const std::string& name) const { return values_.contains(name) && values_.at(name).is_null(); }

  int integer(const std::string& name, std::uint64_t low, std::uint64_t high) const {
    const json* value = find(name);
    if (!value) throw Error("{} has no {}", file_, name);
    // The parser stores every integer that is not negative as unsigned.
    const std::uint64_t number = value->is_number_unsigned() ? value->get<std::uint64_t>() : high + 1;
    const bool fits = number >= low && number <= high;
    if (!fits)
      throw Error("{}: {} is {}, not an integer from {} to {}", file_, name, shown(*value), low, high);
    return static_cast<int>(number);
  }

  int integer_or(const std::string& name, int fallback, std::uint64_t low, std::uint64_t high) const {
    return find(name) ? integer(name, low, high) : fallback;
  }

  bool boolean_or(const std::string& name, bool fallback) const {
    const json* value = find(name);
    if (!value) return fallback;
    if (!value->is_boolean()) throw Error("{}: {} is {}, not true or false", file_, name, shown(*value));
    return *value;
  }

  /// Throws unless the setting, when there, has the one value that the model's code computes; it may have two
  /// names.
  void require(const std::string& name, const json& wanted, const json& or_else = {}) const {
    const json* value = find(name);
    if (!value || *value == wanted || *value == or_else) return;
    throw Error("{}: {} is {}, and only {}{} is supported", file_, name, shown(*value), wanted.dump(),
                or_else.is_null() ? "" : " or " + or_else.dump());
  }

  const std::string& file() const { return file_; }

 private:
  std::string file_;
  json values_;
};

float read_epsilon(const Settings& settings) {
  const json* value = settings.find("layer_norm_epsilon");
  if (!value) return 1e-5f;
  const float epsilon = value->is_number() ? value->get<float>() : 0.0f;
  if (!(epsilon > 0.0f) || !std::isfinite(epsilon)) {
    throw Error("{}: layer_norm_epsilon is {}, not a number above 0", settings.file(), shown(*value));
  }
  return epsilon;
}

/// The end-of-text token, or -1 for none. A vocabulary may have been padded, so its last token says nothing.
int read_end_of_text(const Settings& settings, const std::filesystem::path& folder, int vocab_size) {
  const auto last = static_cast<std::uint64_t>(vocab_size - 1);
  if (settings.find("eos_token_id")) return settings.integer("eos_token_id", 0, last);
  const std::filesystem::path file = folder / "vocab.json";
  if (settings.is_null("eos_token_id") || !std::filesystem::exists(file)) return -1;
  const json vocabulary = parse_json_object(read_text_file(file), file.string());
  const auto found = vocabulary.find("<|endoftext|>");
  const bool is_id =
      found != vocabulary.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= last;
  return is_id ? found->get<int>() : -1;
}

/// Every matrix of the model has fewer than 2^31 elements, so that an int can index it.
void check_sizes(const Gpt2Config& config, const std::string& file) {
  const auto check = [&](std::string_view name, std::int64_t rows, std::int64_t columns) {
    if (rows * columns > std::numeric_limits<std::int32_t>::max()) {
      throw Error("{}: {} is {} x {}, more than the 2^31 - 1 values a matrix may have", file, name, rows,
                  columns);
    }
  };
  check("vocab_size x n_embd", config.vocab_size, config.n_embd);
  check("n_positions x n_embd", config.n_positions, config.n_embd);
  check("n_embd x 3 n_embd", config.n_embd, std::int64_t{3} * config.n_embd);
  check("n_embd x n_inner", config.n_embd, config.n_inner);
}

}  // namespace

Gpt2Config read_config(const std::filesystem::path& folder) {
  const Settings settings(folder / "config.json");
  settings.require("model_type", "gpt2");
  // The tanh approximation of GELU has two names in transformers.
  settings.require("activation_function", "gelu_new", "gelu_pytorch_tanh");
  settings.require("scale_attn_weights", true);
  settings.require("scale_attn_by_inverse_layer_idx", false);
  if (settings.find("quantization_config")) {
    throw Error(
        "{}: the model has a quantization_config, and only weights that are not quantized can be read",
        settings.file());
  }

  constexpr std::uint64_t kMost = 1 << 24;
  Gpt2Config config;
  config.vocab_size = settings.integer("vocab_size", 1, kMost);
  config.n_positions = settings.integer("n_positions", 1, kMost);
  config.n_embd = settings.integer("n_embd", 1, kMost);
  config.n_layer = settings.integer("n_layer", 1, kMost);
  config.n_head = settings.integer("n_head", 1, kMost);
  config.n_inner = settings.integer_or("n_inner", 4 * config.n_embd, 1, kMost);
  config.layer_norm_epsilon = read_epsilon(settings);
  config.eos_token_id = read_end_of_text(settings, folder, config.vocab_size);

  if (config.n_embd % config.n_head != 0) {
    throw Error("{}: n_embd is {}, not a multiple of n_head, which is {}", settings.file(), config.n_embd,
                config.n_head);
  }
  config.tie_word_embeddings = settings.boolean_or("tie_word_embeddings", true);
  check_sizes(config, settings.file());
  for (const char* name : {"reorder_and_upcast_attn", "add_cross_attention"}) {
    if (settings.boolean_or(name, false)) config.without_effect.push_back(name);
  }
  return config;
}

}  // namespace staircase
