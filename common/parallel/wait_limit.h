// The time limit for other ranks: detects a call to them that does not return. rank_monitor.h detects ranks
// on this machine whose processes have ended or are stopped.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace staircase {

/// How long a waiting rank sleeps before it looks again. Not at all in the first millisecond, since a wait
/// between two passes takes microseconds. Then longer and longer, since it may take hours between two
/// requests; but at most 2 ms, so that the next request begins in time.
std::chrono::microseconds nap_after(std::chrono::microseconds waited);

/// Ranks do equal work between two calls, so no rank waits much longer than it has worked. But if a rank on
/// another machine is killed or stopped, the others would wait for ever without this limit.
class WaitLimit {
 public:
  /// Calls `give_up` once, in a separate thread, when a wait takes longer than `limit` plus twice the work
  /// before it.
  WaitLimit(std::chrono::milliseconds limit, std::function<void()> give_up);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

  /// A wait begins. The time since the last wait ended counts as work, unless this rank was idle.
  void begin(bool was_idle = false);
  /// The wait has ended. Does nothing if no wait had begun.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  void watch();

  const std::chrono::milliseconds limit_;
  const std::function<void()> give_up_;
  unsigned waits_ = 0;
  std::atomic<unsigned> current_ = 0;  // the number of the current wait, or 0
  std::atomic<std::chrono::milliseconds> most_;
  Clock::time_point ended_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;  // the last member, since it uses the others
};

}  // namespace staircase
