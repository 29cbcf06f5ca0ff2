// Stands in for the library NCCL: ranks are threads of this process, and memory of a GPU is that of the host.
// It records each call, moves the numbers as NCCL would, and refuses what NCCL would not forgive: ranks that
// call different things, send what no one receives, or use an id that is not rank 0's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace nccl_stand_in {

struct Call {
  std::string name;
  int rank = -1;
  std::size_t count = 0;
  int type = -1, peer = -1;
  bool grouped = false;
  const void* stream = nullptr;
};

/// The emulation of a GPU has one thread at a time: the one that holds it. It is free while a rank waits for
/// others.
std::mutex& turn();

/// Waits, without the turn, until all of `size` ranks are here. False if they do not come within seconds.
bool meet(int size);

/// Lets all who wait go, and who comes later: a rank has ended by an error.
void leave();

/// What one rank has called so far, in its order.
std::vector<Call> calls_of(int rank);

/// Forgets calls, failures and who has left.
void begin();

/// The next call of that name fails like this, on that rank.
void fail(const std::string& name, int rank, int result, const std::string& last_error);

/// What ncclCommGetAsyncError reports from now on.
void lose_rank(int result);

}  // namespace nccl_stand_in
