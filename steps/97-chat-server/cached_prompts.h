// Watches an engine to find how much of each prompt was in the cache.
#pragma once

#include <functional>
#include <utility>

#include "common/decoding/engine.h"

namespace staircase {

class CachedPrompts : public DelegatingEngine {
 public:
  /// Called with the number of a text and how many tokens of its prompt are cached, before each part of the
  /// prompt. At its first call, the text joins the batch.
  using OnPart = std::function<void(int number, int cached)>;

  CachedPrompts(Engine& engine, OnPart on_part) : DelegatingEngine(engine), on_part_(std::move(on_part)) {}

  std::span<const int> prepare(const Row& row, int r) override {
    const std::span<const int> tokens = DelegatingEngine::prepare(row, r);
    if (row.new_tokens == 0) on_part_(row.number, static_cast<int>(row.tokens.size() - tokens.size()));
    return tokens;
  }

 private:
  const OnPart on_part_;
};

}  // namespace staircase
