#include "common/program/chat_defaults.h"

#include <utility>
#include <vector>

#include "common/base/error.h"

namespace staircase {
namespace {

void refuse_suppressed_tokens(const GenerationConfig& config) {
  for (const GenerationSetting& setting : config.others) {
    if (setting.name != "suppress_tokens" && setting.name != "begin_suppress_tokens") continue;
    throw Error("{}: {} is set, but chats cannot suppress tokens; remove it to chat without it", config.file,
                setting.name);
  }
}

}  // namespace

GenerationConfig set_chat_defaults(CommandLine& line, GenerationConfig config) {
  refuse_suppressed_tokens(config);
  std::vector<GenerationSetting> taken;
  for (const GenerationSetting& setting : config.sampling) {
    if (!setting.changes) continue;
    try {
      const bool is_option = line.set_default(setting.option(), setting.value);
      if (!line.has(setting.option())) (is_option ? taken : config.others).push_back(setting);
    } catch (const UsageError& error) {
      throw Error("{}: {}", config.file, error.what());
    }
  }
  config.sampling = std::move(taken);
  return config;
}

OptionTexts chat_request_defaults(const GenerationConfig& config) {
  refuse_suppressed_tokens(config);
  OptionTexts defaults;
  bool is_greedy = false;
  for (const auto& [name, value, changes] : config.sampling) {
    if (name != "do_sample") {
      defaults.emplace_back(name, value);
    } else if (value == "true" || value == "false") {
      is_greedy = value == "false";
    } else {
      throw Error("{}: do_sample is {}, but it must be true or false", config.file, value);
    }
  }
  if (is_greedy) {  // a request has no do_sample, and samples at temperature 1 by default
    std::erase_if(defaults, [](const auto& setting) { return setting.first == "temperature"; });
    defaults.emplace_back("temperature", "0");
  }
  return defaults;
}

}  // namespace staircase
