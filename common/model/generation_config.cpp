#include "common/model/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/base/json_options.h"
#include "common/base/message.h"
#include "common/model/gguf.h"

namespace staircase {
namespace {

using nlohmann::json;

// Settings, each with the value that changes nothing. Lists and objects that are not empty always change
// something.
using Neutral = std::pair<const char*, json>;

const std::vector<Neutral>& sampling_settings() {
  static const std::vector<Neutral> kSettings = {{"do_sample", false}, {"temperature", 1},
                                                 {"top_k", 0},         {"top_p", 1},
                                                 {"min_p", 0},         {"repetition_penalty", 1}};
  return kSettings;
}

const std::vector<Neutral>& other_settings() {
  static const std::vector<Neutral> kSettings = {{"top_h", nullptr},
                                                 {"typical_p", 1},
                                                 {"epsilon_cutoff", 0},
                                                 {"eta_cutoff", 0},
                                                 {"no_repeat_ngram_size", 0},
                                                 {"encoder_repetition_penalty", 1},
                                                 {"encoder_no_repeat_ngram_size", 0},
                                                 {"suppress_tokens", json::array()},
                                                 {"begin_suppress_tokens", json::array()},
                                                 {"bad_words_ids", json::array()},
                                                 {"force_words_ids", json::array()},
                                                 {"sequence_bias", nullptr},
                                                 {"forced_bos_token_id", nullptr},
                                                 {"forced_eos_token_id", nullptr},
                                                 {"exponential_decay_length_penalty", nullptr},
                                                 {"guidance_scale", 1},
                                                 {"watermarking_config", nullptr},
                                                 {"penalty_alpha", 0},
                                                 {"dola_layers", nullptr},
                                                 {"min_length", 0},
                                                 {"min_new_tokens", 0},
                                                 {"max_new_tokens", nullptr},
                                                 {"stop_strings", nullptr},
                                                 {"num_beams", 1},
                                                 {"num_beam_groups", 1},
                                                 {"diversity_penalty", 0}};
  return kSettings;
}

/// Whether the setting sets no bound: top_k with 0 or -1.
bool is_no_bound(std::string_view name, const std::string& value) {
  return name == "top_k" && (value == "0" || value == "-1");
}

GenerationConfig from_json(const std::filesystem::path& file, bool names_ends) {
  const json values = plain_values(parse_json_object(read_text_file(file), file.string()));
  GenerationConfig config{file.string(), {}, {}};
  for (const auto& [name, neutral] : sampling_settings()) {
    if (!values.contains(name) || is_no_bound(name, shown(values[name]))) continue;
    config.sampling.push_back({name, shown(values[name]), values[name] != neutral});
  }
  const auto add = [&](const char* name) {
    config.others.push_back({name, values[name].is_structured() ? "" : shown(values[name]), true});
  };
  for (const auto& [name, neutral] : other_settings()) {
    if (values.contains(name) && values[name] != neutral) add(name);
  }
  if (names_ends && values.contains("eos_token_id")) add("eos_token_id");
  return config;
}

/// Reads the settings under llama.cpp's names. llama.cpp samples unless the temperature is 0.
GenerationConfig from_gguf(const std::filesystem::path& path) {
  static const std::map<std::string_view, const char*> kNames = {{"temp", "temperature"},
                                                                 {"top_k", "top_k"},
                                                                 {"top_p", "top_p"},
                                                                 {"min_p", "min_p"},
                                                                 {"penalty_repeat", "repetition_penalty"}};
  static constexpr std::string_view kPrefix = "general.sampling.";
  const GgufFile file(path);
  GenerationConfig config{path.string(), {}, {}};
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(kPrefix)) continue;
    const auto known = kNames.find(std::string_view(key).substr(kPrefix.size()));
    // The file stores such a number in 32 bits.
    const double* const number = std::get_if<double>(&value);
    const std::string text = number ? fmt::format("{}", static_cast<float>(*number)) : shown(value);
    if (known == kNames.end()) {
      config.others.push_back({key, text, true});
    } else if (!is_no_bound(known->first, text)) {
      if (known->first == "temp") config.sampling.push_back({"do_sample", "true", true});
      config.sampling.push_back({known->second, text, true});
    }
  }
  return config;
}

}  // namespace

std::string GenerationSetting::option() const {
  std::string option = "--" + name;
  std::ranges::replace(option, '_', '-');
  return option;
}

GenerationConfig generation_config_of(const std::filesystem::path& model) {
  if (is_gguf(model)) return from_gguf(model);
  const std::filesystem::path file = model / "generation_config.json";
  std::error_code ignored;
  // A broken link is an error, not a missing file.
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) return {};
  return from_json(file, false);
}

GenerationConfig read_generation_config(const std::filesystem::path& file) {
  return from_json(file, true);
}

std::string list_of(const std::vector<GenerationSetting>& settings) {
  std::string list;
  for (const auto& [name, value, changes] : settings) {
    if (!changes) continue;
    list += (list.empty() ? "" : ", ") + name + (value.empty() ? "" : " " + value);
  }
  return list;
}

void leave_unread(GenerationConfig& config) {
  config.others.insert(config.others.begin(), config.sampling.begin(), config.sampling.end());
  config.sampling.clear();
}

void report_generation_config(const GenerationConfig& config, std::string_view note) {
  if (const std::string list = list_of(config.sampling); !list.empty())
    say(fmt::format("{} sets {}{}", config.file, list, note));
  if (const std::string list = list_of(config.others); !list.empty())
    warn("{} sets {}, which nothing reads here; options and requests set such values", config.file, list);
}

}  // namespace staircase
