// The race check: compiled with -fsanitize=thread, see race_check.h.
#include "tests/cuda_emulation/race_check.h"

#include <ptx_instructions.h>

#include <cstring>
#include <initializer_list>
#include <vector>

#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/kernels.h"

extern __shared__ float4 dynamic_shared_memory[];

namespace {

std::string race_of(void (*kernel)(int*), unsigned threads, std::size_t shared_bytes = 0) {
  std::vector<int> memory(1024);
  cuda_emulation::check_races(true);
  const std::string fault = fault_of(kernel, 2, threads, shared_bytes, memory.data());
  cuda_emulation::check_races(false);
  return fault;
}

template <bool kBarrier>
__global__ void exchange_in_block(int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = 1;
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = shared[63 - threadIdx.x];
}

TEST_CASE("a read of another thread's write needs a barrier") {
  in_every_order([] {
    CHECK(race_of(exchange_in_block<true>, 64) == "");
    CHECK(contains(race_of(exchange_in_block<false>, 64), "shared memory that another thread"));
  });
}

template <bool kBarrier>
__global__ void write_after_read(int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = shared[(threadIdx.x + 1) % 64];
  if (kBarrier) __syncthreads();
  shared[threadIdx.x] = 2;
}

TEST_CASE("a write over another thread's read needs a barrier") {
  in_every_order([] {
    CHECK(race_of(write_after_read<true>, 64) == "");
    CHECK(contains(race_of(write_after_read<false>, 64), "shared memory that another thread"));
  });
}

template <bool kSync>
__global__ void exchange_in_warp(int* out) {
  int* const shared = reinterpret_cast<int*>(dynamic_shared_memory);
  shared[threadIdx.x] = 1;
  if (kSync) __syncwarp();
  out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

TEST_CASE("inside a warp __syncwarp is enough, and dynamic shared memory is watched as well") {
  in_every_order([] {
    CHECK(race_of(exchange_in_warp<true>, 64, 256) == "");
    CHECK(contains(race_of(exchange_in_warp<false>, 64, 256), "shared memory that another thread"));
  });
}

template <bool kBarrier>
__global__ void copy_over_what_is_read(int* memory) {
  int* const shared = reinterpret_cast<int*>(dynamic_shared_memory);
  shared[threadIdx.x] = 1;
  __syncthreads();
  memory[threadIdx.x] = shared[threadIdx.x ^ 32];
  if (kBarrier) __syncthreads();
  if (threadIdx.x % 4 == 0) cp_async_16(shared + threadIdx.x, memory + 64 + threadIdx.x);
  cp_async_commit_group();
  __syncthreads();
  cp_async_wait_group<0>();
}

TEST_CASE("an asynchronous copy over another thread's read needs a barrier before it begins") {
  in_every_order([] {
    CHECK(race_of(copy_over_what_is_read<true>, 64, 256) == "");
    CHECK(contains(race_of(copy_over_what_is_read<false>, 64, 256), "shared memory that another thread"));
  });
}

__global__ void sync_the_wrong_warp(int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = 1;
  __syncwarp();
  out[threadIdx.x] = shared[threadIdx.x ^ 32];
}

TEST_CASE("between warps __syncwarp is not enough") {
  in_every_order(
      [] { CHECK(contains(race_of(sync_the_wrong_warp, 64), "shared memory that another thread")); });
}

__global__ void neighbouring_bytes(int* out) {
  __shared__ char shared[64];
  shared[threadIdx.x] = 1;
  out[threadIdx.x] = shared[threadIdx.x];
}

TEST_CASE("neighbouring bytes are no race, nor is the same byte in the next block") {
  in_every_order([] { CHECK(race_of(neighbouring_bytes, 64) == ""); });
}

template <bool kEarly>
__global__ void read_what_another_kernel_wrote(const int* in, int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = kEarly ? in[threadIdx.x] : 1;
  cudaGridDependencySynchronize();
  out[threadIdx.x] = shared[threadIdx.x] + in[threadIdx.x];
}

__global__ void write_what_another_kernel_reads(const int* in, int* out) {
  out[threadIdx.x] = 1;
  cudaGridDependencySynchronize();
  out[threadIdx.x] = in[threadIdx.x];
}

TEST_CASE("if kernels overlap, global memory is out of bounds before a thread has waited") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 1024) == cudaSuccess);
  int* const in = static_cast<int*>(memory);
  const auto fault = [&](void (*kernel)(const int*, int*)) {
    cuda_emulation::check_races(true);
    const std::string text = overlapping_fault_of(kernel, 64, in, in + 64);
    cuda_emulation::check_races(false);
    return text;
  };
  in_every_order([&] {
    CHECK(fault(read_what_another_kernel_wrote<false>) == "");
    CHECK(contains(fault(read_what_another_kernel_wrote<true>), "reads global memory without having waited"));
    CHECK(contains(fault(write_what_another_kernel_reads), "writes global memory without having waited"));
  });
  CHECK(cudaFree(memory) == cudaSuccess);
}

__global__ void access_outside(const int* in, int* out, int read, int written) {
  cudaGridDependencySynchronize();
  const int value = read >= 0 && read % 2 == 1 ? __ldg(in + read) : in[read];
  out[written] = value;
}

TEST_CASE("accesses beyond the ends of an allocation are found") {
  void *in = nullptr, *out = nullptr;
  REQUIRE(cudaMalloc(&in, 40) == cudaSuccess);
  REQUIRE(cudaMalloc(&out, 40) == cudaSuccess);
  std::memset(in, 0, 40);  // the host sees that memory here
  const auto fault = [&](int read, int written) {
    cuda_emulation::check_races(true);
    const std::string text =
        fault_of(access_outside, 1, 1, 0, static_cast<const int*>(in), static_cast<int*>(out), read, written);
    cuda_emulation::check_races(false);
    return text;
  };
  CHECK(fault(0, 0) == "");
  CHECK(fault(8, 9) == "");
  CHECK(fault(9, 0) == "");
  CHECK(contains(fault(10, 0), "reads beyond the end of an allocation of 40 bytes"));
  CHECK(contains(fault(11, 0), "reads beyond the end of an allocation of 40 bytes"));
  CHECK(contains(fault(0, 10), "writes beyond the end of an allocation of 40 bytes"));
  CHECK(contains(fault(0, 73), "writes beyond the end of an allocation of 40 bytes"));
  CHECK(contains(fault(-1, 0), "reads memory before the beginning of an allocation"));
  CHECK(contains(fault(0, -64), "writes memory before the beginning of an allocation"));
  CHECK(cudaFree(in) == cudaSuccess);
  CHECK(cudaFree(out) == cudaSuccess);
}

__global__ void write_one(int* out) {
  cudaGridDependencySynchronize();
  out[threadIdx.x] = 1;
}

__global__ void read_constants(int* memory) {
  const int constant = __ldg(memory + threadIdx.x);
  cudaGridDependencySynchronize();
  memory[256 + threadIdx.x] = constant;
}

TEST_CASE(
    "a read through the read-only cache needs no wait, unless a kernel wrote there since the host waited") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 2048) == cudaSuccess);
  int* const numbers = static_cast<int*>(memory);
  in_every_order([&] {
    cuda_emulation::check_races(true);
    CHECK(overlapping_fault_of(write_one, 64, numbers) == "");
    CHECK(overlapping_fault_of(write_one, 64, numbers + 64) == "");
    CHECK(contains(overlapping_fault_of(read_constants, 64, numbers),
                   "what a kernel has written since the host last waited"));
    CHECK(contains(overlapping_fault_of(read_constants, 4, numbers + 124), "reads by __ldg"));
    CHECK(overlapping_fault_of(read_constants, 64, numbers + 128) == "");
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(overlapping_fault_of(read_constants, 64, numbers) == "");
    cuda_emulation::check_races(false);
  });
  CHECK(cudaFree(memory) == cudaSuccess);
}

template <bool kEarly>
__global__ void copy_constants(int* memory) {
  int* const shared = reinterpret_cast<int*>(dynamic_shared_memory);
  if (!kEarly) cudaGridDependencySynchronize();
  cp_async_16(shared + threadIdx.x * 4, memory + threadIdx.x * 4);
  cp_async_commit_group();
  if (kEarly) cudaGridDependencySynchronize();
  cp_async_wait_group<0>();
  memory[256 + threadIdx.x] = shared[threadIdx.x * 4];
}

TEST_CASE("an asynchronous copy may begin before the wait, unless a kernel wrote its source") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 2048) == cudaSuccess);
  int* const numbers = static_cast<int*>(memory);
  cudaLaunchAttribute overlap{cudaLaunchAttributeProgrammaticStreamSerialization, {1}};
  cudaLaunchConfig_t config;
  config.blockDim = dim3(8);
  config.dynamicSmemBytes = 128;
  config.attrs = &overlap;
  config.numAttrs = 1;
  in_every_order([&] {
    cuda_emulation::check_races(true);
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(fault_of(config, copy_constants<true>, numbers) == "");
    CHECK(overlapping_fault_of(write_one, 64, numbers) == "");
    CHECK(contains(fault_of(config, copy_constants<true>, numbers), "copies early"));
    CHECK(fault_of(config, copy_constants<false>, numbers) == "");
    cuda_emulation::check_races(false);
  });
  CHECK(cudaFree(memory) == cudaSuccess);
}

enum class Slip {
  kNone,
  kInit,
  kBarrierAfterInit,
  kWait,
  kLastWait,
  kUse,
  kBarrierBeforeCopy,
  kArrivals,
  kSource
};

/// Two turns of 64 numbers through one slot of shared memory.
template <Slip kSlip>
__global__ void copy_through_a_slot(int* memory) {
  int* const slot = reinterpret_cast<int*>(dynamic_shared_memory);
  __shared__ std::uint64_t arrived;
  const auto request = [&](int turn) {
    mbarrier_arrive_expecting(&arrived, 256);
    if (kSlip == Slip::kArrivals) mbarrier_arrive_expecting(&arrived, 256);
    copy_in_bulk(slot, memory + turn * 64 + (kSlip == Slip::kSource ? 1 : 0), 256, &arrived);
  };
  if (threadIdx.x == 0) {
    if (kSlip != Slip::kInit) mbarrier_init(&arrived, 1);
    mbarriers_are_ready();
    request(0);
  }
  if (kSlip != Slip::kBarrierAfterInit) __syncthreads();
  for (int turn = 0; turn < 2; ++turn) {
    const bool waits = kSlip != Slip::kWait && (kSlip != Slip::kLastWait || turn == 0);
    if (kSlip == Slip::kUse && turn == 1) return;
    if (waits) mbarrier_wait(&arrived, static_cast<unsigned>(turn));
    memory[128 + turn * 64 + static_cast<int>(threadIdx.x)] = slot[threadIdx.x];
    if (turn == 1) return;
    if (kSlip != Slip::kBarrierBeforeCopy) __syncthreads();
    if (threadIdx.x == 0) request(1);
  }
}

TEST_CASE("a bulk copy is there when its mbarrier has been waited for, and what it needs is checked") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 1024) == cudaSuccess);
  int* const numbers = static_cast<int*>(memory);
  for (int i = 0; i < 128; ++i) numbers[i] = i;
  const auto fault = [&](void (*kernel)(int*)) {
    cuda_emulation::check_races(true);
    const std::string text = fault_of(kernel, 1, 64, 256, numbers);
    cuda_emulation::check_races(false);
    return text;
  };
  in_every_order([&] {
    std::memset(numbers + 128, 0, 512);
    CHECK(fault(copy_through_a_slot<Slip::kNone>) == "");
    CHECK(std::memcmp(numbers, numbers + 128, 512) == 0);
    CHECK(contains(fault(copy_through_a_slot<Slip::kInit>), "an mbarrier that no thread of the block has"));
    CHECK(contains(fault(copy_through_a_slot<Slip::kBarrierAfterInit>), "mbarrier"));
    CHECK(contains(fault(copy_through_a_slot<Slip::kWait>), "arrives at an mbarrier more often"));
    CHECK(contains(fault(copy_through_a_slot<Slip::kLastWait>), "shared memory that another thread"));
    CHECK(contains(fault(copy_through_a_slot<Slip::kUse>), "ends while a bulk copy is under way"));
    CHECK(
        contains(fault(copy_through_a_slot<Slip::kBarrierBeforeCopy>), "shared memory that another thread"));
    CHECK(contains(fault(copy_through_a_slot<Slip::kArrivals>), "arrives at an mbarrier more often"));
    CHECK(contains(fault(copy_through_a_slot<Slip::kSource>), "no multiple of 16 bytes"));
  });
  CHECK(cudaFree(memory) == cudaSuccess);
}

__global__ void same_place(int* out) {
  __shared__ int shared[2];
  shared[threadIdx.x / 64] = 1;
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x / 64];
}

TEST_CASE("two writes of the same value are a race too") {
  in_every_order(
      [] { CHECK(contains(race_of(same_place, 64), "shared memory that another thread touched")); });
}

// ── Global memory, between blocks ──

/// Faults of kernels of three blocks with 64 threads, one after another, in the same global memory. Both
/// `data` and `flags` begin as 0.
std::string race_of_blocks(std::initializer_list<void (*)(int* data, unsigned* flags)> kernels) {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 4096) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 0, 4096, nullptr) == cudaSuccess);
  cuda_emulation::check_races(true);
  std::string faults;
  for (const auto kernel : kernels)
    faults += fault_of(kernel, 3, 64, 0, static_cast<int*>(memory), static_cast<unsigned*>(memory) + 512);
  cuda_emulation::check_races(false);
  CHECK(cudaFree(memory) == cudaSuccess);
  return faults;
}

/// The same of a cooperative launch.
std::string race_of_blocks_at_once(void (*kernel)(int* data, unsigned* flags)) {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 4096) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 0, 4096, nullptr) == cudaSuccess);
  cudaLaunchAttribute together{cudaLaunchAttributeCooperative, {1}};
  cudaLaunchConfig_t config;
  config.gridDim = dim3(3);
  config.blockDim = dim3(64);
  config.attrs = &together;
  config.numAttrs = 1;
  cuda_emulation::check_races(true);
  const std::string fault =
      fault_of(config, kernel, static_cast<int*>(memory), static_cast<unsigned*>(memory) + 512);
  cuda_emulation::check_races(false);
  CHECK(cudaFree(memory) == cudaSuccess);
  return fault;
}

const std::string kWrittenElsewhere = "global memory that another block wrote";

enum class Missing { kNothing, kBarrierBefore, kFenceBefore, kFenceAfter, kBarrierAfter };

template <Missing kMissing>
__global__ void add_up_in_the_last_block(int* data, unsigned* flags) {
  __shared__ bool last;
  data[blockIdx.x * 64 + threadIdx.x] = 1;
  if (kMissing != Missing::kBarrierBefore) __syncthreads();
  if (threadIdx.x == 0) {
    if (kMissing != Missing::kFenceBefore) __threadfence();
    last = atomicInc(flags, 2) == 2;
    if (kMissing != Missing::kFenceAfter) __threadfence();
  }
  // A vote lets the warp of thread 0 go on with what that found, but orders no memory.
  bool go_on = __any_sync(0xffffffffu, threadIdx.x == 0 && last) != 0;
  if (kMissing != Missing::kBarrierAfter) {
    __syncthreads();
    go_on = last;
  }
  if (!go_on) return;
  int sum = 0;
  for (unsigned block = 0; block < 3; ++block) sum += data[block * 64 + (threadIdx.x + 1) % 64];
  data[192 + threadIdx.x] = sum;
}

TEST_CASE("the last block may read what all wrote, if fences and barriers surround an atomic") {
  in_every_order([] {
    CHECK(race_of_blocks({add_up_in_the_last_block<Missing::kNothing>}) == "");
    for (const auto kernel :
         {add_up_in_the_last_block<Missing::kBarrierBefore>, add_up_in_the_last_block<Missing::kFenceBefore>,
          add_up_in_the_last_block<Missing::kFenceAfter>, add_up_in_the_last_block<Missing::kBarrierAfter>}) {
      CHECK(contains(race_of_blocks({kernel}), "reads " + kWrittenElsewhere));
    }
  });
}

template <bool kFenceFirst>
__global__ void tell_of_one_write(int* data, unsigned* flags) {
  if (threadIdx.x != 5) return;
  if (kFenceFirst) __threadfence();
  data[blockIdx.x] = 1;
  if (!kFenceFirst) __threadfence();
  const bool last = atomicInc(flags, 2) == 2;
  __threadfence();
  if (last) data[8] = data[0] + data[1] + data[2];
}

TEST_CASE("within one thread no barrier is needed, and a fence orders only what it did before") {
  in_every_order([] {
    CHECK(race_of_blocks({tell_of_one_write<false>}) == "");
    CHECK(contains(race_of_blocks({tell_of_one_write<true>}), kWrittenElsewhere));
  });
}

__global__ void count_in_flags_of_their_own(int* data, unsigned* flags) {
  if (threadIdx.x != 0) return;
  data[blockIdx.x] = 1;
  __threadfence();
  atomicInc(flags + blockIdx.x, 2);
  __threadfence();
  data[8 + blockIdx.x] = data[0] + data[1] + data[2];
}

TEST_CASE("an atomic informs only those that reach the same flag later") {
  in_every_order([] { CHECK(contains(race_of_blocks({count_in_flags_of_their_own}), kWrittenElsewhere)); });
}

__global__ void write_one_place(int* data, unsigned*) {
  if (threadIdx.x == 0) data[0] = 1;
}

__global__ void write_neighbouring_bytes(int* data, unsigned*) {
  reinterpret_cast<char*>(data)[threadIdx.x * 3 + blockIdx.x] = 1;
}

__global__ void read_all(int* data, unsigned*) {
  data[256 + blockIdx.x * 64 + threadIdx.x] = data[threadIdx.x];
}

TEST_CASE("blocks may not write to one place, but to neighbouring bytes, and the next kernel sees all") {
  in_every_order([] {
    CHECK(contains(race_of_blocks({write_one_place}), "writes " + kWrittenElsewhere));
    CHECK(race_of_blocks({write_neighbouring_bytes, read_all, write_neighbouring_bytes}) == "");
  });
}

template <bool kFenceBefore, bool kFenceAfter>
__global__ void read_the_neighbour(int* data, unsigned* flags) {
  data[blockIdx.x * 64 + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (kFenceBefore) __threadfence();
    atomicAdd(flags, 1u);
    while (atomicAdd(flags, 0u) < gridDim.x) __nanosleep(20);
    if (kFenceAfter) __threadfence();
  }
  __syncthreads();
  data[256 + blockIdx.x * 64 + threadIdx.x] = data[(blockIdx.x + 1) % gridDim.x * 64 + threadIdx.x];
}

TEST_CASE("blocks that run at once see each other's writes after a barrier with fences") {
  in_every_order([] {
    CHECK(race_of_blocks_at_once(read_the_neighbour<true, true>) == "");
    CHECK(contains(race_of_blocks_at_once(read_the_neighbour<false, true>), kWrittenElsewhere));
    CHECK(contains(race_of_blocks_at_once(read_the_neighbour<true, false>), kWrittenElsewhere));
  });
}

template <bool kBarrier>
__global__ void exchange_between_turns(int* data, unsigned*) {
  __shared__ int shared[64];
  if (kBarrier) __syncthreads();
  shared[threadIdx.x] = static_cast<int>(blockIdx.x);
  __nanosleep(20);
  if (kBarrier) __syncthreads();
  data[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x ^ 32];
}

TEST_CASE("a race in shared memory is found in blocks that run at once") {
  in_every_order([] {
    CHECK(race_of_blocks_at_once(exchange_between_turns<true>) == "");
    CHECK(
        contains(race_of_blocks_at_once(exchange_between_turns<false>), "shared memory that another thread"));
  });
}

// ── Counters ──

__global__ void read_apart(const float* from, int distance, float* to) {
  const float early = __ldg(from);
  cudaGridDependencySynchronize();
  to[threadIdx.x] = from[static_cast<int>(threadIdx.x) * distance] + early;
}

/// The counters of one launch with 32 threads, which may begin before the kernel before has ended.
template <typename... Parameters, typename... Arguments>
cuda_emulation::CountedLaunch counted(void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute overlap{cudaLaunchAttributeProgrammaticStreamSerialization, {1}};
  cudaLaunchConfig_t config;
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = 32 * 33 * sizeof(float);
  config.attrs = &overlap;
  config.numAttrs = 1;
  cuda_emulation::Counters counters;
  CHECK(fault_of(config, kernel, arguments...) == "");
  return counters.launches().at(0);
}

TEST_CASE("counters know the sectors of a request, and what comes before the wait") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 32 * 33 * sizeof(float)) == cudaSuccess);
  auto* const from = static_cast<float*>(memory);
  std::fill_n(from, 32 * 33, 1.0f);
  in_every_order([&] {
    for (const auto& [distance, sectors] : {std::pair{1, 4u}, {2, 8u}, {8, 32u}, {32, 32u}}) {
      const auto c = counted(read_apart, from, distance, from + 32 * 32);
      CHECK(c.blocks == 1);
      CHECK(c.loads.requests == 2);
      CHECK(c.loads.bytes == 2 * 128);
      CHECK(c.loads.early_bytes == 128);
      CHECK(c.loads.sectors == 1 + sectors);
      CHECK(c.loads.least_sectors == 1 + 4);
      CHECK(c.stores.sectors == 4);
      CHECK(c.shared_requests == 0);
    }
  });
  CHECK(cudaFree(memory) == cudaSuccess);
}

template <typename T>
__global__ void write_apart(unsigned distance) {
  reinterpret_cast<T*>(dynamic_shared_memory)[threadIdx.x * distance] = T{};
  __syncthreads();
  cudaGridDependencySynchronize();
}

TEST_CASE("counters know how often a bank of shared memory makes lanes wait") {
  in_every_order([] {
    CHECK(counted(write_apart<int>, 1).conflicts == 0);
    CHECK(counted(write_apart<int>, 2).conflicts == 1);
    CHECK(counted(write_apart<int>, 32).conflicts == 31);
    CHECK(counted(write_apart<int>, 33).conflicts == 0);
    // All lanes want one word.
    CHECK(counted(write_apart<int>, 0).conflicts == 0);
    // 16 bytes go to eight lanes at a time, 8 bytes to 16.
    CHECK(counted(write_apart<float4>, 1).conflicts == 0);
    CHECK(counted(write_apart<float4>, 2).conflicts == 4);
    CHECK(counted(write_apart<float2>, 2).conflicts == 2);
    CHECK(counted(write_apart<float4>, 1).shared_requests == 1);
    CHECK(counted(write_apart<float4>, 1).barriers == 1);
  });
}

}  // namespace
