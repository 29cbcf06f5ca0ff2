// Watches whether the processes of the other ranks on this machine still run. wait_limit.h detects a rank
// that does not answer, on this machine or another.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace staircase {

/// When a rank ends too early, mpirun sends SIGTERM to the others, and SIGKILL a second later. Within that
/// second, the lowest remaining rank prints which rank was lost, and all ranks exit with status 1. Does
/// nothing on systems without signals.
class RankMonitor {
 public:
  struct Process {
    int rank = 0;
    std::int64_t id = 0;
  };

  /// The id of this process.
  static std::int64_t own_id();

  /// Watches `others`, except processes that are not visible from here. Every rank must run until all have
  /// created their monitors. If a rank is stopped (SIGSTOP) for longer than `longest_stop`, the lowest
  /// running rank prints which one, and all ranks end.
  RankMonitor(int rank, std::vector<Process> others,
              std::chrono::milliseconds longest_stop = std::chrono::seconds(5));
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  /// From now on this rank runs until rank 0 ends, even if it receives a signal that would end a program. If
  /// rank 0 is stopped (SIGSTOP) for longer than `limit`, a separate thread calls `give_up`.
  void follow_rank_0(std::chrono::milliseconds limit, std::function<void()> give_up);

  /// Whether this process has received a signal that ends programs.
  static bool has_signal();

  /// Whether another rank has notified this one.
  static bool is_notified();

  /// Notifies the other ranks on this machine and stops watching them. Call it before this rank prints an
  /// error and ends, so that the others print none.
  void notify();

 private:
  void watch();

  const int rank_;
  const std::chrono::milliseconds longest_stop_;
  std::vector<Process> others_;
  std::chrono::milliseconds limit_{0};
  std::function<void()> give_up_;
  std::atomic<bool> follows_ = false, leaves_ = false;  // follows_ is set last, after limit_ and give_up_
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;  // the last member, since it uses the others
};

}  // namespace staircase
