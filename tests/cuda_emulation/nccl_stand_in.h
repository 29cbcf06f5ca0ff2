// Replaces the library NCCL: ranks are threads of this process, and the memory of a GPU is the host's. It
// records each call and moves the numbers as NCCL would. It rejects calls that NCCL does not survive: ranks
// that make different calls, send numbers that no rank receives, or use another id than rank 0's.
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

/// Numbers move after the work that is in the stream: `finish` does that work.
void set_finish(void (*finish)(void* stream));

/// How often a rank has waited in ncclCommDestroy or ncclCommAbort for one that did not come, since begin().
int endless_waits();

}  // namespace nccl_stand_in
