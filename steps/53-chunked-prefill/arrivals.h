// Requests that arrive over time.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "scheduler.h"

namespace staircase {

/// A request and its time of arrival.
struct Request {
  int number = 0;
  double arrival = 0.0;  ///< in seconds from the start
  std::vector<int> prompt = {};
  RowOptions options = {};
};

/// The clock, which a test can replace.
struct Timer {
  std::function<double()> now;                   ///< seconds from the start
  std::function<void(double time)> sleep_until;  ///< returns at `time` or later
};

/// A timer on the machine's clock that starts at 0 now.
inline Timer real_time() {
  const auto start = Clock::now();
  const auto now = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  return {now, [now](double time) {
            while (now() < time) std::this_thread::sleep_for(std::chrono::duration<double>(time - now()));
          }};
}

/// Submits each request when it arrives, and runs passes until no text waits or grows.
inline void serve(Scheduler& scheduler, std::vector<Request> requests, const Timer& timer) {
  std::ranges::stable_sort(requests, {}, &Request::arrival);
  std::span<const Request> queue = requests;
  while (!queue.empty() || !scheduler.idle()) {
    if (scheduler.idle()) timer.sleep_until(queue.front().arrival);
    const double now = timer.now();
    for (; !queue.empty() && queue.front().arrival <= now; queue = queue.subspan(1)) {
      scheduler.submit(queue.front().number, queue.front().prompt, queue.front().options);
    }
    scheduler.pass();
  }
}

}  // namespace staircase
