// A cache that slides, except for the first tokens of the text (Xiao et al. 2023, section 3.2).
#pragma once

#include "static_kv_cache.h"

namespace staircase {

class SinkCache : public StaticKvCache {
 public:
  /// The first `sinks` positions stay.
  SinkCache(Model& model, int sinks)
      : StaticKvCache(model), device_(model.device()), layers_(model.config().n_layer), sinks_(sinks) {}

  /// Removes `count` positions after the sinks and moves the others up to them. `slid` counts them.
  void slide(int row, int count) override {
    const int moved = length(row) - sinks_ - count;
    for (int l = 0; l < layers_; ++l) {
      const KeysValues both = layer(l);
      for (Tensor entries : {both.keys, both.values})
        device_.copy_positions(entries, sinks_ + count, moved, entries, sinks_);
    }
    set_slid(row, slid(row) + count);
    truncate(row, sinks_ + moved);
  }

 private:
  Device& device_;
  int layers_, sinks_;
};

}  // namespace staircase
