// Writes the events of a run as they happen, one JSON object per line: see docs/trace.md.
#pragma once

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/options.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// The head that --trace-attention LAYER,HEAD names. Throws UsageError if the model lacks it.
AttentionHead traced_head(const std::string& text, const ModelConfig& config, const std::string& model);

/// Every function throws Error if the file cannot be written or extended.
class TraceFile {
 public:
  /// Also throws Error if the file exists and is not a trace.
  explicit TraceFile(const std::string& file);

  /// Writes the first line: the options with their values, the model, its vocabulary and the prompts.
  /// `own_options` holds for each prompt the options that it sets itself.
  void start(const OptionTexts& options, const ModelConfig& config, const Tokenizer& tokenizer,
             const Prompts& prompts, std::vector<OptionTexts> own_options = {});

  /// Returns a watcher for Model::after_pass that writes each forward pass of the model with this name. For a
  /// watched head, it writes only rows that the previous pass has not shown.
  std::function<void(const ForwardPass&)> watcher(const std::string& model);

  /// Returns a watcher for Device::watch_copies that writes copies between the rows of a cache, or inside a
  /// row, once a watched pass has used that cache.
  Device::CopyWatcher copy_watcher();

  /// Writes that text `number` begins after prompt `prompt`.
  void begin(int number, int prompt);

  /// Stores what the next token is chosen from: the tokens that a constraint allows, and the number of its
  /// state.
  void mask(int state, std::vector<int> allowed);

  /// Writes the next token of the text.
  void add(int number, const Token& token);

  /// Writes that the text ends; a search also passes its score.
  void end(int number, FinishReason reason, std::optional<double> score = {});

 private:
  void write(const std::string& line);

  std::string name_;
  std::vector<OptionTexts> own_options_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::optional<std::pair<int, std::vector<int>>> mask_;  // for the next token
  std::map<std::string, Tensor> caches_;  // keys of the first layer, by model; every copied row includes them
};

}  // namespace staircase
