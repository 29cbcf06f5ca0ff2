// How a text continues, and for how long.
#pragma once

#include "sampling.h"
#include "stopping.h"

namespace staircase {

struct TextOptions {
  StoppingOptions stopping = {};
  SamplingOptions sampling = {};
};

inline void add_options(OptionSink& sink, TextOptions& options) {
  add_options(sink, options.stopping);
  add_options(sink, options.sampling);
}

}  // namespace staircase
