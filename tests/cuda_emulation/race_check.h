// Finds races on shared memory: two accesses of different threads to one byte, at least one of them a write,
// with neither a barrier of the block nor (inside a warp) a __syncwarp between them. Races on global memory
// between blocks: an access to what another block of the kernel wrote, where fences and atomics do not order
// the two (happens_before.h). And accesses to global memory by a thread that has not waited for the kernel
// before, where that may still run.
//
// How it sees accesses: a file compiled with -fsanitize=thread calls __tsan_read4(address) and its like
// before every access to memory. race_check.cpp defines these functions, so the program is linked without
// ThreadSanitizer's own. Kernels need no change, and every shared variable is watched, static or dynamic.
//
// Limits: it sees the accesses that happen in the order chosen, so branches not taken are not checked, and a
// write over what another block reads is found only where it comes first; on shared memory atomics are not
// watched, and of one block's threads on global memory nothing is; __syncwarp counts for the whole warp,
// whatever its mask; and since AddressSanitizer instruments the same accesses, a program has one or the
// other.
#pragma once

namespace cuda_emulation {

/// From here on, kernels of files that are compiled with -fsanitize=thread end with a Fault at their first
/// race.
void check_races(bool on);

}  // namespace cuda_emulation
