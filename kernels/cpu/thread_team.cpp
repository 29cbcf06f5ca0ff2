#include "kernels/cpu/thread_team.h"

#include <hwy/cache_control.h>

#include <utility>

namespace staircase {
namespace {

/// Returns when `value` is no longer `old`.
template <typename T>
void wait_while(const std::atomic<T>& value, T old) {
  constexpr int kLooks = 200;   // about 10 µs
  constexpr int kYields = 500;  // about 0.3 ms, unless another thread needs the processor
  for (int i = 0; i < kLooks + kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    if (i < kLooks) {
      hwy::Pause();
    } else {
      std::this_thread::yield();
    }
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadTeam::ThreadTeam(int size) : shares_(size) {
  for (int index = 1; index < size; ++index) threads_.emplace_back([this, index] { work(index); });
}

ThreadTeam::~ThreadTeam() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run(const std::function<void(int)>& task) {
  task_ = &task;
  unfinished_.store(size(), std::memory_order_relaxed);
  const std::uint32_t round = round_.fetch_add(1, std::memory_order_release) + 1;
  round_.notify_all();
  take_shares(round, 0);
  for (int left = unfinished_.load(std::memory_order_acquire); left > 0;
       left = unfinished_.load(std::memory_order_acquire))
    wait_while(unfinished_, left);
  if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadTeam::work(int index) {
  for (std::uint32_t seen = 0;;) {
    wait_while(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (stop_) return;
    take_shares(seen, index);
  }
}

/// Performs all shares that no thread has begun, starting at `first`. Each share is taken once per round, so
/// a free share was last taken in the previous round. A thread that arrives late, after the team has moved on
/// to the next task, takes nothing.
void ThreadTeam::take_shares(std::uint32_t round, int first) {
  for (int i = 0; i < size(); ++i) {
    const int share = (first + i) % size();
    std::uint32_t before = round - 1;
    if (!shares_[share].taken.compare_exchange_strong(before, round, std::memory_order_relaxed)) continue;
    perform(share);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

void ThreadTeam::perform(int share) {
  try {
    (*task_)(share);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

}  // namespace staircase
