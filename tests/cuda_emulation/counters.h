// Counts what kernels ask of memory, which decides how fast they are where bandwidth is the limit. Of loads
// it sees those that name their instruction (ptx_instructions.h), as products of one row load their weights.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {

/// What has been counted since the object was made. One at a time.
class Counters {
 public:
  static constexpr std::uintptr_t kSector = 32;  ///< bytes that memory delivers at least

  Counters() {
    current = this;
    on_request = [](const void* from, std::size_t bytes) { current->request(from, bytes); };
    on_barrier = [] { ++current->barriers_; };
  }
  Counters(const Counters&) = delete;
  ~Counters() {
    on_request = nullptr;
    on_barrier = nullptr;
    current = nullptr;
  }

  std::uint64_t bytes() const { return bytes_; }
  /// Those requested before the kernel before had to be waited for.
  std::uint64_t early_bytes() const { return early_bytes_; }
  /// Passed by blocks.
  std::uint64_t barriers() const { return barriers_; }
  /// Sectors that requests touch. A request is one load by all lanes of a warp: the lanes' loads with the
  /// same number since the warp's last shuffle or vote.
  std::uint64_t sectors() const {
    std::uint64_t count = 0;
    for (const auto& request : requests_) count += request.second.size();
    return count;
  }

 private:
  void request(const void* from, std::size_t bytes) {
    const Thread& thread = *processor.thread();
    bytes_ += bytes;
    if (!thread.waited) early_bytes_ += bytes;
    auto& [operations, loads] = lanes_[{processor.epochs().blocks, thread.number}];
    if (std::exchange(operations, thread.warp_operations) != thread.warp_operations) loads = 0;
    std::set<std::uintptr_t>& touched =
        requests_[{{processor.epochs().blocks, thread.warp()}, {thread.warp_operations, loads++}}];
    const auto first = reinterpret_cast<std::uintptr_t>(from);
    for (std::uintptr_t sector = first / kSector; sector * kSector < first + bytes; ++sector)
      touched.insert(sector);
  }

  static inline Counters* current = nullptr;

  std::uint64_t bytes_ = 0, early_bytes_ = 0, barriers_ = 0;
  /// Of a block's thread: its warp's operations so far, and its loads since the last one.
  std::map<std::pair<std::uint64_t, unsigned>, std::pair<unsigned, unsigned>> lanes_;
  std::map<std::pair<std::pair<std::uint64_t, unsigned>, std::pair<unsigned, unsigned>>,
           std::set<std::uintptr_t>>
      requests_;
};

}  // namespace cuda_emulation
