// Facts without which a measurement means nothing: how the program was built and where it runs.
#pragma once

#include <cstddef>
#include <string>

namespace staircase::bench {

struct Machine {
  std::string build;     ///< "release"
  std::string compiler;  ///< "GCC 12.2.0"
  std::string cpu;       ///< "AMD EPYC 9B45"
  std::string device;    ///< "CPU, 2 threads, AVX3_ZEN4"
  std::string library;   ///< "oneDNN 2.6.3", or empty
  int threads = 0;
  int processors = 0;  ///< that this process may use
  bool optimised = false;
};

Machine this_machine(const std::string& device, int threads);

/// Prints it, with a warning on standard error if the figures would mean nothing.
void print(const Machine& machine);

/// The peak memory of this process so far, in bytes; mapped files count.
std::size_t peak_memory();

}  // namespace staircase::bench
