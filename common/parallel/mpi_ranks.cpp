#include "common/parallel/mpi_ranks.h"

#if STAIRCASE_MPI
#include <mpi.h>

#include <limits>

#include "common/base/error.h"
#endif

namespace staircase {

#if STAIRCASE_MPI
namespace {

int number_of(int (*ask)(MPI_Comm, int*)) {
  int number = 0;
  ask(MPI_COMM_WORLD, &number);
  return number;
}

/// A failure of MPI itself ends all processes, with its own message.
class MpiRanks : public Ranks {
 public:
  MpiRanks() : Ranks(number_of(MPI_Comm_rank), number_of(MPI_Comm_size)) {}
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;
  ~MpiRanks() override { MPI_Finalize(); }

  void abort(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    constexpr std::size_t kMost = std::numeric_limits<int>::max();
    if (own.size() > kMost) throw Error("ranks exchange at most {} bytes at once, not {}", kMost, own.size());
    const auto count = static_cast<int>(own.size());
    MPI_Allgather(own.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, MPI_COMM_WORLD);
  }
};

}  // namespace
#endif

std::unique_ptr<Ranks> started_ranks() {
#if STAIRCASE_MPI
  if (started_copies() > 1) {
    MPI_Init(nullptr, nullptr);
    return std::make_unique<MpiRanks>();
  }
#endif
  return std::make_unique<SingleRank>();
}

}  // namespace staircase
