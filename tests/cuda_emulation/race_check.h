// Finds four kinds of errors. First, races on shared memory: two accesses of different threads to one byte.
// At least one is a write, and neither a barrier of the block nor (inside a warp) a __syncwarp separates
// them. Second, races on global memory between blocks: an access to memory that another block of the kernel
// wrote, where fences and atomics do not order the two (happens_before.h). Third, accesses to global memory
// by a thread that has not waited for the previous kernel, which may still run. A read by __ldg need not
// wait; it is an error where a kernel has written since the host last waited for the stream. Fourth, accesses
// less than 256 bytes before or after an allocation.
//
// How it sees accesses: a file compiled with -fsanitize=thread calls __tsan_read4(address) and similar
// functions before every access to memory. race_check.cpp defines these functions, so the program is linked
// without ThreadSanitizer's own. Kernels need no change, and every shared variable is watched, static or
// dynamic.
//
// Limits: it sees only the accesses of the chosen order, so branches not taken are not checked. It finds a
// write over memory that another block reads only if the write comes first. It does not watch atomics on
// shared memory, nor races on global memory within a block. __syncwarp counts for the whole warp, whatever
// its mask. AddressSanitizer instruments the same accesses, so a program has one or the other.
#pragma once

namespace cuda_emulation {

/// From here on, kernels of files that are compiled with -fsanitize=thread end with a Fault at their first
/// race.
void check_races(bool on);

}  // namespace cuda_emulation
