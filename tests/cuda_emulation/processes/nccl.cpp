// Replaces the library NCCL where ranks are processes, each with an emulated GPU: the numbers go by MPI.
//
// As on a GPU, a call returns at once. Its work is in the stream, where it waits for the other ranks, and
// what follows waits with it. So all that waits for a stream waits for ever where a rank does not come.
//
// STAIRCASE_FAULT="1 5 stop" lets rank 1 meet a fault when it makes its fifth call:
//
//   memory   the GPU has no more of it
//   error    the call fails
//   lost     its work never ends, and ncclCommGetAsyncError says why
//   silent   its work never ends
//   kill     the process is killed
//   stop     the process is stopped
#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cuda_emulation/include/cuda_runtime.h"

struct ncclComm {
  MPI_Comm ranks = MPI_COMM_NULL;
  int rank = 0;
};

namespace {

using Requests = std::vector<MPI_Request>;
using Start = std::function<void(Requests&)>;

struct Fault {
  int rank = -1, call = 0;
  std::string kind;
};

Fault read_fault() {
  Fault fault;
  if (const char* const text = std::getenv("STAIRCASE_FAULT")) {
    std::istringstream(text) >> fault.rank >> fault.call >> fault.kind;
  }
  return fault;
}

std::string last_error;
ncclResult_t asynchronous = ncclSuccess;
bool waits_for_ever = false;
bool in_group = false;
std::vector<Start> group;

ncclResult_t fault_of_call(int rank) {
  static const Fault fault = read_fault();
  static int calls = 0;
  // CUDA's last error is what NCCL takes for its own.
  if (cudaGetLastError() != cudaSuccess) return ncclUnhandledCudaError;
  if (++calls != fault.call || rank != fault.rank) return ncclSuccess;
  if (fault.kind == "memory") cuda_emulation::settings.memory = 0;
  if (fault.kind == "kill") std::raise(SIGKILL);
  if (fault.kind == "stop") std::raise(SIGSTOP);
  if (fault.kind == "lost") asynchronous = ncclRemoteError;
  waits_for_ever = fault.kind == "lost" || fault.kind == "silent";
  return fault.kind == "error" ? ncclSystemError : ncclSuccess;
}

ncclResult_t enqueue(ncclComm_t communicator, cudaStream_t stream, const Start& start) {
  if (const ncclResult_t result = fault_of_call(communicator->rank); result != ncclSuccess) return result;
  stream->work.push_back([start, requests = std::make_shared<Requests>()] {
    if (waits_for_ever) return false;
    if (requests->empty()) start(*requests);
    int done = 0;
    MPI_Testall(static_cast<int>(requests->size()), requests->data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  });
  return ncclSuccess;
}

cudaStream_t stream_of_group = nullptr;
ncclComm_t group_of = nullptr;

ncclResult_t move(ncclComm_t communicator, cudaStream_t stream, const Start& start) {
  if (!in_group) return enqueue(communicator, stream, start);
  group_of = communicator;
  stream_of_group = stream;
  group.push_back(start);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId, int rank) {
  static std::deque<ncclComm> all;
  ncclComm& own = all.emplace_back(ncclComm{MPI_COMM_NULL, rank});
  MPI_Comm_dup(MPI_COMM_WORLD, &own.ranks);
  *communicator = &own;
  // The GPU of each rank, by its number in this machine.
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const int gpu = visible == nullptr ? 0 : std::atoi(visible);
  std::vector<int> gpus(static_cast<std::size_t>(ranks));
  MPI_Allgather(&gpu, 1, MPI_INT, gpus.data(), 1, MPI_INT, own.ranks);
  std::ranges::sort(gpus);
  if (std::ranges::adjacent_find(gpus) == gpus.end()) return ncclSuccess;
  last_error = "Duplicate GPU detected";
  return ncclInvalidUsage;
}

// Both return when every rank has called them.
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  MPI_Barrier(communicator->ranks);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  return ncclCommDestroy(communicator);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = asynchronous;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "invalid usage";
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
  return enqueue(group_of, stream_of_group, [all = group](Requests& requests) {
    for (const Start& start : all) start(requests);
  });
}

// Done when the receiver has it: a stream goes on then.
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return move(communicator, stream, [=](Requests& requests) {
    MPI_Issend(from, static_cast<int>(count), MPI_FLOAT, peer, 0, communicator->ranks,
               &requests.emplace_back());
  });
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return move(communicator, stream, [=](Requests& requests) {
    MPI_Irecv(to, static_cast<int>(count), MPI_FLOAT, peer, 0, communicator->ranks, &requests.emplace_back());
  });
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t,
                           ncclComm_t communicator, cudaStream_t stream) {
  return enqueue(communicator, stream, [=](Requests& requests) {
    MPI_Iallgather(from, static_cast<int>(count), MPI_FLOAT, to, static_cast<int>(count), MPI_FLOAT,
                   communicator->ranks, &requests.emplace_back());
  });
}
}
