#include "common/parallel/thread_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "common/base/error.h"

namespace staircase {
namespace {

/// Where the threads leave what they have, and wait for each other.
class MeetingPlace {
 public:
  explicit MeetingPlace(int size) : places_(static_cast<std::size_t>(size)) {}

  void exchange(int rank, std::span<const std::byte> own, std::span<std::byte> all) {
    places_[static_cast<std::size_t>(rank)] = own;
    wait();  // until all have left theirs
    for (std::byte* to = all.data(); const std::span<const std::byte> place : places_) {
      to = std::copy(place.begin(), place.end(), to);
    }
    wait();  // until all have read it
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
