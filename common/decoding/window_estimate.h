// Computes how much memory a model needs if layers with a window keep only what later tokens see. It is
// given: no lesson writes it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "memory_estimate.h"

namespace staircase {

/// How many positions of a text a cache keeps in a layer that sees only `window` of them.
using WindowRoom = std::function<int(int window)>;

/// Bytes of a text as long as the context. Layers without a window have room for all of it. Block tables are
/// not counted.
inline std::size_t text_bytes(const ModelConfig& config, DType dtype, const WindowRoom& room) {
  std::size_t positions = 0;  // in all layers
  for (int l = 0; l < config.n_layer; ++l) {
    const int window = config.window(l), context = config.n_positions;
    positions += static_cast<std::size_t>(window < context ? std::min(room(window), context) : context);
  }
  return 2 * positions * config.key_bytes(dtype);
}

/// text_bytes() for rings, which take passes of up to `most` tokens, in whole blocks of `block` positions. A
/// ring holds the window of a pass's first token, and the pass itself.
inline std::size_t ring_bytes(const ModelConfig& config, DType dtype, int most, int block) {
  return text_bytes(config, dtype,
                    [=](int window) { return (window - 1 + most + block - 1) / block * block; });
}

/// Like memory_estimate() of step 13, for a cache that needs `text_bytes` bytes for a text.
inline std::string windowed_memory_estimate(const ModelConfig& config, DType dtype, std::size_t text_bytes) {
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "by formula: weights {:.1f} MiB, activations up to {:.1f} MiB, "
      "a cache of up to {:.1f} MiB for each text",
      mebibytes(weight_bytes(config, dtype)), mebibytes(activation_bytes(config, config.n_positions)),
      mebibytes(text_bytes));
}

}  // namespace staircase
