// The only file that calls NCCL.
#include "kernels/cuda/nccl_link.h"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/cuda/launch.h"

#if STAIRCASE_NCCL
#include <dlfcn.h>
#include <nccl.h>
#endif

namespace staircase::cuda {

#if STAIRCASE_NCCL
namespace {

struct Nccl {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) init_rank;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclAllGather) all_gather;
};

Nccl load_nccl() {
  // First the library that the system finds, then the one beside the headers of the build.
  std::string reason;
  void* library = nullptr;
  for (const char* name : {"libnccl.so.2", STAIRCASE_NCCL_LIBRARY}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (reason.empty()) reason = dlerror();
  }
  if (library == nullptr) {
    throw std::runtime_error("GPUs of several ranks need the library NCCL, which was not found: " + reason);
  }
  Nccl nccl;
  const auto find = [&]<typename Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) {
      throw std::runtime_error(std::string("the library NCCL is too old: it has no ") + name);
    }
  };
  find(nccl.get_unique_id, "ncclGetUniqueId");
  find(nccl.init_rank, "ncclCommInitRank");
  find(nccl.destroy, "ncclCommDestroy");
  find(nccl.get_async_error, "ncclCommGetAsyncError");
  find(nccl.error_string, "ncclGetErrorString");
  find(nccl.last_error, "ncclGetLastError");
  find(nccl.group_start, "ncclGroupStart");
  find(nccl.group_end, "ncclGroupEnd");
  find(nccl.send, "ncclSend");
  find(nccl.receive, "ncclRecv");
  find(nccl.all_gather, "ncclAllGather");
  return nccl;
}

const Nccl& nccl() {
  static const Nccl library = load_nccl();
  return library;
}

/// Throws std::runtime_error unless `result` is success: "NCCL failed while GPUs were linked: invalid usage
/// (Duplicate GPU ...)".
void check(ncclResult_t result, const char* what, ncclComm* communicator = nullptr) {
  if (result == ncclSuccess) return;
  std::string sentence = std::string("NCCL failed while ") + what + ": " + nccl().error_string(result);
  const char* const last = nccl().last_error(communicator);
  const std::string detail(last == nullptr ? "" : last);
  if (!detail.empty()) sentence += " (" + detail.substr(0, detail.find('\n')) + ")";
  throw std::runtime_error(sentence);
}

std::size_t count_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

}  // namespace

bool NcclLink::is_built() {
  return true;
}

NcclLink::NcclLink(const DeviceRank& own)
    : rank_(own.rank), size_(own.size), exceptions_(std::uncaught_exceptions()) {
  // The ranks find each other by an id that rank 0 makes.
  ncclUniqueId id{};
  if (rank_ == 0) check(nccl().get_unique_id(&id), "an id for the link of GPUs was made");
  own.broadcast(std::string(id.internal, sizeof id.internal)).copy(id.internal, sizeof id.internal);
  check(nccl().init_rank(&communicator_, size_, id, rank_), "GPUs were linked");
}

// Ending a link waits for all ranks, and so does ncclCommAbort (NCCL, "Error handling and communicator
// abort"). After an error other ranks may never arrive, so the link then stays until the process ends.
NcclLink::~NcclLink() {
  if (communicator_ != nullptr && std::uncaught_exceptions() == exceptions_) nccl().destroy(communicator_);
}

void NcclLink::all_gather(const float* own, std::int64_t count, float* all, cudaStream_t stream) const {
  check(nccl().all_gather(own, all, count_of(count), ncclFloat32, communicator_, stream),
        "numbers of all ranks were gathered", communicator_);
}

void NcclLink::exchange(const std::function<Parcel(int rank)>& parcel, cudaStream_t stream) const {
  const char* const what = "ranks exchanged numbers";
  // In a group all transfers run at the same time; one by one, each send would wait for its receiver.
  check(nccl().group_start(), what, communicator_);
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    const Parcel& own = parcel(other);
    if (own.to_count > 0) {
      check(nccl().send(own.to, count_of(own.to_count), ncclFloat32, other, communicator_, stream), what,
            communicator_);
    }
    if (own.from_count > 0) {
      check(nccl().receive(own.from, count_of(own.from_count), ncclFloat32, other, communicator_, stream),
            what, communicator_);
    }
  }
  check(nccl().group_end(), what, communicator_);
}

void NcclLink::send(const float* numbers, std::int64_t count, int to, cudaStream_t stream) const {
  check(nccl().send(numbers, count_of(count), ncclFloat32, to, communicator_, stream),
        "numbers were sent to another rank", communicator_);
}

void NcclLink::receive(float* numbers, std::int64_t count, int from, cudaStream_t stream) const {
  check(nccl().receive(numbers, count_of(count), ncclFloat32, from, communicator_, stream),
        "numbers of another rank were received", communicator_);
}

void NcclLink::wait(cudaStream_t stream) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    cudaGetLastError();  // "not ready" counts as an error, which NCCL would report as its own
    ncclResult_t state = ncclSuccess;
    check(nccl().get_async_error(communicator_, &state), "it was asked for errors", communicator_);
    check(state, "GPUs of several ranks computed", communicator_);
    if (Clock::now() - begin > longest_wait) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%.1f", std::chrono::duration<double>(longest_wait).count());
      throw std::runtime_error(std::string("another rank has not answered for ") + seconds +
                               " seconds: it has ended, is stopped or cannot be reached");
    }
    std::this_thread::yield();
  }
}

#else

bool NcclLink::is_built() {
  return false;
}

NcclLink::NcclLink(const DeviceRank& own) : rank_(own.rank), size_(own.size), exceptions_(0) {
  throw std::logic_error("this program was built without NCCL");
}

NcclLink::~NcclLink() = default;

void NcclLink::all_gather(const float*, std::int64_t, float*, cudaStream_t) const {}

void NcclLink::exchange(const std::function<Parcel(int)>&, cudaStream_t) const {}

void NcclLink::send(const float*, std::int64_t, int, cudaStream_t) const {}

void NcclLink::receive(float*, std::int64_t, int, cudaStream_t) const {}

void NcclLink::wait(cudaStream_t) const {}

#endif

}  // namespace staircase::cuda
