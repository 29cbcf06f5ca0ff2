#include "bench/machine.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>

#include "bench/library_product.h"
#include "kernels/device.h"

namespace staircase::bench {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

#if defined(__OPTIMIZE__) && defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
constexpr bool kOptimised = true;
#else
constexpr bool kOptimised = false;
#endif

}  // namespace

Machine this_machine(const std::string& device, int threads) {
  return {.build = STAIRCASE_BUILD_TYPE,
          .compiler = compiler_name(),
          .cpu = cpu_name(),
          .device = device,
          .library = library_name(),
          .threads = threads,
          .processors = available_processors(),
          .optimised = kOptimised};
}

void print(const Machine& machine) {
  fmt::print("{} build, {}\n", machine.build, machine.compiler);
  fmt::print("{}, {} processors; {}\n", machine.cpu, machine.processors, machine.device);
  if (!machine.optimised) {
    fmt::print(
        stderr,
        "\n*** WARNING: this is not an optimised build (build type {}, or assertions or sanitizers are on).\n"
        "*** Its figures say nothing about the speed of the engine. tools/bench makes a release build.\n\n",
        machine.build);
  }
  if (machine.threads > machine.processors) {
    fmt::print(stderr, "warning: {} threads share {} processors, so they wait for each other\n",
               machine.threads, machine.processors);
  }
}

std::size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  constexpr std::size_t kUnit = 1;
#else
  constexpr std::size_t kUnit = 1024;
#endif
  return static_cast<std::size_t>(usage.ru_maxrss) * kUnit;
}

}  // namespace staircase::bench
