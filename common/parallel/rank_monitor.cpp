#include "common/parallel/rank_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "common/base/message.h"

#ifdef SIGURG
#include <unistd.h>
#endif

namespace staircase {
namespace {

volatile std::sig_atomic_t has_ended = 0, has_been_told = 0;

#ifdef SIGURG

/// The signal that notifies a rank. Any other process ignores it.
constexpr int kTold = SIGURG;

constexpr std::chrono::milliseconds kTick(50);

/// A signal interrupts one thread, as soon as that thread runs. By default that is the main thread, which may
/// get a processor only after the other ranks have ended.
void let_this_thread_be_told(bool wanted) {
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, kTold);
  pthread_sigmask(wanted ? SIG_UNBLOCK : SIG_BLOCK, &told, nullptr);
}

/// Ticks to wait before reporting a lost rank: several ranks may end at once, and shortly afterwards all
/// losses are visible.
constexpr int kBeforeSaying = 3;

/// Ticks after which a rank that reports nothing ends itself, in case mpirun does not end it. On a busy
/// machine mpirun may take a second, and it returns the status of the first rank that ends.
constexpr int kBeforeLeaving = 80;

/// The state of a process: R if it runs, S if it waits, T if it is stopped ... Linux writes it into
/// /proc/ID/stat, after the program's name in parentheses (proc(5)). Z means that the process has ended; the
/// file remains until its parent, mpirun, notices. Returns '?' if the file does not exist.
char state(const RankMonitor::Process& process) {
  if (kill(static_cast<pid_t>(process.id), 0) != 0 && errno == ESRCH) return 'Z';
  std::ifstream file(fmt::format("/proc/{}/stat", process.id));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == line.npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

#endif

}  // namespace

bool RankMonitor::has_signal() {
  return has_ended != 0;
}

bool RankMonitor::is_notified() {
  return has_been_told != 0;
}

#ifdef SIGURG

std::int64_t RankMonitor::own_id() {
  return getpid();
}

RankMonitor::RankMonitor(int rank, std::vector<Process> others, std::chrono::milliseconds longest_stop)
    : rank_(rank), longest_stop_(longest_stop), others_(std::move(others)) {
  std::erase_if(others_, [](const Process& other) { return state(other) == 'Z'; });
  std::signal(SIGTERM, [](int) { has_ended = 1; });
  std::signal(kTold, [](int) { has_been_told = 1; });
  let_this_thread_be_told(false);  // nor the threads that it starts
  thread_ = std::thread([this] { watch(); });
}

RankMonitor::~RankMonitor() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (!follows_) std::signal(SIGTERM, SIG_DFL);
}

void RankMonitor::follow_rank_0(std::chrono::milliseconds limit, std::function<void()> give_up) {
  limit_ = limit;
  give_up_ = std::move(give_up);
  follows_ = true;
  // mpirun forwards SIGUSR1 to its processes.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, [](int) { has_ended = 1; });
}

void RankMonitor::notify() {
  leaves_ = true;
  for (const Process& other : others_) kill(static_cast<pid_t>(other.id), kTold);
}

void RankMonitor::watch() {
  let_this_thread_be_told(true);
  std::unique_lock lock(mutex_);
  std::vector<int> known;
  // How long rank 0 has been stopped, and each other rank. Counted in ticks, so that time in which this
  // process is stopped itself does not count.
  std::chrono::milliseconds stopped_for(0);
  std::map<int, std::chrono::milliseconds> stops;
  for (int ticks = 0; !wake_.wait_for(lock, kTick, [this] { return stopping_; });) {
    if (leaves_) continue;
    // A rank that has reported why it ends did so before it ended, so this thread has its signal by now.
    std::vector<int> lost;
    bool leader_stopped = false, is_first = true;
    for (const Process& other : others_) {
      const char now = state(other);
      if (now == 'Z') lost.push_back(other.rank);
      leader_stopped = leader_stopped || (other.rank == 0 && now == 'T');
      stops[other.rank] = now == 'T' ? stops[other.rank] + kTick : kTick * 0;
      if (now != 'T' && now != 'Z' && other.rank < rank_) is_first = false;
    }
    const auto stopped = std::ranges::max_element(stops, {}, [](const auto& stop) { return stop.second; });
    if (is_first && stopped != stops.end() && stopped->second > longest_stop_) {
      notify();
      quiet() = false;
      say_error(fmt::format("rank {} is stopped and the other ranks wait for it, so all ranks end",
                            stopped->first));
      std::_Exit(1);
    }
    stopped_for = leader_stopped && follows_ ? stopped_for + kTick : kTick * 0;
    if (stopped_for > limit_) give_up_();
    if (known != lost) ticks = 0;
    known = lost;
    if (lost.empty() && !has_signal() && !is_notified()) continue;
    ++ticks;
    if (is_notified()) {
      // mpirun takes its status from the rank that notified.
      if (has_signal() || ticks > kBeforeLeaving) std::_Exit(1);
    } else if (lost.empty()) {
      if (follows_ || ticks < kBeforeSaying) continue;
      std::signal(SIGTERM, SIG_DFL);  // no rank is lost: a person ends the program
      std::raise(SIGTERM);
    } else if (ticks > kBeforeLeaving) {
      std::_Exit(1);
    } else if (ticks >= kBeforeSaying && std::ranges::all_of(others_, [&](const Process& other) {
                 return other.rank > rank_ || std::ranges::count(lost, other.rank) > 0;
               })) {
      notify();
      quiet() = false;
      say_error(
          fmt::format("rank {} ended before the other ranks, so all ranks end: it failed or was killed, "
                      "perhaps because memory ran out",
                      lost.front()));
      std::_Exit(1);
    }
  }
}

#else

std::int64_t RankMonitor::own_id() {
  return 0;
}

RankMonitor::RankMonitor(int rank, std::vector<Process> /*others*/, std::chrono::milliseconds longest_stop)
    : rank_(rank), longest_stop_(longest_stop) {}
RankMonitor::~RankMonitor() = default;
void RankMonitor::follow_rank_0(std::chrono::milliseconds /*limit*/, std::function<void()> /*give_up*/) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { has_ended = 1; });
}

void RankMonitor::notify() {}
void RankMonitor::watch() {}

#endif

}  // namespace staircase
