#include "common/parallel/thread_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace staircase {
namespace {

/// Here the threads exchange bytes and wait for each other.
class MeetingPlace {
 public:
  explicit MeetingPlace(int size)
      : places_(static_cast<std::size_t>(size)), boxes_(places_.size() * places_.size()) {}

  void exchange(int rank, std::span<const std::byte> own, std::span<std::byte> all) {
    places_[static_cast<std::size_t>(rank)] = own;
    wait();  // until all ranks have stored their bytes
    for (std::byte* to = all.data(); const std::span<const std::byte> place : places_) {
      to = std::copy(place.begin(), place.end(), to);
    }
    wait();  // until all ranks have read them
  }

  void post(int from, std::span<const std::byte> bytes, int to) {
    const std::scoped_lock lock(mutex_);
    box(from, to).emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
  }

  std::size_t take(int to, std::span<std::byte> bytes, int from) {
    std::unique_lock lock(mutex_);
    Box& waiting = box(from, to);
    changed_.wait(lock, [&] { return !waiting.empty() || reason_; });
    if (waiting.empty()) throw Error("another rank has failed");
    const std::vector<std::byte> first = std::move(waiting.front());
    waiting.pop_front();
    if (first.size() == bytes.size()) std::ranges::copy(first, bytes.begin());
    return first.size();
  }

  /// The first exception of a rank ends all of them.
  void fail(std::exception_ptr reason) {
    const std::scoped_lock lock(mutex_);
    if (!reason_) reason_ = std::move(reason);
    changed_.notify_all();
  }

  void rethrow() const {
    if (reason_) std::rethrow_exception(reason_);
  }

 private:
  using Box = std::deque<std::vector<std::byte>>;

  /// The messages that rank `from` has sent to rank `to` and that `to` has not received yet.
  Box& box(int from, int to) {
    return boxes_[static_cast<std::size_t>(from) * places_.size() + static_cast<std::size_t>(to)];
  }

  void wait() {
    std::unique_lock lock(mutex_);
    const std::size_t turn = turn_;
    if (++waiting_ == places_.size()) {
      waiting_ = 0;
      ++turn_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return turn_ != turn || reason_; });
    if (turn_ == turn) throw Error("another rank has failed");
  }

  std::vector<std::span<const std::byte>> places_;
  std::vector<Box> boxes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t waiting_ = 0, turn_ = 0;
  std::exception_ptr reason_;
};

class ThreadRank : public Ranks {
 public:
  ThreadRank(int rank, int size, MeetingPlace& place) : Ranks(rank, size), place_(place) {}

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    place_.exchange(rank(), own, all);
  }
  void post(std::span<const std::byte> bytes, int to) override { place_.post(rank(), bytes, to); }
  std::size_t take(std::span<std::byte> bytes, int from) override { return place_.take(rank(), bytes, from); }

  MeetingPlace& place_;
};

}  // namespace

void run_as_threads(int size, const std::function<void(Ranks&)>& work) {
  MeetingPlace place(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadRank ranks(rank, size, place);
        work(ranks);
      } catch (...) {
        place.fail(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  place.rethrow();
}

}  // namespace staircase
