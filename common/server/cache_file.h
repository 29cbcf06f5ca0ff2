// What a server has in its cache, kept in a file while it does not run.
#pragma once

#include <optional>
#include <string>

#include "common/base/options.h"
#include "common/decoding/ended_texts.h"
#include "common/program/session_file.h"

namespace staircase {

/// The texts that have ended: a conversation continues at its last token after a restart, too.
class CacheFile {
 public:
  /// Adds --cache-file, whose value `sink` sets.
  explicit CacheFile(OptionSink& sink);

  /// Takes the texts back that the file holds, the oldest first, as far as there is room. Without the option,
  /// does nothing. The engine and its cache must outlive this. Throws Error for a file that is none of this
  /// model, and UsageError if the engine keeps no texts, or only a part of the model.
  void restore(Model& model, EndedTexts& engine, WindowedKvCache& cache);

  /// Writes them. Blocks that several texts share are written once, but those of layers with a window for
  /// each. Throws Error if that fails.
  void save();

 private:
  std::string name_;
  std::optional<SessionFile> file_;
  Model* model_ = nullptr;
  EndedTexts* engine_ = nullptr;
  WindowedKvCache* cache_ = nullptr;
};

}  // namespace staircase
