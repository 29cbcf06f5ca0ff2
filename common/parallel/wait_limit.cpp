#include "common/parallel/wait_limit.h"

#include <algorithm>
#include <utility>

namespace staircase {

namespace {

constexpr std::chrono::milliseconds kTick(50);

constexpr std::chrono::microseconds kAwake(1000), kLongestNap(2000);

}  // namespace

std::chrono::microseconds nap_after(std::chrono::microseconds waited) {
  return waited < kAwake ? std::chrono::microseconds(0) : std::min(waited / 10, kLongestNap);
}

WaitLimit::WaitLimit(std::chrono::milliseconds limit, std::function<void()> give_up)
    : limit_(limit), give_up_(std::move(give_up)), most_(limit), thread_([this] { watch(); }) {}

WaitLimit::~WaitLimit() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void WaitLimit::begin(bool was_idle) {
  const auto work = was_idle ? Clock::duration(0) : Clock::now() - ended_;
  most_ = limit_ + std::chrono::duration_cast<std::chrono::milliseconds>(2 * work);
  current_ = ++waits_;
}

void WaitLimit::end() {
  current_ = 0;
  ended_ = Clock::now();
}

void WaitLimit::watch() {
  std::unique_lock lock(mutex_);
  unsigned last = 0;
  // Counts ticks instead of reading a clock: time during which this process itself was stopped does not
  // count.
  std::chrono::milliseconds waited(0);
  while (!wake_.wait_for(lock, kTick, [this] { return stopping_; })) {
    const unsigned current = current_;
    waited = current != 0 && current == last ? waited + kTick : kTick * 0;
    last = current;
    if (waited > most_.load()) return give_up_();
  }
}

}  // namespace staircase
