// Counts what kernels ask of memory, which decides how fast they are where bandwidth is the limit.
//
// The lanes of a warp that execute an instruction together make one *request*. Global memory delivers whole
// sectors of 32 bytes, so its cost is the number that they touch:
//
//     lane 0 1 2 .. 31 read neighbours of 4 bytes     128 bytes in  4 sectors, the least possible
//     lane 0 1 2 .. 31 read 4 bytes, 128 bytes apart  128 bytes in 32 sectors, eight times as many
//
// Shared memory has 32 banks of 4 bytes: address / 4 modulo 32. It serves a word of each bank at a time, so
// lanes that want different words of one bank wait for one another. Each such turn is a *conflict*.
//
//     lane 0 1 2 .. 31 read column 0 of float tile[32][32]   32 words of bank 0: 31 conflicts
//                           ...        of float tile[32][33]   1 word of each:     none
//
// What is seen depends on the build. One with race_check.cpp, whose kernels are compiled as for the race
// check, counts every access. Any other counts instructions that have a name (__ldg, and those of
// ptx_instructions.h), as products of one row load their weights.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {

/// Accesses of one kind to global memory.
struct Traffic {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;        ///< that lanes name
  std::uint64_t early_bytes = 0;  ///< of these, before the wait for the kernel before
  std::uint64_t sectors = 0;
  std::uint64_t least_sectors = 0;  ///< that could hold the bytes of each request

  Traffic& operator+=(const Traffic& other) {
    requests += other.requests;
    bytes += other.bytes;
    early_bytes += other.early_bytes;
    sectors += other.sectors;
    least_sectors += other.least_sectors;
    return *this;
  }
};

/// One launch of a kernel.
struct CountedLaunch {
  std::string kernel;    ///< with its template arguments: "multiply_one_row<32, 3, ...>"
  unsigned blocks = 0;   ///< of the grid
  unsigned threads = 0;  ///< of a block
  Traffic loads, streams, stores, prefetches;
  std::uint64_t barriers = 0;  ///< passed by blocks
  std::uint64_t shared_requests = 0, conflicts = 0;
  std::size_t dynamic_shared_bytes = 0;  ///< of a block
  /// The most that a thread requests of the counted global memory before it reads anything else.
  std::uint64_t bytes_at_once = 0;
};

/// The name of a kernel without its parameters and namespaces. The program must export its symbols.
inline std::string name_of_kernel(const void* kernel) {
  Dl_info info{};
  if (dladdr(kernel, &info) == 0 || info.dli_sname == nullptr) return "?";
  int status = 0;
  char* const readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : info.dli_sname;
  std::free(readable);
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) name.resize(i);
  }
  for (const std::string left_out : {"void ", "staircase::", "cuda::"}) {
    for (std::size_t at; (at = name.find(left_out)) != std::string::npos;) name.erase(at, left_out.size());
  }
  return name;
}

/// What has been counted since the object was made. One at a time.
class Counters {
 public:
  static constexpr std::uintptr_t kSector = 32;
  static constexpr unsigned kBanks = 32, kBankBytes = 4;

  Counters() {
    current = this;
    on_kernel = [](const void* kernel, dim3 grid, dim3 block, std::size_t dynamic_shared_bytes) {
      current->finish_block();
      CountedLaunch& launch = current->launches_.emplace_back();
      launch.kernel = name_of_kernel(kernel);
      launch.blocks = grid.x * grid.y * grid.z;
      launch.threads = block.x * block.y * block.z;
      launch.dynamic_shared_bytes = dynamic_shared_bytes;
    };
    on_request = [](Access access, Memory memory, const void* address, std::size_t bytes,
                    const void* instruction) {
      current->add(access, memory, reinterpret_cast<std::uintptr_t>(address), bytes, instruction);
    };
    on_barrier = [] { ++current->launches_.back().barriers; };
  }
  Counters(const Counters&) = delete;
  ~Counters() {
    on_kernel = nullptr;
    on_request = nullptr;
    on_barrier = nullptr;
    current = nullptr;
  }

  /// Of global memory, counts only what is read and written there.
  void only(const void* first, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(first);
    counted_ = {begin, begin + bytes};
  }

  /// In their order.
  const std::vector<CountedLaunch>& launches() {
    finish_block();
    return launches_;
  }

 private:
  /// What the lanes of a warp ask for at once: for each lane its first byte, and how many; 0 for none.
  struct Request {
    Access access{};
    Memory memory{};
    std::array<std::pair<std::uintptr_t, std::size_t>, kWarp> lanes{};
  };

  void add(Access access, Memory memory, std::uintptr_t address, std::size_t bytes, const void* instruction) {
    if (block_ != processor.epochs().blocks) finish_block();
    block_ = processor.epochs().blocks;
    const Thread& thread = *processor.thread();
    const bool is_counted =
        memory == Memory::kShared || (address >= counted_.first && address < counted_.second);
    const bool reads = access == Access::kLoad || access == Access::kStream;
    if (reads) {
      std::uint64_t& at_once = at_once_[thread.number];
      at_once = memory == Memory::kGlobal && is_counted ? at_once + bytes : 0;
      launches_.back().bytes_at_once = std::max(launches_.back().bytes_at_once, at_once);
    }
    if (!is_counted) return;
    if (memory == Memory::kGlobal) {
      traffic(access).bytes += bytes;
      if (!thread.waited) traffic(access).early_bytes += bytes;
    }
    // A lane's n-th execution of the instruction since its last barrier and its warp's last shuffle or vote.
    const std::pair since{processor.epochs().barriers, thread.warp_operations};
    auto& [last, count] = executions_[{thread.number, instruction}];
    if (std::exchange(last, since) != since) count = 0;
    Request& request = requests_[{thread.warp(), since, instruction, count++}];
    request.access = access;
    request.memory = memory;
    request.lanes[thread.lane()] = {address, bytes};
  }

  Traffic& traffic(Access access) {
    CountedLaunch& launch = launches_.back();
    return access == Access::kLoad       ? launch.loads
           : access == Access::kStream   ? launch.streams
           : access == Access::kPrefetch ? launch.prefetches
                                         : launch.stores;
  }

  void finish_block() {
    for (const auto& [key, request] : requests_) {
      if (request.memory == Memory::kShared) {
        ++launches_.back().shared_requests;
        launches_.back().conflicts += conflicts_of(request);
        continue;
      }
      // By address, so that a byte or a sector that several lanes name counts once.
      auto pieces = request.lanes;
      std::sort(pieces.begin(), pieces.end());
      std::uintptr_t bytes = 0, sectors = 0, end = 0, sectors_end = 0;
      for (const auto& [first, count] : pieces) {
        if (count == 0) continue;
        const std::uintptr_t last = first + count, last_sector = (last + kSector - 1) / kSector;
        bytes += std::max(end, last) - std::max(end, first);
        sectors += std::max(sectors_end, last_sector) - std::max(sectors_end, first / kSector);
        end = std::max(end, last);
        sectors_end = std::max(sectors_end, last_sector);
      }
      Traffic& all = traffic(request.access);
      ++all.requests;
      all.sectors += sectors;
      all.least_sectors += (bytes + kSector - 1) / kSector;
    }
    requests_.clear();
    executions_.clear();
    at_once_.clear();
  }

  /// The turns that the request waits for. 4 bytes are served to 32 lanes at a time, 8 bytes to 16, 16 to 8.
  static std::uint64_t conflicts_of(const Request& request) {
    std::size_t widest = kBankBytes;
    for (const auto& lane : request.lanes) widest = std::max(widest, lane.second);
    widest = std::bit_ceil(widest);  // a compiler may copy a struct of 12 bytes at once
    const std::size_t at_once = kBanks * kBankBytes / widest;
    std::uint64_t conflicts = 0;
    for (std::size_t begin = 0; begin < kWarp; begin += at_once) {
      std::set<std::uintptr_t> words;
      for (std::size_t lane = begin; lane < begin + at_once; ++lane) {
        const auto [first, bytes] = request.lanes[lane];
        for (std::uintptr_t word = first / kBankBytes; word * kBankBytes < first + bytes; ++word)
          words.insert(word);
      }
      std::array<std::uint64_t, kBanks> turns{};
      for (const std::uintptr_t word : words) ++turns[word % kBanks];
      conflicts += std::max<std::uint64_t>(*std::max_element(turns.begin(), turns.end()), 1) - 1;
    }
    return conflicts;
  }

  static inline Counters* current = nullptr;

  using Since = std::pair<std::uint32_t, unsigned>;

  std::vector<CountedLaunch> launches_;
  std::pair<std::uintptr_t, std::uintptr_t> counted_{0, UINTPTR_MAX};
  std::uint64_t block_ = 0;
  std::map<unsigned, std::uint64_t> at_once_;  // of each thread
  std::map<std::pair<unsigned, const void*>, std::pair<Since, unsigned>> executions_;
  std::map<std::tuple<unsigned, Since, const void*, unsigned>, Request> requests_;
};

}  // namespace cuda_emulation
