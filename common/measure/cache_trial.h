// Compares caches on a text: their memory, how much they change the model's probabilities, and their speed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/measure/measurement.h"
#include "common/model/kv_cache.h"
#include "common/model/model.h"

namespace staircase {

struct TriedCache {
  std::string name;
  std::unique_ptr<KvCache> cache;
  bool is_timed = true;  ///< false for a cache that only simulates another one: its speed means nothing
};

/// Returns one row for each cache, measured in its row 0. The columns are its MiB and the mean of KL(first ‖
/// this) over all tokens, in millinats; the first cache is the exact one (Kullback and Leibler 1951). Next
/// come tokens/s for the last tokens of the first window, and the speed-up over the first cache. The windows
/// of the text are as long as the context, and the model reads one token at a time. Throws UsageError for a
/// text without tokens, and Error as next_logits does.
Table compare_caches(Model& model, const std::vector<TriedCache>& caches, std::span<const int> text);

}  // namespace staircase
