// Stores the contents of a server's cache in a file between two runs.
#pragma once

#include <optional>
#include <string>

#include "common/base/options.h"
#include "common/decoding/ended_texts.h"
#include "common/program/session_file.h"

namespace staircase {

/// Stores the ended texts, so a conversation continues at its last token even after a restart.
class CacheFile {
 public:
  /// Adds --cache-file, whose value `sink` sets.
  explicit CacheFile(OptionSink& sink);

  /// Restores the texts in the file, oldest first, as far as there is room. Does nothing without the option.
  /// The engine and its cache must outlive this object. Throws Error for a file that does not belong to
  /// this model, and UsageError if the engine keeps no texts or the model is split between ranks.
  void restore(Model& model, EndedTexts& engine, WindowedKvCache& cache);

  /// Writes the ended texts. A block that several texts share is written once, or once per text in layers
  /// with a window. Throws Error on failure.
  void save();

 private:
  std::string name_;
  std::optional<SessionFile> file_;
  Model* model_ = nullptr;
  EndedTexts* engine_ = nullptr;
  WindowedKvCache* cache_ = nullptr;
};

}  // namespace staircase
