// What happens in a run, one JSON object a line, as it happens: docs/trace.md.
#pragma once

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/decoding/generation.h"
#include "common/model/gpt2.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Throws Error where the file cannot be written, or takes no more.
class TraceFile {
 public:
  explicit TraceFile(const std::string& file);

  /// The first line: the options with their values, the model, its vocabulary and the prompts.
  void start(const std::vector<std::pair<std::string, std::string>>& options, const Gpt2Config& config,
             const Tokenizer& tokenizer, const Prompts& prompts);

  /// Writes each forward pass of the model of that name; for Gpt2::watch.
  std::function<void(const ForwardPass&)> watcher(const std::string& model);

  /// Writes what is copied between the rows of a cache, or inside one, once a watched pass has shown that
  /// cache; for Device::watch_copies.
  Device::CopyWatcher copy_watcher();

  /// Text `number` begins behind that prompt.
  void begin(int number, int prompt);

  /// One more token of the text.
  void add(int number, const Token& token);

  /// The text ends; a search has a score for it.
  void end(int number, FinishReason reason, std::optional<double> score = {});

 private:
  void write(const std::string& line);

  std::string name_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::map<std::string, Tensor> caches_;  // keys of the first layer, by model: a copied row has them too
};

}  // namespace staircase
