// A team of threads that work on one task at a time.
//
// A token of a small model is some hundred operations of a few microseconds each, so the threads must not
// fall asleep between two of them; and on a busy machine they must not burn the time slice that another
// thread of the team is waiting for. So a thread that waits looks again and again for some microseconds, then
// lets others go first between two looks, and sleeps after a fraction of a millisecond.
//
// On a busy machine a thread may not run for many milliseconds, and an operation must not wait for it. So the
// shares of a task belong to no thread: whoever comes first takes one, and the caller does all that nobody
// has begun.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace staircase {

class ThreadTeam {
 public:
  /// The caller is one of the threads.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(shares_.size()); }

  /// Calls task(0) .. task(size - 1), the shares of a task, each once and on whichever thread is free, and
  /// returns when all are done. An exception of one of them comes out here. One caller at a time.
  void run(const std::function<void(int)>& task);

 private:
  /// On a cache line of its own, so that those who take shares do not slow each other down.
  struct alignas(64) Share {
    std::atomic<std::uint32_t> taken{0};  // the last round in which somebody took it
  };

  void work(int index);
  void take_shares(std::uint32_t round, int first);
  void perform(int share);

  std::vector<Share> shares_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<std::uint32_t> round_{0};  // one more for each task
  std::atomic<int> unfinished_{0};       // shares of the present one
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

/// The numbers first .. last - 1.
struct Range {
  std::int64_t first, last;
};

/// One of `parts` shares of 0 .. count - 1, of which none has more than one number more than another.
constexpr Range share_of(std::int64_t count, std::int64_t parts, std::int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Calls body(first, last) for each share of 0 .. count - 1. A thread that is free in time gets the same
/// share every time, so what it wrote first lies in the memory nearest to it.
template <typename Body>
void parallel_ranges(ThreadTeam& team, std::int64_t count, const Body& body) {
  const std::int64_t parts = std::min<std::int64_t>(count, team.size());
  if (parts <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
  team.run([&](int index) {
    if (index >= parts) return;
    const Range share = share_of(count, parts, index);
    body(share.first, share.last);
  });
}

/// Calls body(share, i) for each i of 0 .. count - 1 on whichever thread is free: for work of uneven size. No
/// two calls at a time have the same share of 0 .. size - 1.
template <typename Body>
void parallel_each(ThreadTeam& team, std::int64_t count, const Body& body) {
  if (count <= 1 || team.size() == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(0, i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  team.run([&](int index) {
    for (std::int64_t i = next++; i < count; i = next++) body(index, i);
  });
}

}  // namespace staircase
