// The settings that a model's authors recommend for generation, in generation_config.json or in the metadata
// of a GGUF file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

/// A setting with its value in JSON; the value "" represents a list or an object, which no option takes. The
/// name is transformers' name, or the key in the GGUF file if transformers has none.
struct GenerationSetting {
  std::string name, value;
  bool changes;  ///< whether the value changes the generated text

  /// The option with this name: "--top-k".
  std::string option() const;
};

struct GenerationConfig {
  std::string file;  ///< for messages
  /// do_sample, temperature, top_k, top_p, min_p and repetition_penalty, as far as the file sets them. A
  /// top_k of 0 or -1 counts as missing, since both mean no bound.
  std::vector<GenerationSetting> sampling;
  std::vector<GenerationSetting> others;  ///< all other settings that would change the generated text
};

/// Reads the recommendations for a model, a folder or a .gguf file; a folder without generation_config.json
/// has none. Throws Error with one sentence for a file that cannot be read.
GenerationConfig generation_config_of(const std::filesystem::path& model);

/// Reads the recommendations in a file with the format of generation_config.json, for any model. Its
/// eos_token_id is not used, so `others` lists it.
GenerationConfig read_generation_config(const std::filesystem::path& file);

/// The settings that change the generated text, as "temperature 0.7, top_k 20".
std::string list_of(const std::vector<GenerationSetting>& settings);

/// For a program that uses none of the settings: moves all of them to `others`.
void leave_unread(GenerationConfig& config);

/// Prints the sampling settings with a note such as "; options override it", and warns about the others.
void report_generation_config(const GenerationConfig& config, std::string_view note);

}  // namespace staircase
