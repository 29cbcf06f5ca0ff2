// The link between GPUs of several ranks: NCCL, NVIDIA's library of collectives, which takes NVLink, PCIe or
// the network, whatever is the fastest way between two GPUs.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "kernels/device.h"

struct ncclComm;

namespace staircase::cuda {

/// Numbers are float32 in memory of the GPU. A call returns when its work is in the stream, after what is
/// there already; all ranks make the same calls in the same order, but for send and receive. Errors are
/// std::runtime_error.
class NcclLink {
 public:
  /// Whether this program was built with NCCL. The library itself is only loaded for a link: a program that
  /// runs alone starts without it.
  static bool is_built();

  /// Waits for all ranks. Each has a GPU of its own.
  explicit NcclLink(const DeviceRank& own);
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  ~NcclLink();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// all = the `count` numbers of rank 0, then those of rank 1 ...
  void all_gather(const float* own, std::int64_t count, float* all, cudaStream_t stream) const;

  /// What goes to a rank, and what comes from it. A count of 0 is nothing to do on either side.
  struct Parcel {
    const float* to = nullptr;
    std::int64_t to_count = 0;
    float* from = nullptr;
    std::int64_t from_count = 0;
  };

  /// One parcel to and from each other rank, all at the same time.
  void exchange(const std::function<Parcel(int rank)>& parcel, cudaStream_t stream) const;

  /// `count` numbers to or from one other rank, which makes the opposite call.
  void send(const float* numbers, std::int64_t count, int to, cudaStream_t stream) const;
  void receive(float* numbers, std::int64_t count, int from, cudaStream_t stream) const;

  /// Until the stream is empty. Throws if a rank is lost meanwhile, or after longest_wait: the kernels of
  /// this one may wait for a rank that is stopped, of which NCCL notices nothing.
  void wait(cudaStream_t stream) const;

  /// Far longer than a pass takes a GPU. Tests have less time.
  static inline std::chrono::milliseconds longest_wait{60'000};

  /// The link stays as it is until the process ends.
  void abandon() { communicator_ = nullptr; }

 private:
  int rank_, size_;
  int exceptions_;  // in flight when the link was made
  ncclComm* communicator_ = nullptr;
};

}  // namespace staircase::cuda
