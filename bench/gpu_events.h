// Timing on a GPU with events, which the GPU itself timestamps.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>

#include "common/base/error.h"

namespace staircase::bench {

/// Throws Error unless `status` is success. `what` completes "the GPU failed while memory was copied: ...".
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error("the GPU failed while {}: {}", what, cudaGetErrorString(status));
}

template <auto destroy>
struct Destroy {
  template <typename Handle>
  void operator()(Handle handle) const {
    destroy(handle);
  }
};

/// A handle from one of CUDA's create functions, with the function that destroys it.
template <typename Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;

using Event = Owned<cudaEvent_t, cudaEventDestroy>;

inline Event make_event() {
  cudaEvent_t event{};
  check(cudaEventCreate(&event), "events were made");
  return Event(event);
}

/// Returns the seconds that the GPU needs for the operations that `work` puts on `stream`: the fastest of
/// seven runs, after one to warm up.
template <typename Work>
double fastest_seconds(cudaStream_t stream, const Work& work) {
  constexpr int kRounds = 7;
  const Event begin = make_event(), end = make_event();
  double fastest = std::numeric_limits<double>::infinity();
  work();
  for (int round = 0; round < kRounds; ++round) {
    check(cudaEventRecord(begin.get(), stream), "events were recorded");
    work();
    check(cudaEventRecord(end.get(), stream), "events were recorded");
    check(cudaEventSynchronize(end.get()), "it was measured");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "it was measured");
    fastest = std::min(fastest, 1e-3 * static_cast<double>(milliseconds));
  }
  return fastest;
}

}  // namespace staircase::bench
