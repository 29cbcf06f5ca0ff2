// Which writes to global memory a thread may count on although another block made them. The blocks of a
// kernel run in any order, and a GPU shows their writes to each other late and in any order. A write is sure
// to be seen only after this chain of events, each of which happens before the next:
//
//   1. the write;
//   2. a __threadfence, by the same thread or by one of its block after a __syncthreads;
//   3. an atomic operation on a flag, by the thread that called the fence;
//   4. an atomic operation on the same flag, by a thread of the other block;
//   5. a __threadfence by this thread;
//   6. the read, by the same thread or by one of its block after a __syncthreads.
//
// "Happens before" is Lamport's (1978, "Time, Clocks, and the Ordering of Events in a Distributed System").
// The chain is what the PTX ISA, section "Memory Consistency Model", calls a release pattern (2, 3) that an
// acquire pattern (4, 5) observes.
//
// Limits: a block does not pass on what it has learnt about another block, and __syncwarp does not replace
// __syncthreads. A kernel that relies on either is refused although a GPU would do it right.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {

/// When a thread did something.
struct Moment {
  std::uint64_t block = 0;     ///< from 1 on, across all kernels
  unsigned thread = 0;         ///< in the block
  std::uint32_t barriers = 0;  ///< that the block had passed
  std::uint32_t time = 0;      ///< goes on before and after each fence, and only there

  /// Whether this happens before `later` in the same block: in the same thread, or with a barrier between.
  bool is_before(const Moment& later) const {
    return block == later.block &&
           (barriers < later.barriers || (thread == later.thread && time < later.time));
  }
};

/// The fences and atomics of one kernel.
class HappensBefore {
 public:
  /// Of the running thread.
  Moment now() const {
    const Epochs& epochs = processor.epochs();
    return {epochs.blocks, processor.thread()->number, epochs.barriers, time_};
  }

  void fence() {
    Thread& self = running_thread();
    ++time_;
    self.last_fence = now();
    if (!self.found.empty()) learnt_.push_back({now(), self.found});
    ++time_;
  }

  void atomic(const void* flag) {
    Thread& self = running_thread();
    std::vector<Moment>& told = told_[flag];
    self.found.insert(self.found.end(), told.begin(), told.end());
    if (self.last_fence) told.push_back(*self.last_fence);
  }

  /// Whether a thread is sure to see at the moment `read` what was written at the moment `write`.
  bool is_seen(const Moment& write, const Moment& read) const {
    if (write.block == read.block) return true;
    for (const Learnt& learnt : learnt_) {
      if (!learnt.fence.is_before(read)) continue;
      for (const Moment& fence : learnt.others) {
        if (write.is_before(fence)) return true;
      }
    }
    return false;
  }

 private:
  struct Thread {
    std::optional<Moment> last_fence;  ///< event 2, to be reported
    std::vector<Moment> found;         ///< by its atomics: such fences of others
  };
  struct Learnt {
    Moment fence;                ///< event 5
    std::vector<Moment> others;  ///< the fences of events 2
  };

  Thread& running_thread() { return threads_[{processor.epochs().blocks, processor.thread()->number}]; }

  std::uint32_t time_ = 0;
  std::map<std::pair<std::uint64_t, unsigned>, Thread> threads_;  ///< by their block and number
  std::map<const void*, std::vector<Moment>> told_;               ///< by the atomics on each flag
  std::vector<Learnt> learnt_;
};

}  // namespace cuda_emulation
