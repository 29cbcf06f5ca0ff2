// What the checks of 51 and 52 call: their scheduler has no chunks yet, and in 51 no engine either.
#pragma once

#include "common/decoding/scheduler.h"

namespace staircase {

struct FormerScheduler : Scheduler {
  FormerScheduler(Engine engine, int places, OnRowToken on_token, OnFinished on_finished)
      : Scheduler(std::move(engine), places, {}, std::move(on_token), std::move(on_finished)) {}
  FormerScheduler(Model& model, StaticKvCache& cache, int places, OnRowToken on_token, OnFinished on_finished)
      : FormerScheduler(make_engine(model, cache), places, std::move(on_token), std::move(on_finished)) {}
};

}  // namespace staircase

#define Scheduler FormerScheduler
