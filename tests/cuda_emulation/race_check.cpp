// The shadows of shared and of global memory, and the functions that -fsanitize=thread calls. This file
// itself must be compiled without it.
#include "tests/cuda_emulation/race_check.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/cuda_emulation/happens_before.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

namespace cuda_emulation {
namespace {

bool checking = false;

/// What one warp did with one byte since a barrier and a __syncwarp.
struct WarpAccesses {
  std::uint32_t barriers = 0xffffffffu, syncs = 0;
  std::uint32_t lanes_read = 0, lanes_written = 0;
};

/// What all warps of a block did with one byte since a barrier, a bit for each.
struct ByteAccesses {
  std::uint64_t block = 0;
  std::uint32_t barriers = 0xffffffffu;
  std::uint32_t warps_read = 0, warps_written = 0;
  std::vector<WarpAccesses> warps;
};

/// For each byte of shared memory.
thread_local std::vector<ByteAccesses> shadow;  // as the memory itself

/// Shared variables are thread_local, and nothing else in a test program that kernels access is.
struct Range {
  std::uintptr_t begin = 0, end = 0;
};

Range shared_variables() {
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
          const auto begin = reinterpret_cast<std::uintptr_t>(info->dlpi_tls_data);
          *static_cast<Range*>(result) = {begin, begin + info->dlpi_phdr[i].p_memsz};
        }
        return 1;  // the program itself comes first, and no library has shared variables
      },
      &range);
  return range;
}

/// For each piece of global memory of this many bytes, in the running kernel: when each byte was last
/// written.
constexpr std::uintptr_t kPiece = 16;
std::unordered_map<std::uintptr_t, std::array<Moment, kPiece>> last_writes;
HappensBefore happens_before;
std::uint64_t global_kernel = 0;
/// Between these are all written bytes. Most reads are elsewhere (weights, the stack), and need no look-up.
std::uintptr_t first_written = UINTPTR_MAX, last_written = 0;

/// The pieces that kernels have written since the host last waited for them.
std::unordered_set<std::uintptr_t> unfinished_writes;
std::uint64_t last_wait = 0;

void forget_finished_writes() {
  if (last_wait == waits) return;
  unfinished_writes.clear();
  last_wait = waits;
}

void forget_other_kernels() {
  if (global_kernel == processor.epochs().kernels) return;
  last_writes.clear();
  first_written = UINTPTR_MAX;
  last_written = 0;
  happens_before = {};
  global_kernel = processor.epochs().kernels;
}

void note_fence() {
  forget_other_kernels();
  happens_before.fence();
}

void note_atomic(const void* flag) {
  forget_other_kernels();
  happens_before.atomic(flag);
}

void on_access_to_global(std::uintptr_t first, std::size_t bytes, bool write) {
  forget_other_kernels();
  const std::uintptr_t end = first + bytes;
  if (write) {
    first_written = std::min(first_written, first);
    last_written = std::max(last_written, end - 1);
    forget_finished_writes();
    for (std::uintptr_t piece = first / kPiece; piece * kPiece < end; ++piece)
      unfinished_writes.insert(piece);
  } else if (end <= first_written || first > last_written) {
    return;
  }
  const Moment now = happens_before.now();
  for (std::uintptr_t piece = first / kPiece; piece * kPiece < end; ++piece) {
    const auto found = write ? last_writes.try_emplace(piece).first : last_writes.find(piece);
    if (found == last_writes.end()) continue;
    const std::uintptr_t from = std::max(first, piece * kPiece), to = std::min(end, (piece + 1) * kPiece);
    for (std::uintptr_t byte = from; byte < to; ++byte) {
      Moment& last = found->second[byte % kPiece];
      const bool written = last.block != 0;
      if (written && !happens_before.is_seen(last, now)) {
        processor.fail(std::string(write ? "writes" : "reads") +
                       " global memory that another block wrote, without a fence and an atomic there, and the"
                       " same atomic and a fence here");
      }
      if (write) last = now;
    }
  }
}

/// Fails if the bytes reach into the guard before or after an allocation.
void check_bounds(const void* address, std::size_t bytes, bool write) {
  const auto* const first = static_cast<const std::byte*>(address);
  const auto next = allocations.upper_bound(const_cast<void*>(address));
  if (next != allocations.begin()) {
    const auto& [memory, size] = *std::prev(next);
    const std::byte* const end = static_cast<const std::byte*>(memory) + size;
    if (first < end + kGuard && first + bytes > end) {
      processor.fail(std::string(write ? "writes" : "reads") + " beyond the end of an allocation of " +
                     std::to_string(size) + " bytes");
    }
  }
  if (next != allocations.end()) {
    const auto* const begin = static_cast<const std::byte*>(next->first);
    if (first + kGuard >= begin && first < begin)
      processor.fail(std::string(write ? "writes" : "reads") +
                     " memory before the beginning of an allocation");
  }
}

/// Tells counters.h, 16 bytes at a time: the most that one instruction moves.
void count(void* address, std::size_t bytes, bool write, bool is_shared, const void* instruction) {
  for (std::size_t done = 0; done < bytes; done += 16) {
    on_request(write ? Access::kStore : Access::kLoad, is_shared ? Memory::kShared : Memory::kGlobal,
               static_cast<std::byte*>(address) + done, std::min<std::size_t>(bytes - done, 16),
               static_cast<const std::byte*>(instruction) + done / 16);
  }
}

void on_access(void* address, std::size_t bytes, bool write, const void* instruction) {
  if (!checking && on_request == nullptr) return;
  const Thread* const thread = processor.thread();
  if (thread == nullptr || !processor.has_turn() || processor.is_on_stack(address)) return;
  static thread_local const Range range = shared_variables();
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const bool is_shared = range.begin <= first && first < range.end;
  if (on_request != nullptr && (is_shared || is_allocated(address)))
    count(address, bytes, write, is_shared, instruction);
  if (!checking) return;
  if (!is_shared) check_bounds(address, bytes, write);
  if (!thread->waited && is_allocated(address)) {
    processor.fail(std::string(write ? "writes" : "reads") +
                   " global memory without having waited for the kernel before");
  }
  if (!is_shared) {
    // Outside all allocations is the emulation's own data: no write is recorded there.
    if (!write || is_allocated(address)) on_access_to_global(first, bytes, write);
    return;
  }

  const Epochs& epochs = processor.epochs();
  if (shadow.empty()) shadow.resize(range.end - range.begin);
  const unsigned warp = thread->warp(), n_warps = (blockDim.x * blockDim.y * blockDim.z + kWarp - 1) / kWarp;
  const std::uint32_t lane = 1u << thread->lane(), warp_bit = 1u << warp;
  for (std::uintptr_t byte = first; byte < first + bytes; ++byte) {
    ByteAccesses& all = shadow[byte - range.begin];
    if (all.block != epochs.blocks) {
      all.block = epochs.blocks;
      all.barriers = 0xffffffffu;
      all.warps.assign(n_warps, {});
    }
    if (all.barriers != epochs.barriers) {
      all.barriers = epochs.barriers;
      all.warps_read = all.warps_written = 0;
    }
    WarpAccesses& own = all.warps[warp];
    if (own.barriers != epochs.barriers || own.syncs != epochs.warps[warp])
      own = {.barriers = epochs.barriers, .syncs = epochs.warps[warp]};
    const std::uint32_t lanes = own.lanes_written | (write ? own.lanes_read : 0);
    const std::uint32_t warps = all.warps_written | (write ? all.warps_read : 0);
    if ((lanes & ~lane) != 0 || (warps & ~warp_bit) != 0) {
      processor.fail(std::string(write ? "writes" : "reads") + " shared memory that another thread " +
                     (write ? "touched" : "wrote") + " with nothing since the last barrier that orders them");
    }
    (write ? all.warps_written : all.warps_read) |= warp_bit;
    (write ? own.lanes_written : own.lanes_read) |= lane;
  }
}

void note_copy(void* to, std::size_t bytes) {
  on_access(to, bytes, true, nullptr);
}

/// Forgets who wrote the bytes: every later reader has waited for them.
void note_arrival(const void* to, std::size_t bytes) {
  const Range range = shared_variables();
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(to) - range.begin;
  for (std::uintptr_t byte = first; byte < std::min<std::uintptr_t>(first + bytes, shadow.size()); ++byte)
    shadow[byte].block = 0;
}

void note_constant_read(const void* from, std::size_t bytes) {
  check_bounds(from, bytes, false);
  forget_finished_writes();
  const auto first = reinterpret_cast<std::uintptr_t>(from);
  for (std::uintptr_t piece = first / kPiece; piece * kPiece < first + bytes; ++piece) {
    if (unfinished_writes.contains(piece)) {
      processor.fail("reads by __ldg, or copies early, what a kernel has written since the host last waited");
    }
  }
}

}  // namespace

void check_races(bool on) {
  checking = on;
  on_fence = on ? note_fence : nullptr;
  on_atomic = on ? note_atomic : nullptr;
  on_copy = on ? note_copy : nullptr;
  on_arrival = on ? note_arrival : nullptr;
  on_constant_read = on ? note_constant_read : nullptr;
  global_kernel = 0;  // drops its records at the next access
  for (ByteAccesses& byte : shadow) byte.block = 0;
}

}  // namespace cuda_emulation

extern "C" {

void __tsan_init() {}
// The host's part of a kernel file counts references; nothing there is watched.
int __tsan_atomic32_fetch_add(volatile int* number, int value, int /*order*/) {
  return __atomic_fetch_add(number, value, __ATOMIC_SEQ_CST);
}
// The guard of a static variable of the host.
char __tsan_atomic8_load(const volatile char* guard, int /*order*/) {
  return __atomic_load_n(guard, __ATOMIC_SEQ_CST);
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

#define ACCESS(bytes)                                                              \
  void __tsan_read##bytes(void* address) {                                         \
    cuda_emulation::on_access(address, bytes, false, __builtin_return_address(0)); \
  }                                                                                \
  void __tsan_write##bytes(void* address) {                                        \
    cuda_emulation::on_access(address, bytes, true, __builtin_return_address(0));  \
  }                                                                                \
  void __tsan_unaligned_read##bytes(void* address) {                               \
    cuda_emulation::on_access(address, bytes, false, __builtin_return_address(0)); \
  }                                                                                \
  void __tsan_unaligned_write##bytes(void* address) {                              \
    cuda_emulation::on_access(address, bytes, true, __builtin_return_address(0));  \
  }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS

void __tsan_read_range(void* address, std::size_t bytes) {
  cuda_emulation::on_access(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
  cuda_emulation::on_access(address, bytes, true, __builtin_return_address(0));
}

// Clang's names for the functions that copy.
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  cuda_emulation::on_access(const_cast<void*>(from), bytes, false, __builtin_return_address(0));
  cuda_emulation::on_access(to, bytes, true, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  cuda_emulation::on_access(const_cast<void*>(from), bytes, false, __builtin_return_address(0));
  cuda_emulation::on_access(to, bytes, true, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  cuda_emulation::on_access(to, bytes, true, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

}  // extern "C"
