#include "kernels/cpu/thread_team.h"

#include <hwy/cache_control.h>

#include <utility>

namespace staircase {
namespace {

/// Returns when `value` is no longer `old`.
template <typename T>
void wait_while(const std::atomic<T>& value, T old) {
  constexpr int kLooks = 200;   // some 10 µs
  constexpr int kYields = 500;  // some 0.3 ms, unless somebody else has use for the processor
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

ThreadTeam::ThreadTeam(int size) {
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
  busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  perform(0);
  for (int busy = busy_; busy > 0; busy = busy_) wait_while(busy_, busy);
  if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadTeam::work(int index) {
  for (std::uint32_t seen = 0;;) {
    wait_while(round_, seen++);
    if (stop_) return;
    perform(index);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void ThreadTeam::perform(int index) {
  try {
    (*task_)(index);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

}  // namespace staircase
