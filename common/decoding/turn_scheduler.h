// The scheduler of steps 120 and 121, for servers, which are on another branch.
#pragma once

#include "drafts.h"

namespace staircase {

/// Urgent texts first, and drafts of what a text repeats.
using TurnScheduler = DraftingScheduler;

}  // namespace staircase
