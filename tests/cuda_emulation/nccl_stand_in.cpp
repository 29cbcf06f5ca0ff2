#include "tests/cuda_emulation/nccl_stand_in.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace {

using nccl_stand_in::Call;

struct Transfer {
  bool sends = false;
  int peer = 0;
  std::size_t count = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

struct Failure {
  std::string name;
  int rank = 0;
  ncclResult_t result = ncclSuccess;
};

std::mutex turn_of_all;
std::condition_variable changed;
int waiting = 0, meetings = 0;
bool one_has_left = false;
std::vector<Call> calls;
std::optional<Failure> failure;
std::string last_error;
ncclResult_t asynchronous = ncclSuccess;
int ids = 0;
/// What each rank has put there for the others.
std::map<int, std::vector<Transfer>> offered;
/// What one rank sends to another by a call of its own, until that one has it.
std::map<std::pair<int, int>, Transfer> sent;

void (*finish_stream)(void*) = [](void*) {};
int waits_without_end = 0;

// Of the thread that is a rank.
thread_local bool in_group = false;
thread_local std::vector<Transfer> group;
thread_local ncclComm_t group_of = nullptr;

}  // namespace

struct ncclComm {
  int rank, size, id;
};

namespace {

std::deque<ncclComm> communicators;

ncclResult_t record(const char* name, int rank, std::size_t count = 0, int type = -1, int peer = -1,
                    cudaStream_t stream = nullptr) {
  if (stream != nullptr) finish_stream(stream);
  calls.push_back({name, rank, count, type, peer, in_group, stream});
  if (!failure || failure->name != name || failure->rank != rank) return ncclSuccess;
  return std::exchange(failure, {})->result;
}

/// Shows `own` to all ranks, and calls copy() when all have shown theirs.
template <typename Copy>
ncclResult_t together(ncclComm_t communicator, std::vector<Transfer> own, const Copy& copy) {
  offered[communicator->rank] = std::move(own);
  if (!nccl_stand_in::meet(communicator->size)) return ncclRemoteError;
  const ncclResult_t result = copy();
  return nccl_stand_in::meet(communicator->size) ? result : ncclRemoteError;
}

ncclResult_t all_gather(ncclComm_t communicator, const void* from, void* to, std::size_t count) {
  return together(communicator, {{true, -1, count, from, to}}, [&] {
    for (int rank = 0; rank < communicator->size; ++rank) {
      const std::vector<Transfer>& other = offered[rank];
      if (other.size() != 1 || other[0].peer != -1 || other[0].count != count) return ncclInvalidUsage;
      std::memcpy(static_cast<float*>(to) + static_cast<std::size_t>(rank) * count, other[0].from,
                  count * sizeof(float));
    }
    return ncclSuccess;
  });
}

ncclResult_t transfer(ncclComm_t communicator, const std::vector<Transfer>& own) {
  return together(communicator, own, [&] {
    for (const Transfer& one : own) {
      const auto fits = [&](const Transfer& other) {
        return other.sends != one.sends && other.peer == communicator->rank && other.count == one.count;
      };
      const auto other = std::ranges::find_if(offered[one.peer], fits);
      if (other == offered[one.peer].end()) return ncclInvalidUsage;
      if (!one.sends) std::memcpy(one.to, other->from, one.count * sizeof(float));
    }
    return ncclSuccess;
  });
}

/// Waits, without the turn, until is_done(). False if that does not happen within seconds.
template <typename IsDone>
bool wait_until(const IsDone& is_done) {
  std::unique_lock lock(turn_of_all, std::adopt_lock);
  changed.wait_for(lock, std::chrono::seconds(10), [&] { return is_done() || one_has_left; });
  lock.release();  // the caller had the turn, and keeps it
  return is_done();
}

/// A send or a receive that is not in a group. The stream waits for the other side, so the emulation does.
ncclResult_t move_alone(ncclComm_t communicator, const Transfer& one) {
  const std::pair way =
      one.sends ? std::pair(communicator->rank, one.peer) : std::pair(one.peer, communicator->rank);
  const auto is_sent = [&] { return sent.contains(way); };
  if (one.sends) {
    sent[way] = one;
    changed.notify_all();
    return wait_until([&] { return !is_sent(); }) ? ncclSuccess : ncclRemoteError;
  }
  if (!wait_until(is_sent)) return ncclRemoteError;
  if (sent[way].count != one.count) return ncclInvalidUsage;
  std::memcpy(one.to, sent[way].from, one.count * sizeof(float));
  sent.erase(way);
  changed.notify_all();
  return ncclSuccess;
}

ncclResult_t take(ncclComm_t communicator, const Transfer& one) {
  if (one.peer < 0 || one.peer >= communicator->size || one.peer == communicator->rank)
    return ncclInvalidArgument;
  if (!in_group) return move_alone(communicator, one);
  group_of = communicator;
  group.push_back(one);
  return ncclSuccess;
}

}  // namespace

namespace nccl_stand_in {

std::mutex& turn() {
  return turn_of_all;
}

bool meet(int size) {
  std::unique_lock lock(turn_of_all, std::adopt_lock);
  const int meeting = meetings;
  if (++waiting == size) {
    waiting = 0;
    ++meetings;
    changed.notify_all();
  }
  const bool came =
      changed.wait_for(lock, std::chrono::seconds(10), [&] { return meetings != meeting || one_has_left; });
  const bool all = came && meetings != meeting;
  if (!all) --waiting;
  lock.release();  // the caller had the turn, and keeps it
  return all;
}

void leave() {
  one_has_left = true;
  changed.notify_all();
}

std::vector<Call> calls_of(int rank) {
  std::vector<Call> own;
  std::ranges::copy_if(calls, std::back_inserter(own), [&](const Call& call) { return call.rank == rank; });
  return own;
}

void begin() {
  calls.clear();
  sent.clear();
  failure.reset();
  last_error.clear();
  asynchronous = ncclSuccess;
  one_has_left = false;
  communicators.clear();
  waits_without_end = 0;
}

void fail(const std::string& name, int rank, int result, const std::string& error) {
  failure = Failure{name, rank, static_cast<ncclResult_t>(result)};
  last_error = error;
}

void lose_rank(int result) {
  asynchronous = static_cast<ncclResult_t>(result);
}

void set_finish(void (*finish)(void* stream)) {
  finish_stream = finish;
}

int endless_waits() {
  return waits_without_end;
}

}  // namespace nccl_stand_in

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  ++ids;
  std::memcpy(id->internal + 100, &ids, sizeof ids);  // with zeros before it, as addresses have
  return record("ncclGetUniqueId", 0);
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  if (const ncclResult_t result = record("ncclCommInitRank", rank, static_cast<std::size_t>(ranks));
      result != ncclSuccess)
    return result;
  int number = 0;
  std::memcpy(&number, id.internal + 100, sizeof number);
  if (number != ids) return ncclInvalidArgument;
  if (!nccl_stand_in::meet(ranks)) return ncclRemoteError;
  *communicator = &communicators.emplace_back(ncclComm{rank, ranks, number});
  return ncclSuccess;
}

// Both return when every rank has called them.
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (!nccl_stand_in::meet(communicator->size)) ++waits_without_end;
  return record("ncclCommDestroy", communicator->rank);
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (!nccl_stand_in::meet(communicator->size)) ++waits_without_end;
  return record("ncclCommAbort", communicator->rank);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  *error = asynchronous;
  return record("ncclCommGetAsyncError", communicator->rank);
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclGroupStart() {
  in_group = true;
  group.clear();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  in_group = false;
  return transfer(group_of, group);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  if (const ncclResult_t result = record("ncclSend", communicator->rank, count, type, peer, stream);
      result != ncclSuccess)
    return result;
  return take(communicator, {true, peer, count, from, nullptr});
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  if (const ncclResult_t result = record("ncclRecv", communicator->rank, count, type, peer, stream);
      result != ncclSuccess)
    return result;
  return take(communicator, {false, peer, count, nullptr, to});
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (const ncclResult_t result = record("ncclAllGather", communicator->rank, count, type, -1, stream);
      result != ncclSuccess)
    return result;
  return all_gather(communicator, from, to, count);
}
}
