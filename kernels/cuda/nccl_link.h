// The link between GPUs of several ranks. It uses NCCL, NVIDIA's library of collectives, which chooses the
// fastest way between two GPUs: NVLink, PCIe or the network.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "kernels/device.h"

struct ncclComm;

namespace staircase::cuda {

/// Numbers are float32 in GPU memory. A call adds its work to the stream, after earlier work, and returns.
/// All ranks must make the same calls in the same order, except for send and receive. Errors are
/// std::runtime_error.
class NcclLink {
 public:
  /// Whether this program was built with NCCL. The library itself is only loaded for a link, so a program
  /// that runs alone starts without it.
  static bool is_built();

  /// Links this rank to all others, and waits for them. Each rank needs its own GPU.
  explicit NcclLink(const DeviceRank& own);
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  ~NcclLink();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// all = the `count` numbers of rank 0, then the `count` numbers of rank 1, and so on.
  void all_gather(const float* own, std::int64_t count, float* all, cudaStream_t stream) const;

  /// The numbers to send to a rank, and the memory for numbers from it. If a count is 0, neither side does
  /// anything.
  struct Parcel {
    const float* to = nullptr;
    std::int64_t to_count = 0;
    float* from = nullptr;
    std::int64_t from_count = 0;
  };

  /// Exchanges one parcel with each other rank, all at the same time.
  void exchange(const std::function<Parcel(int rank)>& parcel, cudaStream_t stream) const;

  /// Sends or receives `count` numbers. The other rank must make the opposite call.
  void send(const float* numbers, std::int64_t count, int to, cudaStream_t stream) const;
  void receive(float* numbers, std::int64_t count, int from, cudaStream_t stream) const;

  /// Waits until the stream is empty. Throws if a rank is lost meanwhile, or after longest_wait: kernels of
  /// this rank may wait for a stopped rank, which NCCL does not notice.
  void wait(cudaStream_t stream) const;

  /// Far longer than a GPU needs for a pass. Tests set less.
  static inline std::chrono::milliseconds longest_wait{60'000};

  /// Keeps the link until the process ends.
  void abandon() { communicator_ = nullptr; }

 private:
  int rank_, size_;
  int exceptions_;  // exceptions in flight when the link was made
  ncclComm* communicator_ = nullptr;
};

}  // namespace staircase::cuda
