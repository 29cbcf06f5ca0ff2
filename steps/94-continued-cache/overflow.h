// What to do when the cache is full.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "common/base/error.h"
#include "common/base/options.h"
#include "common/model/config.h"
#include "static_kv_cache.h"

namespace staircase {

enum class Overflow {
  kSlide,      ///< the oldest token leaves the cache, and the others shift unchanged: cheap, inexact
  kRecompute,  ///< the cache is refilled with the last tokens
};

struct OverflowOptions {
  Overflow on_overflow = Overflow::kSlide;
  std::optional<int> refill = {};  ///< tokens to refill the cache with; default: all that fit
};

inline void add_options(OptionSink& sink, OverflowOptions& options) {
  sink.add("--on-overflow",
           one_of(&options.on_overflow, {{"slide", Overflow::kSlide}, {"recompute", Overflow::kRecompute}}),
           "what to do when the context is full");
  sink.add("--refill", &options.refill, "tokens to recompute when the cache is full", at_least(1));
  sink.warn_if([&options] { return options.refill && options.on_overflow == Overflow::kSlide; },
               "--refill does nothing without --on-overflow recompute");
  sink.model_rule([&options](const ModelConfig& config) {
    if (options.refill.value_or(1) > config.n_positions) {
      throw UsageError("--refill is {}, but it must be at most the model's {} positions", *options.refill,
                       config.n_positions);
    }
  });
}

/// Makes room for the `fresh` tokens at the end of `window`, the last tokens of the text, in a row of a
/// cache that may be full. Returns the tokens to feed to the model.
inline std::span<const int> make_room(std::span<const int> fresh, std::span<const int> window, KvCache& cache,
                                      int row, const OverflowOptions& options) {
  const auto needed = static_cast<int>(fresh.size());
  const int free = static_cast<int>(window.size()) - cache.length(row);
  if (needed <= free) return fresh;
  if (options.on_overflow == Overflow::kSlide) {
    cache.slide(row, needed - free);
    return window.subspan(cache.length(row));
  }
  cache.truncate(row, 0);
  return window.last(std::min<std::size_t>(options.refill.value_or(window.size()), window.size()));
}

/// The tokens to feed next: those that the text's cache row lacks. Once the text exceeds the context,
/// `make_room` chooses them, given the newest token, or the whole window if the row is empty.
inline std::span<const int> tokens_to_feed(std::span<const int> text, int context, KvCache& cache, int row,
                                           const OverflowOptions& options) {
  if (std::ssize(text) > context) {
    const std::span<const int> window = text.last(context);
    return make_room(cache.length(row) == 0 ? window : window.last(1), window, cache, row, options);
  }
  return text.subspan(cache.length(row));
}

}  // namespace staircase
