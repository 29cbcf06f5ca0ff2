// Converts elements to another type: weights from a file, and rows for a product that needs another type.
// Each element is read and written once; the limit is bandwidth.
#pragma once

#include "kernels/cuda/device_functions.cuh"

namespace staircase::cuda {

constexpr int kConvertThreads = 256;

/// to[i] = from[i], rounded if `To` is narrower.
template <typename From, typename To>
__global__ __launch_bounds__(kConvertThreads) void convert(const From* from, std::int64_t count, To* to) {
  begin_after_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kConvertThreads + threadIdx.x;
  if (i < count) to[i] = narrow<To>(widen(from[i]));
}

template <typename From, typename To>
void launch_convert(const From* from, std::int64_t count, To* to, Stream stream) {
  launch("elements were converted", stream, blocks(divide_up<std::int64_t>(count, kConvertThreads)),
         kConvertThreads, 0, convert<From, To>, from, count, to);
}

}  // namespace staircase::cuda
