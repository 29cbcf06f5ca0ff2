// Facts that a measurement needs to mean anything: how the program was built and where it runs.
#pragma once

#include <cstddef>
#include <string>

namespace staircase::bench {

struct Machine {
  std::string build;     ///< such as "release"
  std::string compiler;  ///< such as "GCC 12.2.0"
  std::string cpu;       ///< such as "AMD EPYC 9B45"
  std::string device;    ///< such as "CPU, 2 threads, AVX3_ZEN4"
  std::string library;   ///< such as "oneDNN 2.6.3", or empty
  int threads = 0;
  int processors = 0;  ///< processors that this process may use
  bool optimised = false;
};

Machine this_machine(const std::string& device, int threads);

/// Prints the facts, and warns on standard error if the figures would mean nothing.
void print(const Machine& machine);

/// The peak memory of this process so far, in bytes, including mapped files.
std::size_t peak_memory();

}  // namespace staircase::bench
