// The class that the checks of 51 and 52 use: their scheduler has no chunks yet.
#pragma once

#include "common/decoding/scheduler.h"

namespace staircase {

struct FormerScheduler : Scheduler {
  FormerScheduler(Engine& engine, const Tokenizer& tokenizer, int slots, OnRowToken on_token,
                  OnFinished on_finished)
      : Scheduler(engine, tokenizer, slots, {}, std::move(on_token), std::move(on_finished)) {}
};

}  // namespace staircase

#define Scheduler FormerScheduler
