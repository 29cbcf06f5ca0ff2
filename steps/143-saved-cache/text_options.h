// How a text continues, and for how long.
#pragma once

#include "overflow.h"
#include "sampling.h"
#include "stopping.h"

namespace staircase {

struct TextOptions {
  StoppingOptions stopping = {};
  SamplingOptions sampling = {};
  OverflowOptions overflow = {};
};

inline void add_options(OptionSink& sink, TextOptions& options) {
  add_options(sink, options.stopping);
  add_options(sink, options.sampling);
  add_options(sink, options.overflow);
}

}  // namespace staircase
