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
  /// model, and UsageError if the engine keeps no texts, or only a part of the model, or layers have windows.
  void restore(Model& model, EndedTexts& engine, PagedKvCache& cache);

  /// Writes them. Blocks that several texts share are written once. Throws Error if that fails.
  void save();

 private:
  std::string name_;
  std::optional<SessionFile> file_;
  Model* model_ = nullptr;
  EndedTexts* engine_ = nullptr;
  PagedKvCache* cache_ = nullptr;
};

}  // namespace staircase
