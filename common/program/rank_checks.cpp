#include "common/program/rank_checks.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/parallel/mpi_ranks.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

/// Whether an option may differ between machines: paths, because the files themselves are compared, and
/// options that select how to compute.
bool is_of_machine(const std::string& option) {
  constexpr std::string_view kNames[] = {"--model", "--draft-model", "--device", "--threads"};
  return std::ranges::count(kNames, option) > 0;
}

}  // namespace

void check_connected(const Ranks& ranks) {
  if (launched_size() <= 1 || ranks.size() > 1) return;
  quiet() = launched_rank() > 0;
  throw UsageError(
      "mpirun has started {} copies of this program, but each would run alone: start it without "
      "mpirun, or run 98-tensor-parallel or a server, built with MPI",
      launched_size());
}

void check_equal_start(Ranks& ranks, const OptionTexts& options) {
  if (ranks.size() == 1) return;
  const auto other_rank = [&](std::string_view text) {
    Hash hash;
    hash.add(text);
    return ranks.first_mismatch(hash.value());
  };
  const std::filesystem::path program = platform::program();
  if (const auto other = other_rank(program.empty() ? "" : read_file(program))) {
    throw Error(
        "rank {} runs a different build of this program from rank 0; install the same build everywhere",
        *other);
  }
  for (const auto& [name, value] : options) {
    if (is_of_machine(name)) continue;
    if (const auto other = other_rank(value)) {
      throw Error("rank {} has a different {} from rank 0, where it is {}; all ranks need the same options",
                  *other, name, value.empty() ? "off" : typed(value));
    }
  }
}

}  // namespace staircase
