// The other ranks of this machine, and whether their processes still run. A rank that runs but does not
// answer, here or on another machine, is found by wait_limit.h.
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

/// When a rank ends too early, mpirun sends SIGTERM to the others, and SIGKILL a second later. In between,
/// the first rank that is left says which one is lost, and all end with status 1. Only where there are
/// signals.
class RankMonitor {
 public:
  struct Process {
    int rank = 0;
    std::int64_t id = 0;
  };

  /// Of this process.
  static std::int64_t own_id();

  /// Watches `others`, apart from those that this process cannot see. All of them run until each has made
  /// its own. If one is stopped (SIGSTOP) for longer than `longest_stop`, the first rank that runs says which
  /// one, and all end.
  RankMonitor(int rank, std::vector<Process> others,
              std::chrono::milliseconds longest_stop = std::chrono::seconds(5));
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  /// From now on this rank goes on until rank 0 ends, whatever signal arrives that ends programs. If rank 0
  /// is stopped (SIGSTOP) for longer than `limit`, a separate thread calls `give_up`.
  void follow_rank_0(std::chrono::milliseconds limit, std::function<void()> give_up);

  /// Whether this process has got a signal that ends programs.
  static bool has_signal();

  /// Whether another rank has notified this one.
  static bool is_notified();

  /// Call before this rank ends with a sentence: tells the others of this machine, which then need none of
  /// their own, and stops watching them.
  void notify();

 private:
  void watch();

  const int rank_;
  const std::chrono::milliseconds longest_stop_;
  std::vector<Process> others_;
  std::chrono::milliseconds limit_{0};
  std::function<void()> give_up_;
  std::atomic<bool> follows_ = false, leaves_ = false;  // follows_ after the two before it are set
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace staircase
