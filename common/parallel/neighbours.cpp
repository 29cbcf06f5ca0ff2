#include "common/parallel/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
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

/// A process that is no rank of ours ignores it.
constexpr int kTold = SIGURG;

constexpr std::chrono::milliseconds kTick(50);

/// What a neighbour tells may arrive a little later than the sight of its end.
constexpr int kBeforeSaying = 3;

/// For ranks that do not say it themselves, in case mpirun does not end them. A busy machine may take a
/// second for that, and mpirun's status is that of the first rank that ends.
constexpr int kBeforeLeaving = 80;

/// A process that has ended is still there until its parent, mpirun, notices it. Linux tells the two apart:
/// after the name of the program, in parentheses, /proc/ID/stat has Z for it (proc(5)).
bool runs(const Neighbours::Process& process) {
  if (kill(static_cast<pid_t>(process.id), 0) != 0 && errno == ESRCH) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", process.id));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos || line.substr(name_end, 3) != ") Z";
}

#endif

}  // namespace

bool Neighbours::has_signal() {
  return has_ended != 0;
}

bool Neighbours::is_told() {
  return has_been_told != 0;
}

#ifdef SIGURG

std::int64_t Neighbours::own_id() {
  return getpid();
}

Neighbours::Neighbours(int rank, std::vector<Process> others) : rank_(rank), others_(std::move(others)) {
  std::erase_if(others_, [](const Process& other) { return !runs(other); });
  std::signal(SIGTERM, [](int) { has_ended = 1; });
  std::signal(kTold, [](int) { has_been_told = 1; });
  thread_ = std::thread([this] { watch(); });
}

Neighbours::~Neighbours() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (!follows_) std::signal(SIGTERM, SIG_DFL);
}

void Neighbours::follow_rank_0() {
  follows_ = true;
  // mpirun passes SIGUSR1 on.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, [](int) { has_ended = 1; });
}

void Neighbours::tell() {
  leaves_ = true;
  for (const Process& other : others_) kill(static_cast<pid_t>(other.id), kTold);
}

void Neighbours::watch() {
  std::unique_lock lock(mutex_);
  auto running = std::ranges::count_if(others_, runs);
  for (int ticks = 0; !wake_.wait_for(lock, kTick, [this] { return stopping_; });) {
    if (leaves_) continue;
    // One that has just ended may have told why, and the signal takes a moment to arrive.
    const auto left = std::ranges::count_if(others_, runs);
    if (std::exchange(running, left) != left) ticks = 0;
    const auto lost = std::ranges::find_if_not(others_, runs);
    if (lost == others_.end() && !has_signal() && !is_told()) continue;
    ++ticks;
    if (is_told()) {
      // mpirun takes its status from the rank that told.
      if (has_signal() || ticks > kBeforeLeaving) std::_Exit(1);
    } else if (lost == others_.end()) {
      if (follows_ || ticks < kBeforeSaying) continue;
      std::signal(SIGTERM, SIG_DFL);  // nothing is lost: a person ends the program
      std::raise(SIGTERM);
    } else if (ticks > kBeforeLeaving) {
      std::_Exit(1);
    } else if (ticks >= kBeforeSaying && std::ranges::none_of(others_, [this](const Process& other) {
                 return other.rank < rank_ && runs(other);
               })) {
      tell();
      quiet() = false;
      say_error(
          fmt::format("rank {} has ended before the others, so all end: it has failed or was killed, "
                      "perhaps because memory ran out",
                      lost->rank));
      std::_Exit(1);
    }
  }
}

#else

std::int64_t Neighbours::own_id() {
  return 0;
}

Neighbours::Neighbours(int rank, std::vector<Process> /*others*/) : rank_(rank) {}
Neighbours::~Neighbours() = default;
void Neighbours::follow_rank_0() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { has_ended = 1; });
}

void Neighbours::tell() {}
void Neighbours::watch() {}

#endif

}  // namespace staircase
