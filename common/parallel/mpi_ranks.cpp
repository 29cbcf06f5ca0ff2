#include "common/parallel/mpi_ranks.h"

#if STAIRCASE_MPI
#include <mpi.h>

#include <limits>
#include <vector>

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
  ~MpiRanks() override {
    for (Message& message : sent_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
    MPI_Finalize();
  }

  void abort(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

 private:
  /// On its way: MPI reads the bytes until the request is done.
  struct Message {
    std::vector<std::byte> bytes;
    MPI_Request request;
  };

  static int count_of(std::span<const std::byte> bytes) {
    constexpr std::size_t kMost = std::numeric_limits<int>::max();
    if (bytes.size() > kMost) {
      throw Error("ranks exchange at most {} bytes at once, not {}", kMost, bytes.size());
    }
    return static_cast<int>(bytes.size());
  }

  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    const int count = count_of(own);
    MPI_Allgather(own.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, MPI_COMM_WORLD);
  }

  void post(std::span<const std::byte> bytes, int to) override {
    std::erase_if(sent_, [](Message& message) {
      int done = 0;
      MPI_Test(&message.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    const int count = count_of(bytes);
    Message& message = sent_.emplace_back(Message{{bytes.begin(), bytes.end()}, MPI_REQUEST_NULL});
    MPI_Isend(message.bytes.data(), count, MPI_BYTE, to, 0, MPI_COMM_WORLD, &message.request);
  }

  std::size_t take(std::span<std::byte> bytes, int from) override {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_Mprobe(from, 0, MPI_COMM_WORLD, &message, &status);
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (static_cast<std::size_t>(count) != bytes.size()) return static_cast<std::size_t>(count);
    MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    return bytes.size();
  }

  std::vector<Message> sent_;
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
