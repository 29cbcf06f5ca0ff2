// A team of threads that work on one task at a time.
//
// A token of a small model is some hundred operations of a few microseconds each, so the threads must not
// fall asleep between two of them; and on a busy machine they must not burn the time slice that another
// thread of the team is waiting for. So a thread that waits looks again and again for some microseconds, then
// lets others go first between two looks, and sleeps after a fraction of a millisecond.
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

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls task(0) .. task(size - 1), each on its own thread, and returns when all are done. An exception of
  /// one of them comes out here. One caller at a time.
  void run(const std::function<void(int)>& task);

 private:
  void work(int index);
  void perform(int index);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<std::uint32_t> round_{0};  // one more for each task
  std::atomic<int> busy_{0};             // threads that have not finished the present one
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

/// Calls body(first, last) on each thread with its share of 0 .. count - 1. The same thread gets the same
/// share every time, so what it wrote first lies in the memory nearest to it.
template <typename Body>
void parallel_ranges(ThreadTeam& team, std::int64_t count, const Body& body) {
  const std::int64_t parts = std::min<std::int64_t>(count, team.size());
  if (parts <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
  team.run([&](int index) {
    if (index < parts) body(count * index / parts, count * (index + 1) / parts);
  });
}

/// Calls body(thread, i) for each i of 0 .. count - 1 on whichever thread is free: for work of uneven size.
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
