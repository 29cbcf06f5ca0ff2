// Watches an engine to learn how much of each prompt was in the cache.
#pragma once

#include <functional>
#include <utility>

#include "common/decoding/engine.h"

namespace staircase {

class CachedPrompts : public DelegatingEngine {
 public:
  /// Called with the number of a text and how many tokens of its prompt were cached, when it joins the batch.
  using OnJoined = std::function<void(int number, int cached)>;

  CachedPrompts(Engine& engine, OnJoined on_joined)
      : DelegatingEngine(engine), on_joined_(std::move(on_joined)) {}

  std::span<const int> prepare(const Row& row, int r) override {
    const std::span<const int> tokens = DelegatingEngine::prepare(row, r);
    // Texts join in the order of their numbers. One that returns after a preemption counts once.
    if (row.number > last_) {
      last_ = row.number;
      on_joined_(row.number, static_cast<int>(row.tokens.size() - tokens.size()));
    }
    return tokens;
  }

 private:
  const OnJoined on_joined_;
  int last_ = 0;
};

}  // namespace staircase
