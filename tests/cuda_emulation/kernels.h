// For the tests of the emulation: a launch, and the fault that comes of it.
#pragma once

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <string>

template <typename... Parameters, typename... Arguments>
std::string fault_of(const cudaLaunchConfig_t& config, void (*kernel)(Parameters...),
                     Arguments... arguments) {
  try {
    return cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess ? "" : "the launch was refused";
  } catch (const cuda_emulation::Fault& fault) {
    return fault.what();
  }
}

/// Launches blocks of `threads` threads and returns what the kernel did wrong, or nothing.
template <typename... Parameters, typename... Arguments>
std::string fault_of(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                     std::size_t shared_bytes, Arguments... arguments) {
  cudaLaunchConfig_t config;
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  return fault_of(config, kernel, arguments...);
}

/// The same for one block that may begin before the kernel before has ended.
template <typename... Parameters, typename... Arguments>
std::string overlapping_fault_of(void (*kernel)(Parameters...), unsigned threads, Arguments... arguments) {
  cudaLaunchAttribute overlap{cudaLaunchAttributeProgrammaticStreamSerialization, {1}};
  cudaLaunchConfig_t config;
  config.blockDim = dim3(threads);
  config.attrs = &overlap;
  config.numAttrs = 1;
  return fault_of(config, kernel, arguments...);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <typename Test>
void in_every_order(const Test& test) {
  for (const auto order :
       {cuda_emulation::Order::kForward, cuda_emulation::Order::kReverse, cuda_emulation::Order::kRandom}) {
    cuda_emulation::settings.order = order;
    CAPTURE(static_cast<int>(order));
    test();
  }
  cuda_emulation::settings.order = cuda_emulation::Order::kForward;
}
