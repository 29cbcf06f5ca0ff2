#include "common/parallel/mpi_ranks.h"

#if STAIRCASE_MPI
#include <fmt/format.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/parallel/rank_monitor.h"
#include "common/parallel/wait_limit.h"
#endif

#include <cstdlib>

#include "kernels/platform.h"

namespace staircase {

#if STAIRCASE_MPI
namespace {

int number_of(int (*ask)(MPI_Comm, int*)) {
  int number = 0;
  ask(MPI_COMM_WORLD, &number);
  return number;
}

/// The other ranks on this machine.
std::vector<RankMonitor::Process> others_of_machine(int rank) {
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
  int size = 0;
  MPI_Comm_size(machine, &size);
  const RankMonitor::Process own{rank, RankMonitor::own_id()};
  std::vector<RankMonitor::Process> all(static_cast<std::size_t>(size));
  MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, machine);
  MPI_Comm_free(&machine);
  std::erase_if(all, [&](const RankMonitor::Process& one) { return one.rank == rank; });
  return all;
}

/// A failure of MPI itself ends all processes, with its own message.
class MpiRanks : public Ranks {
 public:
  MpiRanks() : Ranks(number_of(MPI_Comm_rank), number_of(MPI_Comm_size)) {
    monitor_.emplace(rank(), others_of_machine(rank()));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;
  ~MpiRanks() override {
    for (Message& message : sent_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
    monitor_.reset();  // from here on, the other ranks may end
    MPI_Finalize();
  }

  void abort(int status) override {
    monitor_->notify();
    MPI_Abort(MPI_COMM_WORLD, status);
  }

  bool is_aborting() const override { return RankMonitor::is_notified(); }

  void barrier() override {
    if (limit_ && rank() == 0) limit_->begin(true);
    MPI_Request request{};
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    using std::chrono::microseconds;
    const auto begin = std::chrono::steady_clock::now();
    for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) {
      const auto waited = std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - begin);
      const microseconds nap = nap_after(waited);
      if (nap.count() == 0) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(nap);
      }
    }
    if (limit_) limit_->end();
  }

  void limit_waits(std::chrono::milliseconds limit) override {
    // Only one rank prints the error: rank 0, or otherwise rank 1 unless a signal has ended it. The other
    // ranks wait longer.
    if (rank() > 0) limit += std::chrono::milliseconds(size() == 2 ? 300 : rank() == 1 ? 1300 : 1800);
    const auto give_up = [this, limit] {
      if (gives_up_.exchange(true)) return;  // two threads may notice it
      quiet() = rank() > 1 || RankMonitor::has_signal() || RankMonitor::is_notified();
      monitor_->notify();
      say_error(fmt::format(
          "{}another rank has not answered for {:.1f} seconds: it has ended, is stopped or cannot be reached",
          rank() > 0 ? fmt::format("rank {}: ", rank()) : "", static_cast<double>(limit.count()) / 1000));
      std::_Exit(1);  // only the waiting thread may call MPI
    };
    // The other ranks wait in `barrier` without a limit: rank 0 may get no request for hours.
    if (rank() > 0) monitor_->follow_rank_0(limit, give_up);
    limit_.emplace(limit, give_up);
  }

 private:
  /// A message in flight: MPI reads the bytes until the request is done.
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
    if (limit_) limit_->begin();
    MPI_Allgather(own.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, MPI_COMM_WORLD);
    if (limit_) limit_->end();
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
    if (limit_) limit_->begin();
    MPI_Mprobe(from, 0, MPI_COMM_WORLD, &message, &status);
    if (limit_) limit_->end();
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (static_cast<std::size_t>(count) != bytes.size()) return static_cast<std::size_t>(count);
    MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    return bytes.size();
  }

  std::vector<Message> sent_;
  std::optional<RankMonitor> monitor_;
  std::atomic<bool> gives_up_ = false;
  std::optional<WaitLimit> limit_;
};

}  // namespace
#endif

std::string own_gpu(const std::optional<std::string>& visible, int number) {
  if (!visible) return std::to_string(number);
  if (visible->find(',') == visible->npos) return *visible;
  std::size_t start = 0;
  for (; number > 0; --number) {
    const std::size_t comma = visible->find(',', start);
    if (comma == visible->npos) return "-1";  // no GPU: CUDA's list ends at the first number that names none
    start = comma + 1;
  }
  return visible->substr(start, visible->find(',', start) - start);
}

std::unique_ptr<Ranks> started_ranks() {
#if STAIRCASE_MPI
  if (launched_size() > 1) {
    constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
    const char* const visible = std::getenv(kVisible);
    platform::set_environment(kVisible,
                              own_gpu(visible == nullptr ? std::nullopt : std::optional<std::string>(visible),
                                      launched_local_rank()));
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED,
                    &provided);  // one thread calls MPI, others compute
    return std::make_unique<MpiRanks>();
  }
#endif
  return std::make_unique<SingleRank>();
}

}  // namespace staircase
