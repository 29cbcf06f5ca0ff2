// The race check: compiled with -fsanitize=thread, see race_check.h.
#include "tests/cuda_emulation/race_check.h"

#include <ptx_instructions.h>

#include <vector>

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

TEST_CASE("a read of what another thread wrote needs a barrier") {
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

TEST_CASE("a write over what another thread reads needs a barrier") {
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

TEST_CASE("an asynchronous copy over what another thread reads needs a barrier before it begins") {
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

TEST_CASE("where kernels overlap, global memory is out of bounds before a thread has waited") {
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

}  // namespace
