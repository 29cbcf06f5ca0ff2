// The adapters of a server. Each has a name, which a request chooses as its model.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/options.h"
#include "common/base/quoted.h"
#include "common/model/model.h"
#include "common/model/model_folder.h"

namespace staircase {

struct AdapterOptions {
  static constexpr std::size_t kMost = 1024;

  std::vector<std::string> pairs = {};  ///< "NAME=DIR"
};

inline void add_options(OptionSink& sink, AdapterOptions& options) {
  sink.add("--adapter", &options.pairs,
           "NAME=DIR: a LoRA adapter, which requests choose by NAME as their model; repeatable");
  sink.rule([&options] {
    if (options.pairs.size() > AdapterOptions::kMost) {
      throw UsageError("--adapter is given {} times, but a server has at most {} adapters",
                       options.pairs.size(), AdapterOptions::kMost);
    }
    for (const std::string& pair : options.pairs) {
      const std::size_t equals = pair.find('=');
      if (equals == pair.npos || equals == 0 || equals + 1 == pair.size())
        throw UsageError("--adapter {}: it must be NAME=DIR, such as aesop=models/adapters/aesop",
                         typed(pair));
    }
  });
}

/// The adapters' names, in the order of the model's list. Throws UsageError if two share a name.
inline std::vector<std::string> names_of(const AdapterOptions& options) {
  std::vector<std::string> names;
  for (const std::string& pair : options.pairs) {
    names.push_back(pair.substr(0, pair.find('=')));
    if (std::ranges::count(names, names.back()) > 1)
      throw UsageError("--adapter {}: another adapter already has this name", typed(pair));
  }
  return names;
}

/// Adds the adapters to the model and returns it. Throws Error with one sentence for a folder that cannot be
/// an adapter.
inline Model& with_adapters(Model& model, const AdapterOptions& options) {
  // A server gives each adapter's tokens their own numbers (ended_texts.h).
  const auto most = static_cast<std::size_t>(std::numeric_limits<int>::max() / model.config().vocab_size - 1);
  if (options.pairs.size() > most) {
    throw Error("a vocabulary of {} tokens leaves room for {} adapters, not {}", model.config().vocab_size,
                most, options.pairs.size());
  }
  std::vector<std::filesystem::path> folders;
  for (const std::string& pair : options.pairs)
    folders.push_back(find_adapter(pair.substr(pair.find('=') + 1)));
  model.load_adapters(folders);
  return model;
}

}  // namespace staircase
