// Notices that a call to other ranks does not return.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace staircase {

/// Ranks do equal work between two calls, so none waits much longer than it has worked. A rank that is killed
/// on another machine, or stopped, would keep the others waiting for ever.
class WaitLimit {
 public:
  /// `give_up` is called once, in a thread of its own, when a wait takes longer than `limit` plus twice the
  /// work before it.
  WaitLimit(std::chrono::milliseconds limit, std::function<void()> give_up);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

  /// A wait begins. The time since the end of the last one counts as work, unless this rank was idle.
  void begin(bool was_idle = false);
  /// It has ended, if it had begun.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  void watch();

  const std::chrono::milliseconds limit_;
  const std::function<void()> give_up_;
  unsigned waits_ = 0;
  std::atomic<unsigned> current_ = 0;  // the number of the wait that has begun; 0 if none has
  std::atomic<std::chrono::milliseconds> most_;
  Clock::time_point ended_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace staircase
