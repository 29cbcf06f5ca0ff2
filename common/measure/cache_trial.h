// Caches side by side on a text: their memory, what they change, and their speed.
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
  bool is_timed = true;  ///< one that simulates another has no speed of its own
};

/// A line for each cache, whose row 0 it uses. It has the MiB, and the mean of KL(first ‖ this) after each
/// token, in nats / 1000: the first cache is the exact one (Kullback and Leibler 1951). Then come tokens/s at
/// the end of the text, and the speed-up over the first. The text is cut into windows as long as the context,
/// and the model reads one token at a time. Throws UsageError for a text without tokens, and Error as
/// next_logits does.
Table compare_caches(Model& model, const std::vector<TriedCache>& caches, std::span<const int> text);

}  // namespace staircase
