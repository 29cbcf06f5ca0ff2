// The threads that work on one task at a time.
#include "kernels/cpu/thread_team.h"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

#ifdef __linux__
#include <sched.h>
#endif

namespace staircase {
namespace {

TEST_CASE("each share of a task is done once, and a task is over when all are") {
  for (const int size : {1, 2, 3, 8}) {
    ThreadTeam team(size);
    CHECK(team.size() == size);
    std::vector<int> times(size);  // no lock: two threads in one share would be a race
    for (int round = 1; round <= 5000; ++round) {
      team.run([&](int share) { ++times[share]; });
      for (const int count : times) REQUIRE(count == round);
    }
  }
}

TEST_CASE("no two threads have the same share while each takes from the rest") {
  ThreadTeam team(4);
  std::array<std::atomic<int>, 4> inside{};
  std::atomic<int> sum{0}, doubles{0};
  for (int round = 0; round < 200; ++round) {
    parallel_each(team, 50, [&](int share, std::int64_t i) {
      if (++inside[share] > 1) ++doubles;
      sum += static_cast<int>(i);
      --inside[share];
    });
  }
  CHECK(sum == 200 * (50 * 49 / 2));
  CHECK(doubles == 0);
}

TEST_CASE("ranges cover all numbers once, however few or many there are") {
  ThreadTeam team(3);
  for (const int count : {0, 1, 2, 3, 4, 100}) {
    std::vector<int> times(count);
    parallel_ranges(team, count, [&](std::int64_t first, std::int64_t last) {
      for (; first < last; ++first) ++times[first];
    });
    for (const int seen : times) CHECK(seen == 1);
  }
}

TEST_CASE("an exception of any share is rethrown, and the next task runs normally") {
  ThreadTeam team(3);
  for (int failing = 0; failing < 3; ++failing) {
    std::atomic<int> done{0};
    const auto task = [&](int share) {
      if (share == failing) throw std::runtime_error("share " + std::to_string(share));
      ++done;
    };
    const std::string message = "share " + std::to_string(failing);
    CHECK_THROWS_WITH_AS(team.run(task), message.c_str(), std::runtime_error);
    CHECK(done == 2);
    team.run([&](int) { ++done; });
    CHECK(done == 5);
  }
}

TEST_CASE("threads that sleep are woken") {
  ThreadTeam team(2);
  std::array<std::thread::id, 2> ids;
  bool both = false;
  for (int round = 0; round < 500 && !both; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.run([&](int share) {
      ids[share] = std::this_thread::get_id();
      // Long enough for another thread to come.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    });
    both = ids[0] != ids[1];
  }
  CHECK(both);
}

#ifdef __linux__
TEST_CASE("a task waits for no thread that does not run: the caller does its share") {
  cpu_set_t all, one;
  CPU_ZERO(&all);
  CPU_ZERO(&one);
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  for (int processor = 0; processor < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++processor) {
    if (CPU_ISSET(processor, &all)) CPU_SET(processor, &one);
  }
  // All threads of the team on one processor: while the caller runs, no other thread does.
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  {
    ThreadTeam team(4);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> own{0};
    constexpr int kRounds = 1000;
    for (int round = 0; round < kRounds; ++round) {
      team.run([&](int) { own += std::this_thread::get_id() == caller; });
    }
    CHECK(own > 2 * kRounds);  // of four shares each time; with a share for each thread it would be one
  }
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}
#endif

}  // namespace
}  // namespace staircase
