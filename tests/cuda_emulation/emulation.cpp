// The emulation itself: what CUDA promises works, and each fault that it is there for is caught.
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "tests/cuda_emulation/kernels.h"

extern __shared__ float4 dynamic_shared_memory[];

namespace {

using cuda_emulation::settings;

constexpr unsigned kAll = 0xffffffffu;

// ── What works ──

__global__ void reverse_in_shared(const int* in, int* out) {
  __shared__ int shared[256];
  shared[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST_CASE("a barrier shows every thread the writes of all others") {
  in_every_order([] {
    std::vector<int> in(3 * 256), out(3 * 256), want;
    for (int i = 0; i < 3 * 256; ++i) in[static_cast<std::size_t>(i)] = i;
    CHECK(fault_of(reverse_in_shared, 3, 256, 0, in.data(), out.data()) == "");
    for (int b = 0; b < 3; ++b) {
      for (int i = 255; i >= 0; --i) want.push_back(b * 256 + i);
    }
    CHECK(out == want);
  });
}

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int* const to = out + threadIdx.x * 8;
  to[0] = __shfl_sync(kAll, lane, 5);
  to[1] = __shfl_sync(kAll, lane, 3, 8);
  to[2] = __shfl_up_sync(kAll, lane, 2);
  to[3] = __shfl_down_sync(kAll, lane, 4);
  to[4] = __shfl_xor_sync(kAll, lane, 16);
  to[5] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
  to[6] = __any_sync(kAll, lane == 31);
  to[7] = __all_sync(kAll, lane != 31);
}

TEST_CASE("shuffles and votes follow the programming guide") {
  in_every_order([] {
    std::vector<int> out(64 * 8);
    CHECK(fault_of(shuffles, 1, 64, 0, out.data()) == "");
    for (int t = 0; t < 64; ++t) {
      const int lane = t % 32;
      const std::vector<int> got(out.begin() + t * 8, out.begin() + t * 8 + 8);
      CHECK(got == std::vector<int>{5, lane / 8 * 8 + 3, lane < 2 ? lane : lane - 2,
                                    lane + 4 < 32 ? lane + 4 : lane, lane ^ 16, 0x49249249, 1, 0});
    }
  });
}

__global__ void halves(int* out) {
  const unsigned lane = threadIdx.x, mask = lane < 16 ? 0xffffu : 0xffff0000u;
  int sum = static_cast<int>(lane);
  // The halves of a warp go their own ways, with different numbers of steps.
  for (int distance = lane < 16 ? 8 : 4; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(mask, sum, distance);
  out[lane] = sum;
}

TEST_CASE("parts of a warp may shuffle on their own") {
  in_every_order([] {
    std::vector<int> out(32);
    CHECK(fault_of(halves, 1, 32, 0, out.data()) == "");
    CHECK(out[3] == 120);
    CHECK(out[20] == 16 + 17 + 18 + 19 + 20 + 21 + 22 + 23);
  });
}

__global__ void count(int* total) {
  atomicAdd(total, 1);
}

TEST_CASE("every thread of every block runs once") {
  int total = 0;
  CHECK(fault_of(count, 7, 33, 0, &total) == "");
  CHECK(total == 7 * 33);
}

// ── Barriers ──

__global__ void barrier_for_some(int last) {
  if (static_cast<int>(threadIdx.x) < last) __syncthreads();
}

TEST_CASE("a barrier that some threads never reach is a fault") {
  in_every_order([] {
    const std::string fault = fault_of(barrier_for_some, 2, 64, 0, 40);
    CHECK(contains(fault, "waits at a barrier that thread "));
    CHECK(contains(fault, "never reaches: it has left the kernel"));
    CHECK(contains(fault, "emulation.cpp:"));
  });
  CHECK(fault_of(barrier_for_some, 2, 64, 0, 64) == "");
}

__global__ void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_CASE("threads of a block at different barriers are a fault") {
  in_every_order(
      [] { CHECK(contains(fault_of(two_barriers, 1, 64, 0), "waits at another barrier than thread 0")); });
}

__global__ void forgotten_barrier(const int* in, int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = shared[threadIdx.x ^ 32];
}

TEST_CASE("a forgotten barrier gives wrong results in one order or another") {
  std::vector<int> in(64), want(64);
  for (int i = 0; i < 64; ++i) {
    in[static_cast<std::size_t>(i)] = 100 + i;
    want[static_cast<std::size_t>(i)] = 100 + (i ^ 32);
  }
  int wrong = 0;
  in_every_order([&] {
    std::vector<int> out(64);
    for (int& i : in) ++i;
    for (int& i : want) ++i;
    CHECK(fault_of(forgotten_barrier, 1, 64, 0, in.data(), out.data()) == "");
    if (out != want) ++wrong;
  });
  CHECK(wrong > 0);
}

// ── Warps ──

__global__ void shuffle_with(unsigned mask, int first_to_leave, int* out) {
  if (static_cast<int>(threadIdx.x) >= first_to_leave) return;
  out[threadIdx.x] = __shfl_sync(mask, static_cast<int>(threadIdx.x), 0);
}

TEST_CASE("a mask that names a lane that has left is a fault") {
  in_every_order([] {
    std::vector<int> out(32);
    const std::string fault = fault_of(shuffle_with, 1, 32, 0, kAll, 31, out.data());
    CHECK((contains(fault, "names lane 31, which has left the kernel") ||
           contains(fault, "waits for lanes that never arrive")));
    CHECK(fault_of(shuffle_with, 1, 32, 0, 0x7fffffffu, 31, out.data()) == "");
  });
}

TEST_CASE("a mask that names a lane beyond the block is a fault") {
  std::vector<int> out(48);
  CHECK(contains(fault_of(shuffle_with, 1, 48, 0, kAll, 48, out.data()),
                 "names lane 16, which does not exist"));
}

TEST_CASE("a mask without the calling lane is a fault") {
  std::vector<int> out(32);
  CHECK(contains(fault_of(shuffle_with, 1, 32, 0, 0xfu, 32, out.data()), "does not name its own lane"));
}

__global__ void shuffle_from_outside(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

TEST_CASE("a shuffle from a lane outside the mask is a fault") {
  std::vector<int> out(32);
  CHECK(contains(fault_of(shuffle_from_outside, 1, 32, 0, out.data()),
                 "reads from lane 20, which its mask does not name"));
}

__global__ void absent_lane() {
  if (threadIdx.x == 7) {
    __syncthreads();
  } else {
    __any_sync(kAll, 1);
    __syncthreads();
  }
}

TEST_CASE("a vote that waits for a lane at a barrier is a fault") {
  in_every_order(
      [] { CHECK(contains(fault_of(absent_lane, 1, 32, 0), "waits for lanes that never arrive")); });
}

TEST_CASE("after a fault the next kernel runs normally") {
  CHECK(fault_of(absent_lane, 1, 32, 0) != "");
  int total = 0;
  CHECK(fault_of(count, 3, 64, 0, &total) == "");
  CHECK(total == 3 * 64);
}

// ── Blocks of a cooperative launch ──

__device__ void wait_for_all_blocks(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned turn = atomicAdd(arrived, 1u) / gridDim.x;
    while (atomicAdd(arrived, 0u) / gridDim.x == turn) __nanosleep(20);
  }
  __syncthreads();
}

/// Each block adds what its neighbour on the left had, and what it keeps in shared memory.
__global__ void pass_around(int* data, unsigned* arrived) {
  __shared__ int own;
  const unsigned left = (blockIdx.x + gridDim.x - 1) % gridDim.x;
  if (threadIdx.x == 0) own = static_cast<int>(blockIdx.x);
  __syncthreads();
  for (int turn = 0; turn < 3; ++turn) {
    const int sum = data[left] + own;
    wait_for_all_blocks(arrived);
    if (threadIdx.x == 5) data[blockIdx.x] = sum;
    wait_for_all_blocks(arrived);
  }
}

__global__ void leave_the_others(unsigned* arrived, unsigned most) {
  if (blockIdx.x < most) wait_for_all_blocks(arrived);
}

std::string cooperative_fault_of(unsigned blocks, void (*kernel)(int*, unsigned*), int* data,
                                 unsigned* arrived) {
  cudaLaunchAttribute together{cudaLaunchAttributeCooperative, {1}};
  cudaLaunchConfig_t config;
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(64);
  config.attrs = &together;
  config.numAttrs = 1;
  return fault_of(config, kernel, data, arrived);
}

TEST_CASE("blocks of a cooperative launch wait for each other, each with its own shared memory") {
  in_every_order([] {
    std::vector<int> data(7), want(7);
    unsigned arrived = 0;
    for (int turn = 0; turn < 3; ++turn) {
      const std::vector<int> before = want;
      for (std::size_t b = 0; b < 7; ++b) want[b] = before[(b + 6) % 7] + static_cast<int>(b);
    }
    CHECK(cooperative_fault_of(7, pass_around, data.data(), &arrived) == "");
    CHECK(data == want);
    CHECK(arrived == 6 * 7);
  });
}

TEST_CASE("a block that waits for another one is a fault in an ordinary launch") {
  in_every_order([] {
    std::vector<int> data(2);
    unsigned arrived = 0;
    CHECK(contains(fault_of(pass_around, 2, 64, 0, data.data(), &arrived), "sleeps for ever"));
    CHECK(fault_of(pass_around, 1, 64, 0, data.data(), &(arrived = 0)) == "");
  });
}

TEST_CASE("a block that waits for one that has left is a fault, and the next kernel runs normally") {
  in_every_order([] {
    unsigned arrived = 0;
    cudaLaunchAttribute together{cudaLaunchAttributeCooperative, {1}};
    cudaLaunchConfig_t config;
    config.gridDim = dim3(3);
    config.attrs = &together;
    config.numAttrs = 1;
    CHECK(contains(fault_of(config, leave_the_others, &arrived, 2u), "sleeps for ever"));
    CHECK(fault_of(config, leave_the_others, &(arrived = 0), 3u) == "");
    int total = 0;
    CHECK(fault_of(count, 3, 64, 0, &total) == "");
    CHECK(total == 3 * 64);
  });
}

TEST_CASE("a cooperative launch of more blocks than fit is refused") {
  std::vector<int> data(500);
  unsigned arrived = 0;
  const unsigned most = 13 * 2048 / 64;
  CHECK(cooperative_fault_of(most + 1, pass_around, data.data(), &arrived) == "the launch was refused");
  CHECK(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
}

// ── One kernel after another ──

__global__ void wait_for_the_previous(unsigned threads_that_wait) {
  cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x < threads_that_wait) cudaGridDependencySynchronize();
}

TEST_CASE("if kernels overlap, a thread that leaves without having waited is a fault") {
  in_every_order([] {
    CHECK(overlapping_fault_of(wait_for_the_previous, 64, 64) == "");
    CHECK(contains(overlapping_fault_of(wait_for_the_previous, 64, 63),
                   "thread 63, at the start: leaves without having waited for the kernel before"));
    CHECK(fault_of(wait_for_the_previous, 1, 64, 0, 0) == "");
  });
}

// ── Launches and memory ──

TEST_CASE("a launch beyond the limits of a GPU is refused") {
  cudaLaunchConfig_t config;
  int total = 0;
  config.blockDim = dim3(1025);
  CHECK(cudaLaunchKernelEx(&config, count, &total) == cudaErrorInvalidConfiguration);
  config.blockDim = dim3(32);
  config.gridDim = dim3(1, 65536);
  CHECK(cudaLaunchKernelEx(&config, count, &total) == cudaErrorInvalidConfiguration);
  config.gridDim = dim3(0);
  CHECK(cudaLaunchKernelEx(&config, count, &total) == cudaErrorInvalidConfiguration);
  config.gridDim = dim3(1);
  config.dynamicSmemBytes = (48 << 10) + 1;
  CHECK(cudaLaunchKernelEx(&config, count, &total) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(count, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10) == cudaSuccess);
  CHECK(cudaLaunchKernelEx(&config, count, &total) == cudaSuccess);
  CHECK(total == 32);
}

TEST_CASE("a stream takes a thousand launches, and what waits for another rank holds up the rest") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  int total = 0;
  bool has_come = false;
  cudaLaunchConfig_t config;
  config.stream = stream;
  for (int i = 0; i < 1024; ++i) cudaLaunchKernelEx(&config, count, &total);
  CHECK(total == 0);
  cudaLaunchKernelEx(&config, count, &total);
  CHECK(total == 1024);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(total == 1025);
  stream->work.push_back([&] { return has_come; });
  cudaLaunchKernelEx(&config, count, &total);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  CHECK(total == 1025);
  has_come = true;
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  CHECK(total == 1026);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("CUDA_VISIBLE_DEVICES names devices up to one that does not exist") {
  const cuda_emulation::Settings before = settings;
  settings.devices = 4;
  settings.hides_devices = true;
  const auto visible = [](const char* list) {
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
    int count = 0;
    cudaGetDeviceCount(&count);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return count;
  };
  CHECK(visible("") == 0);
  CHECK(visible("-1") == 0);
  CHECK(visible("3") == 1);
  CHECK(visible("0,2,4,1") == 2);
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 4);
  settings = before;
}

TEST_CASE("device memory is limited") {
  settings.memory = 1000;
  void *first = nullptr, *second = nullptr;
  CHECK(cudaMalloc(&first, 600) == cudaSuccess);
  CHECK(cudaMalloc(&second, 600) == cudaErrorMemoryAllocation);
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK(cudaMalloc(&second, 600) == cudaSuccess);
  CHECK(cudaFree(second) == cudaSuccess);
  settings.memory = std::size_t{8} << 30;
}

#ifdef CUDA_EMULATION_ASAN

__global__ void write_dynamic(std::size_t index) {
  reinterpret_cast<float*>(dynamic_shared_memory)[index] = 1.0f;
}

__global__ void write_global(float* memory, std::size_t index) {
  memory[index] = 1.0f;
}

/// Whether a copy of this process that runs the kernel ends with an error.
template <typename Launch>
bool ends_with_an_error(const Launch& launch) {
  const pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    launch();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0;
}

TEST_CASE("an access beyond dynamic shared memory ends the program under AddressSanitizer") {
  const auto write = [](std::size_t index) {
    return ends_with_an_error([=] { fault_of(write_dynamic, 1, 1, 40, index); });
  };
  CHECK(!write(9));
  CHECK(write(10));
  CHECK(write(100));
}

TEST_CASE("an access beyond global memory ends the program under AddressSanitizer") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 40) == cudaSuccess);
  const auto write = [&](std::size_t index) {
    return ends_with_an_error([=] { fault_of(write_global, 1, 1, 0, static_cast<float*>(memory), index); });
  };
  CHECK(!write(9));
  CHECK(write(10));
  CHECK(cudaFree(memory) == cudaSuccess);
}

#endif

}  // namespace
