// What must hold before ranks compute one model together.
#pragma once

#include "common/base/options.h"
#include "common/parallel/ranks.h"

namespace staircase {

/// Throws UsageError if mpirun has started copies of a program that does not connect them: each would print
/// the same.
void check_connected(const Ranks& ranks);

/// Throws Error if a rank has another program or other options than rank 0: all must take the same decisions.
void check_equal_start(Ranks& ranks, const OptionTexts& options);

}  // namespace staircase
