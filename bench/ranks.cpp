// Measures how long a sum over ranks takes if all ranks arrive together, in microseconds:
//
//   ninja -C build bench/bench-ranks && mpirun -np 2 build/bench/bench-ranks
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "common/parallel/mpi_ranks.h"

int main() {
  constexpr int kRounds = 7, kCalls = 2000;
  using Microseconds = std::chrono::duration<double, std::micro>;
  const auto ranks = staircase::started_ranks();
  // One number, the widths of SmolLM2 135M and Llama 3.1 8B, and two larger counts.
  for (const int count : {1, 576, 4096, 16'384, 65'536}) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    std::array<double, kRounds> times{};
    for (double& time : times) {
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < kCalls; ++call) ranks->all_reduce(numbers);
      time = Microseconds(std::chrono::steady_clock::now() - begin).count() / kCalls;
    }
    std::ranges::sort(times);
    if (ranks->rank() == 0) {
      fmt::print("{:6} numbers: {:8.2f} µs ({:.2f} to {:.2f})\n", count, times[kRounds / 2], times.front(),
                 times.back());
    }
  }
}
