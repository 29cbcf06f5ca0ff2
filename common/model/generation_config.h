// What a model's authors recommend for its texts: generation_config.json, or metadata of a GGUF file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

/// A setting by its name in transformers, or in a GGUF file if that is unknown, with its value in JSON; ""
/// stands for a list that no option takes.
struct GenerationSetting {
  std::string name, value;
  bool changes;  ///< whether the value changes a text

  /// The option of that name: "--top-k".
  std::string option() const;
};

struct GenerationConfig {
  std::string file;  ///< for messages
  /// do_sample, temperature, top_k, top_p, min_p and repetition_penalty, where the file has them. A top_k of
  /// 0 or -1 counts as missing: both mean that there is no bound.
  std::vector<GenerationSetting> sampling;
  std::vector<GenerationSetting> others;  ///< all other settings that would change a text
};

/// The recommendations for a model: a folder, which need not have any, or a .gguf file. Throws Error with one
/// sentence for a file that cannot be read.
GenerationConfig generation_config_of(const std::filesystem::path& model);

/// Those in a file of that form for any model. Its end tokens are not read, so `others` lists them.
GenerationConfig read_generation_config(const std::filesystem::path& file);

/// "temperature 0.7, top_k 20": those of the settings that change a text.
std::string list_of(const std::vector<GenerationSetting>& settings);

/// For a program that reads none of it: all settings are among the others.
void leave_unread(GenerationConfig& config);

/// Says which of them count, with a note such as "; options override it", and warns about the others.
void report_generation_config(const GenerationConfig& config, std::string_view note);

}  // namespace staircase
