// The events of a run, one JSON object per line, as they happen: docs/trace.md.
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

/// The head that --trace-attention LAYER,HEAD names. Throws UsageError unless the model has it.
AttentionHead traced_head(const std::string& text, const ModelConfig& config, const std::string& model);

/// Throws Error if the file cannot be written or extended.
class TraceFile {
 public:
  /// Also throws Error if the file exists and is not a trace.
  explicit TraceFile(const std::string& file);

  /// The first line: the options with their values, the model, its vocabulary and the prompts. `own_options`
  /// are those that a prompt sets itself.
  void start(const OptionTexts& options, const ModelConfig& config, const Tokenizer& tokenizer,
             const Prompts& prompts, std::vector<OptionTexts> own_options = {});

  /// Writes each forward pass of the model of that name; for Model::after_pass. For a watched head it writes
  /// only what the previous pass has not shown.
  std::function<void(const ForwardPass&)> watcher(const std::string& model);

  /// Writes the copies between the rows of a cache, or inside one, once a watched pass has shown that cache;
  /// for Device::watch_copies.
  Device::CopyWatcher copy_watcher();

  /// Text `number` begins after that prompt.
  void begin(int number, int prompt);

  /// What the next token is chosen from: the tokens that a constraint allows, and the number of its state.
  void mask(int state, std::vector<int> allowed);

  /// One more token of the text.
  void add(int number, const Token& token);

  /// The text ends; a search has a score for it.
  void end(int number, FinishReason reason, std::optional<double> score = {});

 private:
  void write(const std::string& line);

  std::string name_;
  std::vector<OptionTexts> own_options_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::optional<std::pair<int, std::vector<int>>> mask_;  // of the next token
  std::map<std::string, Tensor> caches_;  // keys of the first layer, by model: a copied row has them too
};

}  // namespace staircase
