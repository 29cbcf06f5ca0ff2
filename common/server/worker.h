// A thread for work that would keep the server thread from its other clients.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace staircase {

class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() { stop(); }

  /// Runs one job after another. Does nothing after `stop`.
  void post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (!stopping_) work_.push_back(std::move(work));
    wake_.notify_one();
  }

  /// Drops the jobs that have not begun, and waits for the one that has.
  void stop() {
    std::deque<std::function<void()>> forgotten;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      forgotten.swap(work_);
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (stopping_) return;
      const auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;  // last, because it uses the others
};

}  // namespace staircase
