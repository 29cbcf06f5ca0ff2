// CUDA's execution model on the CPU. The threads of a block are fibers, which stop only where CUDA lets them
// wait for each other (__syncthreads, __syncwarp, shuffles and votes). Blocks run one after another. Those of
// a cooperative launch take turns: each runs until all its threads wait or sleep (__nanosleep). Errors that a
// GPU punishes, or that silently give wrong results, become a Fault with a sentence:
//
//   - a barrier that some threads of the block never reach, or that they reach at different places;
//   - a shuffle or vote whose mask lacks the calling lane, or names a lane that has left the kernel, does not
//     exist or never arrives; a shuffle that reads from a lane outside the mask;
//   - memory that an asynchronous copy fills, read before the copy was waited for: it holds NaN until then;
//   - a block that ends while a bulk copy is under way, and an mbarrier that is not initialized for all;
//   - in a kernel that may begin before the previous one ends, a thread that never waits for that;
//   - a thread that sleeps for ever, as one that waits for a block which cannot run;
//   - with race_check.h, two accesses to one byte of shared memory that nothing orders; an access to global
//     memory that another block wrote, without the fences and atomics that order the two, or to any before
//     such a kernel has waited; a read through the read-only cache (__ldg) of what may still be written.
//
// Other faults show in the results, or the sanitizers find them. Global memory is one heap block for each
// cudaMalloc, and dynamic shared memory ends after the requested bytes, so AddressSanitizer sees an access
// beyond. Static shared arrays are arrays: UndefinedBehaviorSanitizer checks their bounds, and the alignment
// of vector loads. Memory that was never written holds NaN.
//
// A test chooses the order in which threads and blocks run. Between two waiting points a thread runs alone.
// So an order of accesses in which two threads alternate there never happens, nor a write that others see
// late (race_check.h finds where one could).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/fiber.h"

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/// The one storage class of C++ that does what __shared__ does: inside a function it makes a variable static,
/// and it may follow `extern`. All emulated threads of a block are one thread of the host, so they share it.
#define __shared__ thread_local

namespace cuda_emulation {

constexpr std::size_t kLargestDynamicShared = 99 << 10;

}  // namespace cuda_emulation

/// Dynamic shared memory: kernels declare it outside of all namespaces under this name,
/// `extern __shared__ float4 dynamic_shared_memory[];`.
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline thread_local float4 dynamic_shared_memory[cuda_emulation::kLargestDynamicShared / sizeof(float4)];

namespace cuda_emulation {

/// What a kernel did wrong.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Order { kForward, kReverse, kRandom };

/// What a test may choose.
struct Settings {
  Order order = Order::kForward;  ///< in which blocks and the threads of a block run
  std::uint32_t seed = 1;         ///< of a random order
  int devices = 1;
  int multiprocessors = 13;
  bool hides_devices = false;                 ///< those that CUDA_VISIBLE_DEVICES does not name
  int driver_version = 13000;                 ///< as CUDA counts; 0: there is no driver
  int capability = 90;                        ///< compute capability, times ten
  std::size_t memory = std::size_t{8} << 30;  ///< of the device, in bytes
  int l2_bytes = 50 << 20;
  /// How many more calls of the runtime and of cuBLAS succeed before the GPU is lost; none fails by itself
  /// when negative.
  int calls_until_lost = -1;
  int unfinished = 0;  ///< how often a stream reports from now on that it is not empty yet; negative: always
  bool has_memory_for_graphs = true;
};
inline Settings settings;

constexpr unsigned kWarp = 32;

/// In the source, for messages.
struct Place {
  const char* file = "";
  int line = 0;
};

enum class WarpOperation { kShuffle, kVote, kSync, kGather };

/// An asynchronous copy to shared memory that a thread has begun.
struct Copy {
  void* to;
  uint4 bits;      ///< what it will write
  unsigned group;  ///< how many groups the thread had committed before
};

/// An mbarrier. A phase ends once all threads have arrived and all bytes that they announced are copied.
struct Mbarrier {
  unsigned arrivals = 0;    ///< how many arrivals a phase needs
  unsigned missing = 0;     ///< arrivals that the phase still lacks
  unsigned bytes = 0;       ///< bytes announced and not yet copied
  unsigned parity = 0;      ///< of the phase, 0 or 1
  unsigned thread = 0;      ///< the thread that initialized it
  std::uint32_t since = 0;  ///< the block's barriers before that
};

/// A bulk copy to shared memory that has begun.
struct BulkCopy {
  void* to;
  const void* from;
  unsigned bytes;
  const void* barrier;  ///< the mbarrier that counts its bytes
};

struct Thread {
  enum class State { kReady, kAtBarrier, kInWarpOperation, kSleeping, kExited };

  unsigned number = 0;  ///< in the block
  uint3 index{};
  State state = State::kReady;
  Place where;          ///< of the last waiting point
  bool waited = false;  ///< for the kernel before
  unsigned warp_operations = 0;
  unsigned naps = 0;  ///< how often it has slept
  // A warp operation, and what it gave this lane.
  WarpOperation operation{};
  unsigned mask = 0, source = 0;
  std::uint64_t value = 0, result = 0;
  std::array<std::uint64_t, 32> gathered{};  ///< the values of all lanes
  std::vector<Copy> copies;
  unsigned copy_groups = 0;  ///< committed

  unsigned lane() const { return number % kWarp; }
  unsigned warp() const { return number / kWarp; }
};

/// Lanes of a warp, a bit for each.
struct Warp {
  unsigned present = 0;  ///< in the block
  unsigned waiting = 0;  ///< in a warp operation
  unsigned exited = 0;
};

/// What orders accesses to memory, for race_check.h: how many barriers the block has passed, and how many
/// times each of its warps has synchronised.
struct Epochs {
  std::uint64_t kernels = 0;  ///< how many have begun
  std::uint64_t blocks = 0;   ///< of all kernels
  std::uint32_t barriers = 0;
  std::uint32_t warps[kWarp] = {};
};

inline std::string describe(Place where) {
  if (where.line == 0) return "the start";
  const std::string path = where.file;
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(where.line);
}

/// race_check.h and counters.h listen; null without them.
inline void (*on_fence)() = nullptr;
inline void (*on_atomic)(const void* flag) = nullptr;
inline void (*on_copy)(void* to, std::size_t bytes) = nullptr;
inline void (*on_arrival)(const void* to,
                          std::size_t bytes) = nullptr;  ///< called when a bulk copy has arrived
inline void (*on_constant_read)(const void* from, std::size_t bytes) = nullptr;
inline void (*on_barrier)() = nullptr;

/// What a thread asks of memory. kStream: a load past the L1 cache, of what nothing else reads. kPrefetch: to
/// the L2 cache alone.
enum class Access { kLoad, kStream, kStore, kPrefetch };
enum class Memory { kGlobal, kShared };

/// counters.h hears of each access. `instruction` is where it is in the program: the lanes of a warp that
/// execute it together make one request.
inline void (*on_request)(Access, Memory, const void* address, std::size_t bytes,
                          const void* instruction) = nullptr;
inline void (*on_kernel)(const void* kernel, dim3 grid, dim3 block,
                         std::size_t dynamic_shared_bytes) = nullptr;

/// What a thread sees that reads a number before it has waited for the kernel that may be writing it; null:
/// the number that is there.
inline int (*guess)(int number) = nullptr;

/// An instruction that reports itself to counters.h: while this lives, what it consists of is not counted.
class CountedAsOne {
 public:
  CountedAsOne() : listener_(std::exchange(on_request, nullptr)) {}
  CountedAsOne(const CountedAsOne&) = delete;
  ~CountedAsOne() { on_request = listener_; }

  void count(Access access, Memory memory, const void* address, std::size_t bytes,
             const void* instruction) const {
    if (listener_ != nullptr) listener_(access, memory, address, bytes, instruction);
  }

 private:
  decltype(on_request) listener_;
};

/// How often the host has waited for a stream until it was empty.
inline std::uint64_t waits = 0;

/// From one thread of the host to another, once. std::binary_semaphore has atomics that race_check.h lacks.
class Signal {
 public:
  void release() {
    const std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_one();
  }
  void acquire() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_set_; });
    is_set_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

/// What is left of a Processor when another block has its turn.
struct Block {
  uint3 index{};
  Epochs epochs;
  Fiber scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Thread> threads;
  Warp warps[kWarp] = {};
  std::map<const void*, Mbarrier> mbarriers;  ///< by their address
  std::vector<BulkCopy> bulk_copies;          ///< under way
};

/// Runs blocks, one at a time.
class Processor {
 public:
  /// The running thread, or null outside of kernels.
  const Thread* thread() const { return current_; }
  const Epochs& epochs() const { return own_->epochs; }

  /// Whether the address is on the stack of the running thread.
  bool is_on_stack(const void* address) const { return own_->fibers[current_->number]->holds(address); }

  /// `overlaps`: as if the kernel before were still running. `together`: all blocks at once.
  void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, bool overlaps, bool together,
                const std::function<void()>& kernel) {
    kernel_ = &kernel;
    overlaps_ = overlaps;
    gridDim = grid;
    blockDim = block;
    random_.seed(settings.seed);
    ++kernels_;
    std::vector<unsigned> blocks(std::size_t{grid.x} * grid.y * grid.z);
    arrange(blocks);
    if (together) {
      run_together(blocks, shared_bytes);
      return;
    }
    for (const unsigned b : blocks) {
      own_->index = index_of(b);
      run_block(shared_bytes);
    }
  }

  /// __nanosleep: the thread goes on when nothing else in its block can run.
  void sleep(Place where) {
    Thread& self = *current_;
    self.where = where;
    if (++self.naps > kMostNaps) fail(self, "sleeps for ever: what it waits for never comes");
    self.state = Thread::State::kSleeping;
    wait(self);
  }

  /// cudaGridDependencySynchronize
  void wait_for_previous_kernel() { current_->waited = true; }

  /// cp.async of 16 bytes. Until it is waited for, its data must not be used.
  void begin_copy(void* to, uint4 bits) {
    // A compiler may make a memset of what follows, which race_check.h does not see.
    if (on_copy != nullptr) on_copy(to, sizeof bits);
    *static_cast<uint4*>(to) = {~0u, ~0u, ~0u, ~0u};
    current_->copies.push_back({to, bits, current_->copy_groups});
  }

  /// mbarrier.init
  void init_mbarrier(const void* memory, unsigned arrivals) {
    own_->mbarriers[memory] = {arrivals, arrivals, 0, 0, current_->number, epochs().barriers};
  }

  /// mbarrier.arrive.expect_tx
  void arrive_expecting(const void* memory, unsigned bytes) {
    Mbarrier& barrier = mbarrier(memory);
    if (barrier.missing == 0) fail("arrives at an mbarrier more often than its phase has arrivals");
    --barrier.missing;
    barrier.bytes += bytes;
    end_phase(barrier);
  }

  /// cp.async.bulk. The bytes arrive when a thread waits for them and no other thread of the block can run:
  /// as late as they may on a GPU.
  void begin_bulk_copy(void* to, const void* from, unsigned bytes, const void* barrier) {
    mbarrier(barrier);
    if (on_copy != nullptr) on_copy(to, bytes);
    std::memset(to, 0xff, bytes);
    own_->bulk_copies.push_back({to, from, bytes, barrier});
  }

  /// mbarrier.try_wait.parity, until the phase with that parity has ended.
  void wait_for_mbarrier(const void* memory, unsigned parity, Place where) {
    while (mbarrier(memory).parity == parity) {
      sleep(where);
      if (mbarrier(memory).parity != parity) break;
      std::erase_if(own_->bulk_copies, [&](const BulkCopy& copy) {
        if (copy.barrier != memory) return false;
        std::memcpy(copy.to, copy.from, copy.bytes);
        if (on_arrival != nullptr) on_arrival(copy.to, copy.bytes);
        mbarrier(memory).bytes -= copy.bytes;
        return true;
      });
      end_phase(mbarrier(memory));
    }
  }

  /// cp.async.commit_group
  void commit_copies() { ++current_->copy_groups; }

  /// cp.async.wait_group: all but the `newest` groups that were committed last.
  void wait_for_copies(unsigned newest) {
    std::erase_if(current_->copies, [&](const Copy& copy) {
      const bool due = copy.group + newest < current_->copy_groups;
      if (due) *static_cast<uint4*>(copy.to) = copy.bits;
      return due;
    });
  }

  /// What each lane of the warp gives, for all of them.
  const std::array<std::uint64_t, 32>& gather(std::uint64_t value, Place where) {
    warp_operation(WarpOperation::kGather, 0xffffffffu, 0, value, where);
    return current_->gathered;
  }

  /// __syncthreads
  void barrier(Place where) {
    Thread& self = *current_;
    self.where = where;
    self.state = Thread::State::kAtBarrier;
    wait(self);
  }

  /// Shuffles, votes and __syncwarp: waits for all lanes of the mask, then returns to each what it is due.
  std::uint64_t warp_operation(WarpOperation operation, unsigned mask, unsigned source, std::uint64_t value,
                               Place where) {
    Thread& self = *current_;
    ++self.warp_operations;
    self.operation = operation;
    self.mask = mask;
    self.source = source;
    self.value = value;
    self.where = where;
    self.state = Thread::State::kInWarpOperation;
    Warp& warp = own_->warps[self.warp()];
    warp.waiting |= 1u << self.lane();
    if ((mask >> self.lane() & 1) == 0) fail(self, "calls with a mask that does not name its own lane");
    if (operation == WarpOperation::kShuffle && (mask >> source & 1) == 0) {
      fail(self, "reads from lane " + std::to_string(source) + ", which its mask does not name");
    }
    if ((mask & ~warp.present) != 0) {
      fail(self,
           "names lane " + std::to_string(std::countr_zero(mask & ~warp.present)) + ", which does not exist");
    }
    if ((mask & warp.exited) != 0) {
      fail(self, "names lane " + std::to_string(std::countr_zero(mask & warp.exited)) +
                     ", which has left the kernel");
    }
    if ((mask & ~warp.waiting) == 0 && finish_warp_operation(self)) return self.result;
    wait(self);
    return self.result;
  }

  /// Whether this thread of the host has the turn. In a cooperative launch the other threads only wait for
  /// it.
  bool has_turn() const {
    return resident_ == nullptr || resident_->thread.get_id() == std::this_thread::get_id();
  }

 private:
  static constexpr unsigned kMostNaps = 10'000;

  Mbarrier& mbarrier(const void* memory) {
    const auto found = own_->mbarriers.find(memory);
    if (found == own_->mbarriers.end()) fail("uses an mbarrier that no thread of the block has initialized");
    if (found->second.thread != current_->number && found->second.since == epochs().barriers)
      fail("uses an mbarrier that another thread initialized, with no barrier since then");
    return found->second;
  }

  static void end_phase(Mbarrier& barrier) {
    if (barrier.missing > 0 || barrier.bytes > 0) return;
    barrier.missing = barrier.arrivals;
    barrier.parity ^= 1;
  }

  static uint3 index_of(unsigned block) {
    return {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
  }

  /// A block of a cooperative launch. It has a thread of the host, because shared memory is thread_local;
  /// only one of them runs at a time, and hands the turn back.
  struct Resident {
    Block block;
    Signal may_run, has_run;
    bool has_ended = false;
    std::exception_ptr fault;
    std::thread thread;
  };

  /// Runs each block until all its threads wait, then the next, until all have ended or one has a fault.
  void run_together(const std::vector<unsigned>& blocks, std::size_t shared_bytes) {
    std::vector<std::unique_ptr<Resident>> residents;
    Block* const before = own_;
    for (const unsigned b : blocks) {
      Resident& one = *residents.emplace_back(std::make_unique<Resident>());
      one.block.index = index_of(b);
      one.thread = std::thread([this, &one, shared_bytes] {
        one.may_run.acquire();
        try {
          if (!is_abandoned_) run_block(shared_bytes);
        } catch (...) {
          one.fault = std::current_exception();
        }
        one.has_ended = true;
        one.has_run.release();
      });
    }
    std::exception_ptr fault;
    for (std::size_t left = residents.size(); left > 0;) {
      for (const auto& one : residents) {
        if (one->has_ended) continue;
        own_ = &one->block;
        resident_ = one.get();
        one->may_run.release();
        one->has_run.acquire();
        if (!one->has_ended) continue;
        --left;
        if (one->fault != nullptr && fault == nullptr) fault = one->fault;
        is_abandoned_ = is_abandoned_ || fault != nullptr;
      }
    }
    for (const auto& one : residents) one->thread.join();
    own_ = before;
    resident_ = nullptr;
    is_abandoned_ = false;
    if (fault != nullptr) std::rethrow_exception(fault);
  }

  /// Gives the other blocks of a cooperative launch a turn.
  void let_others_run() {
    Resident* const self = resident_;
    if (self == nullptr) return;
    self->has_run.release();
    self->may_run.acquire();
    if (is_abandoned_) abandon();
    blockIdx = own_->index;
  }

  void run_block(std::size_t shared_bytes) {
    auto& [index, epochs, scheduler, fibers, threads, warps, mbarriers, bulk_copies] = *own_;
    n_threads_ = blockDim.x * blockDim.y * blockDim.z;
    while (fibers.size() < n_threads_) add_fiber();
    epochs = {.kernels = kernels_, .blocks = ++blocks_};
    blockIdx = index;
    mbarriers.clear();
    bulk_copies.clear();
    prepare_shared_memory(shared_bytes);
    const dim3 block = blockDim;
    std::vector<unsigned> order(n_threads_);
    for (unsigned i = 0; i < n_threads_; ++i) {
      threads[i] = Thread();
      threads[i].number = i;
      threads[i].waited = !overlaps_;
      threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
    for (unsigned first = 0; first < n_threads_; first += kWarp) {
      const unsigned lanes = std::min(kWarp, n_threads_ - first);
      warps[first / kWarp] = {.present = lanes == kWarp ? 0xffffffffu : (1u << lanes) - 1};
    }
    arrange(order);
    for (unsigned left = n_threads_; left > 0;) {
      bool any_ran = false;
      for (const unsigned i : order) {
        if (threads[i].state != Thread::State::kReady) continue;
        any_ran = true;
        current_ = &threads[i];
        threadIdx = current_->index;
        Fiber::change(scheduler, *fibers[i]);
        current_ = nullptr;
        if (!fault_.empty()) abandon();
        if (threads[i].state == Thread::State::kExited) {
          warps[i / kWarp].exited |= 1u << i % kWarp;
          --left;
        }
      }
      if (!any_ran && !wake_sleepers()) release_barrier();
      if (settings.order == Order::kRandom) arrange(order);
    }
    if (!bulk_copies.empty()) {
      note(threads[0], "the block ends while a bulk copy is under way");
      abandon();
    }
  }

  /// Whether a thread of the block slept. All that did can run again after the other blocks have had a turn.
  bool wake_sleepers() {
    std::vector<Thread>& threads = own_->threads;
    const auto sleeps = [](const Thread& t) { return t.state == Thread::State::kSleeping; };
    if (std::none_of(threads.begin(), threads.begin() + n_threads_, sleeps)) return false;
    let_others_run();
    for (Thread& thread : threads) {
      if (sleeps(thread)) thread.state = Thread::State::kReady;
    }
    return true;
  }

  /// A fiber outlives its thread: it serves the thread of the same number in each block that comes.
  void add_fiber() {
    Block& block = *own_;
    const std::size_t i = block.fibers.size();
    block.fibers.push_back(std::make_unique<Fiber>([this, &block, i] {
      while (true) {
        (*kernel_)();
        Thread& self = block.threads[i];
        if (!self.waited) fail(self, "leaves without having waited for the kernel before");
        self.state = Thread::State::kExited;
        Fiber::change(*block.fibers[i], block.scheduler);
      }
    }));
    block.threads.resize(block.fibers.size());
  }

  void wait(Thread& self) { Fiber::change(*own_->fibers[self.number], own_->scheduler); }

  /// No thread can run: either the whole block waits at one barrier, or it hangs for ever.
  void release_barrier() {
    const auto first = own_->threads.begin(), last = first + n_threads_;
    const auto at_barrier = [](const Thread& t) { return t.state == Thread::State::kAtBarrier; };
    const auto waiting =
        std::find_if(first, last, [](const Thread& t) { return t.state != Thread::State::kExited; });
    const auto missing = std::find_if_not(first, last, at_barrier);
    if (!at_barrier(*waiting) || missing != last) {
      const Thread& stuck = *waiting;
      if (stuck.state == Thread::State::kInWarpOperation) note(stuck, "waits for lanes that never arrive");
      const auto barrier = std::find_if(first, last, at_barrier);
      if (fault_.empty()) {
        note(*barrier, "waits at a barrier that thread " + std::to_string(missing->number) +
                           " never reaches" +
                           (missing->state == Thread::State::kExited ? ": it has left the kernel" : ""));
      }
      abandon();
    }
    for (auto t = first; t != last; ++t) {
      if (t->where.line != first->where.line || std::strcmp(t->where.file, first->where.file) != 0) {
        note(*t, "waits at another barrier than thread 0, which is at " + describe(first->where));
        abandon();
      }
      t->state = Thread::State::kReady;
    }
    ++own_->epochs.barriers;
    if (on_barrier != nullptr) on_barrier();
  }

  /// All lanes of the mask wait. True if it is for the same thing: then each has its result and can run
  /// again.
  bool finish_warp_operation(const Thread& last) {
    Thread* const lanes = own_->threads.data() + last.warp() * kWarp;
    std::uint64_t votes = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((last.mask >> lane & 1) == 0) continue;
      if (lanes[lane].operation != last.operation || lanes[lane].mask != last.mask) return false;
    }
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((last.mask >> lane & 1) != 0 && lanes[lane].value != 0) votes |= std::uint64_t{1} << lane;
    }
    std::array<std::uint64_t, kWarp> gathered{};
    if (last.operation == WarpOperation::kGather) {
      for (unsigned lane = 0; lane < kWarp; ++lane) gathered[lane] = lanes[lane].value;
    }
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((last.mask >> lane & 1) == 0) continue;
      lanes[lane].result = last.operation == WarpOperation::kVote ? votes : lanes[lanes[lane].source].value;
      if (last.operation == WarpOperation::kGather) lanes[lane].gathered = gathered;
      lanes[lane].state = Thread::State::kReady;
    }
    own_->warps[last.warp()].waiting &= ~last.mask;
    if (last.operation == WarpOperation::kSync) ++own_->epochs.warps[last.warp()];
    return true;
  }

  static void prepare_shared_memory(std::size_t bytes) {
    auto* const memory = reinterpret_cast<unsigned char*>(dynamic_shared_memory);
#ifdef CUDA_EMULATION_ASAN
    __asan_unpoison_memory_region(memory, bytes);
    __asan_poison_memory_region(memory + bytes, sizeof dynamic_shared_memory - bytes);
#endif
    std::memset(memory, 0xff, bytes);
  }

  void arrange(std::vector<unsigned>& order) {
    std::iota(order.begin(), order.end(), 0u);
    if (settings.order == Order::kReverse) std::reverse(order.begin(), order.end());
    if (settings.order == Order::kRandom) std::shuffle(order.begin(), order.end(), random_);
  }

  void note(const Thread& thread, std::string what) {
    fault_ = "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
             std::to_string(blockIdx.z) + "), thread " + std::to_string(thread.number) + ", " + "at " +
             describe(thread.where) + ": " + what;
  }

 public:
  /// Ends the kernel with a Fault, from within a thread. The thread's stack is never unwound, so nothing that
  /// owns memory may stay on it.
  void fail(Thread& self, std::string what) {
    note(self, std::move(what));
    wait(self);
  }
  void fail(std::string what) {
    fail(*current_, std::move(what));
  }

 private:
  /// The threads stay where they are: there is nothing in device code that would have to be undone.
  [[noreturn]] void abandon() {
    own_->fibers.clear();
    throw Fault(std::exchange(fault_, ""));
  }

  const std::function<void()>* kernel_ = nullptr;
  bool overlaps_ = false;
  std::uint64_t kernels_ = 0, blocks_ = 0;  ///< that have begun
  Block alone_;                             ///< the blocks of other than cooperative launches
  Block* own_ = &alone_;                    ///< the block that runs
  Resident* resident_ = nullptr;            ///< the same in a cooperative launch
  bool is_abandoned_ = false;               ///< a cooperative launch that has a fault
  unsigned n_threads_ = 0;
  Thread* current_ = nullptr;
  std::string fault_;
  std::mt19937 random_;
};
inline Processor processor;

template <typename T>
T shuffle(unsigned mask, T value, unsigned source, Place where) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = processor.warp_operation(WarpOperation::kShuffle, mask, source, bits, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned vote(unsigned mask, bool predicate, Place where) {
  return static_cast<unsigned>(
      processor.warp_operation(WarpOperation::kVote, mask, 0, predicate ? 1 : 0, where));
}

inline unsigned lane() {
  return processor.thread()->lane();
}

}  // namespace cuda_emulation

// ── Device functions, as the CUDA C++ Programming Guide describes them ──

inline void cudaGridDependencySynchronize() {
  cuda_emulation::processor.wait_for_previous_kernel();
}

/// Blocks run one after another, so it is never too early.
inline void cudaTriggerProgrammaticLaunchCompletion() {}

inline void __syncthreads(cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  cuda_emulation::processor.barrier(where);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  cuda_emulation::processor.warp_operation(cuda_emulation::WarpOperation::kSync, mask, 0, 0, where);
}

/// Waits for others: in the emulation until nothing else in the block can run.
inline void __nanosleep(unsigned, cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  cuda_emulation::processor.sleep(where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  return cuda_emulation::vote(mask, predicate != 0, where);
}

inline int __popc(unsigned bits) {
  return std::popcount(bits);
}

inline int __any_sync(unsigned mask, int predicate,
                      cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  return cuda_emulation::vote(mask, predicate != 0, where) != 0;
}

inline int __all_sync(unsigned mask, int predicate,
                      cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  return cuda_emulation::vote(mask, predicate != 0, where) == mask;
}

// Shuffles work in segments of `width` lanes; if the source would be outside, a lane gets its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  const unsigned size = static_cast<unsigned>(width), first = cuda_emulation::lane() / size * size;
  return cuda_emulation::shuffle(mask, value, first + static_cast<unsigned>(source) % size, where);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  const unsigned lane = cuda_emulation::lane(), place = lane % static_cast<unsigned>(width);
  return cuda_emulation::shuffle(mask, value, place >= delta ? lane - delta : lane, where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  const unsigned lane = cuda_emulation::lane(), size = static_cast<unsigned>(width);
  return cuda_emulation::shuffle(mask, value, lane % size + delta < size ? lane + delta : lane, where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize,
                  cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  const unsigned lane = cuda_emulation::lane(), size = static_cast<unsigned>(width);
  const unsigned source = lane ^ static_cast<unsigned>(lanes);
  return cuda_emulation::shuffle(mask, value, source < (lane / size + 1) * size ? source : lane, where);
}

// Between two waiting points a thread runs alone, so plain arithmetic is atomic. Race checking hears of it as
// an event, not as accesses.
template <typename T>
__attribute__((no_sanitize("thread"))) T atomicAdd(T* address, T value) {
  if (cuda_emulation::on_atomic != nullptr) cuda_emulation::on_atomic(address);
  const T before = *address;
  *address = before + value;
  return before;
}

/// The next number, or 0 after `last`.
__attribute__((no_sanitize("thread"))) inline unsigned atomicInc(unsigned* address, unsigned last) {
  if (cuda_emulation::on_atomic != nullptr) cuda_emulation::on_atomic(address);
  const unsigned before = *address;
  *address = before >= last ? 0 : before + 1;
  return before;
}

/// For memory that no kernel writes while this one runs.
template <typename T>
__attribute__((noinline, no_sanitize("thread"))) T __ldg(const T* from) {
  if (cuda_emulation::on_constant_read != nullptr) cuda_emulation::on_constant_read(from, sizeof(T));
  if (cuda_emulation::on_request != nullptr) {
    cuda_emulation::on_request(cuda_emulation::Access::kLoad, cuda_emulation::Memory::kGlobal, from,
                               sizeof(T), __builtin_return_address(0));
  }
  return *from;
}

/// All threads see all earlier writes, with or without it; race checking needs it.
inline void __threadfence() {
  if (cuda_emulation::on_fence != nullptr) cuda_emulation::on_fence();
}
