#include "common/parallel/rank_monitor.h"

#include <doctest/doctest.h>

#include <csignal>

#ifdef SIGURG
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace staircase {
namespace {

using std::chrono::milliseconds;

/// A process that returns what `run` does, and says nothing. It ends with the test.
class Child {
 public:
  explicit Child(const std::function<int()>& run) : id_(fork()) {
    if (id_ != 0) return;
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(99);
    std::_Exit(run());
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    signal(SIGKILL);
    if (!ended_) waitpid(id_, nullptr, 0);
  }

  RankMonitor::Process as_rank(int rank) const { return {rank, id_}; }

  void signal(int number) const {
    if (!ended_) kill(id_, number);
  }

  bool runs() {
    ended_ = ended_ || waitpid(id_, &status_, WNOHANG) == id_;
    return !ended_;
  }

  int status() {
    if (!ended_) waitpid(id_, &status_, 0);
    ended_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

 private:
  const pid_t id_;
  int status_ = 0;
  bool ended_ = false;
};

int sleeps() {
  for (;;) std::this_thread::sleep_for(milliseconds(1000));
}

TEST_CASE("A rank that has said why all end leaves with its own status, though others end before it") {
  Child other(sleeps);
  Child rank([&] {
    RankMonitor monitor(0, {other.as_rank(1)});
    monitor.notify();
    std::this_thread::sleep_for(milliseconds(800));
    return 7;
  });
  std::this_thread::sleep_for(milliseconds(200));
  other.signal(SIGKILL);
  other.status();
  CHECK(rank.status() == 7);
}

TEST_CASE("A rank that loses another ends with status 1") {
  Child other(sleeps);
  Child rank([&] {
    const RankMonitor monitor(0, {other.as_rank(1)});
    return sleeps();
  });
  std::this_thread::sleep_for(milliseconds(200));
  REQUIRE(rank.runs());
  other.signal(SIGKILL);
  CHECK(rank.status() == 1);  // before anything has waited for the other's end
}

#ifdef __linux__
TEST_CASE("A rank whose program has brackets in its name is not lost") {
  Child other([] {
    std::this_thread::sleep_for(milliseconds(200));
    prctl(PR_SET_NAME, "a) Z (T");
    return sleeps();
  });
  Child rank([&] {
    const RankMonitor monitor(1, {other.as_rank(0)}, milliseconds(300));
    return sleeps();
  });
  std::this_thread::sleep_for(milliseconds(900));
  CHECK(rank.runs());
}
#endif

TEST_CASE("A rank that hears why all end goes on for two seconds, or until mpirun ends it") {
  Child teller(sleeps);
  Child rank([&] {
    const RankMonitor monitor(1, {teller.as_rank(0)});
    return sleeps();
  });
  std::this_thread::sleep_for(milliseconds(200));
  rank.signal(SIGURG);
  std::this_thread::sleep_for(milliseconds(2000));
  CHECK(rank.runs());
  rank.signal(SIGTERM);
  CHECK(rank.status() == 1);
}

TEST_CASE("A rank hears why all end even while its main thread has no processor") {
  Child teller(sleeps);
  Child rank([&] {
    const RankMonitor monitor(1, {teller.as_rank(0)});
    if (vfork() == 0) {  // the parent's thread waits for the child, and no signal interrupts that
      sleep(2);
      _exit(0);
    }
    return sleeps();
  });
  std::this_thread::sleep_for(milliseconds(200));
  rank.signal(SIGURG);
  teller.signal(SIGKILL);
  teller.status();
  std::this_thread::sleep_for(milliseconds(1000));
  CHECK(rank.runs());
}

TEST_CASE("A rank gives up on a rank 0 that stays stopped, and on no other") {
  Child leader(sleeps), other(sleeps);
  const auto follow = [&](int rank) {
    RankMonitor monitor(rank, {leader.as_rank(0), other.as_rank(3)}, milliseconds(60'000));
    monitor.follow_rank_0(milliseconds(1500), [] { std::_Exit(5); });
    return sleeps();
  };
  Child follower([&] { return follow(1); }), stopped([&] { return follow(2); });
  other.signal(SIGSTOP);
  for (int i = 0; i < 4; ++i) {  // never for long
    leader.signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(500));
    leader.signal(SIGCONT);
    std::this_thread::sleep_for(milliseconds(100));
  }
  REQUIRE(follower.runs());
  stopped.signal(SIGSTOP);
  leader.signal(SIGSTOP);
  CHECK(follower.status() == 5);
  stopped.signal(SIGCONT);  // it has waited for one tick
  std::this_thread::sleep_for(milliseconds(150));
  CHECK(stopped.runs());
  CHECK(stopped.status() == 5);
}

TEST_CASE("A rank that stays stopped ends the others, of which the first one that runs says so") {
  Child stopped(sleeps);
  std::vector<RankMonitor::Process> started{stopped.as_rank(0)};
  const auto watch = [&](int rank) {
    return [started, rank] {
      const RankMonitor monitor(rank, started, milliseconds(1000));
      return sleeps();
    };
  };
  Child first(watch(1));
  started.push_back(first.as_rank(1));
  Child second(watch(2));
  for (int i = 0; i < 3; ++i) {  // never for long
    stopped.signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(400));
    stopped.signal(SIGCONT);
    std::this_thread::sleep_for(milliseconds(200));
  }
  REQUIRE(first.runs());
  stopped.signal(SIGSTOP);
  CHECK(first.status() == 1);
  // Rank 1 did not know of rank 2, which now loses it and is the first itself.
  CHECK(second.status() == 1);
}

TEST_CASE("A rank that ends because another one has ended or stays stopped tells all others") {
  for (const int fate : {SIGKILL, SIGSTOP}) {
    CAPTURE(fate);
    Child other(sleeps), told([] {
      std::signal(SIGURG, [](int) { _exit(9); });
      return sleeps();
    });
    Child rank([&] {
      const RankMonitor monitor(0, {other.as_rank(1), told.as_rank(2)}, milliseconds(300));
      return sleeps();
    });
    std::this_thread::sleep_for(milliseconds(200));
    other.signal(fate);
    CHECK(rank.status() == 1);
    std::this_thread::sleep_for(milliseconds(300));
    REQUIRE_FALSE(told.runs());
    CHECK(told.status() == 9);
  }
}

TEST_CASE("A rank that is stopped itself ends nothing when it goes on") {
  Child other(sleeps);
  Child rank([&] {
    const RankMonitor monitor(0, {other.as_rank(1)}, milliseconds(500));
    return sleeps();
  });
  std::this_thread::sleep_for(milliseconds(100));
  for (const Child* child : {&rank, &other}) child->signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1200));
  for (const Child* child : {&other, &rank}) child->signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(800));
  CHECK(rank.runs());
}

}  // namespace
}  // namespace staircase
#endif
