// A team of threads that work on one task at a time.
//
// A token of a small model takes about a hundred operations of a few microseconds each, so the threads must
// not fall asleep between two operations. On a busy machine, they must not use up processor time that another
// thread of the team needs. So a waiting thread spins for some microseconds, then yields between checks, and
// sleeps after a fraction of a millisecond.
//
// On a busy machine a thread may be descheduled for many milliseconds, and an operation must not wait for it.
// So no share of a task belongs to a particular thread: a free thread claims the next share, and the caller
// performs all shares that no thread has begun.
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
  /// Starts size - 1 threads; the caller of `run` is the other one.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(shares_.size()); }

  /// Calls task(0) .. task(size - 1), the shares of a task, each once and on a free thread, and returns when
  /// all are done. Rethrows an exception that a share has thrown. Only one thread may call this at a time.
  void run(const std::function<void(int)>& task);

 private:
  /// Each share has its own cache line, so threads that claim shares do not slow each other down.
  struct alignas(64) Share {
    std::atomic<std::uint32_t> taken{0};  // the last round in which a thread took it
  };

  void work(int index);
  void take_shares(std::uint32_t round, int first);
  void perform(int share);

  std::vector<Share> shares_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<std::uint32_t> round_{0};  // incremented for each task
  std::atomic<int> unfinished_{0};       // shares of the current task
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

/// The numbers first .. last - 1.
struct IndexRange {
  std::int64_t first, last;
};

/// Returns share `index` when 0 .. count - 1 is divided into `parts` shares, whose sizes differ by at most
/// one.
constexpr IndexRange share_of(std::int64_t count, std::int64_t parts, std::int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Calls body(first, last) for each share of 0 .. count - 1. A thread that is free in time gets the same
/// share every time, so on a NUMA machine it finds its own data in the memory nearest to it.
template <typename Body>
void parallel_ranges(ThreadTeam& team, std::int64_t count, const Body& body) {
  const std::int64_t parts = std::min<std::int64_t>(count, team.size());
  if (parts <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
  team.run([&](int index) {
    if (index >= parts) return;
    const IndexRange share = share_of(count, parts, index);
    body(share.first, share.last);
  });
}

/// Calls body(share, i) for each i of 0 .. count - 1 on a free thread. Use it for work of uneven size.
/// Concurrent calls have different shares, from 0 to size - 1.
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
