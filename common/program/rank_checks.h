// Checks that ranks run before they compute one model together.
#pragma once

#include "common/base/options.h"
#include "common/parallel/ranks.h"

namespace staircase {

/// Throws UsageError if mpirun has started several copies of a program that does not connect them: every copy
/// would print the same output.
void check_connected(const Ranks& ranks);

/// Throws Error if a rank runs another program than rank 0 or has other options: all ranks must make the same
/// decisions.
void check_equal_start(Ranks& ranks, const OptionTexts& options);

}  // namespace staircase
