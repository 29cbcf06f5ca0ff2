// Stands in for the CUDA runtime where kernels/cuda is compiled for the CPU: the part of it in use there.
//
// A stream does its work as late as CUDA allows: when the host waits for it. Until then a copy has not read
// its source, so a source that the host frees or overwrites too early shows in the results. Work without a
// stream is done at once.
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/emulation.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

using std::max;
using std::min;
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
/// Each of the selector's four lower hexadecimal digits chooses a byte of the result: 0 to 3 are those of
/// `x`.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  return result;
}
/// `sum` plus the products of the four signed bytes of both.
inline int __dp4a(int x, int y, int sum) {
  for (int shift = 0; shift < 32; shift += 8)
    sum += static_cast<std::int8_t>(x >> shift) * static_cast<std::int8_t>(y >> shift);
  return sum;
}
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// ── Errors ──

constexpr int CUDART_VERSION = 13000;
#define __CUDA_ARCH_LIST__ 750, 800, 900

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorNotReady = 600,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901
};

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "invalid argument";
  }
}

namespace cuda_emulation {

inline cudaError_t last_error = cudaSuccess;

/// What a call returns that fails: cudaGetLastError says it again, to whatever asks next.
inline cudaError_t failed(cudaError_t status) {
  return last_error = status;
}

/// How often the host began to wait for a stream that never ends, which would hang the program.
inline int endless_waits = 0;

/// Counts a call of the runtime. A lost GPU stays lost.
inline bool gpu_is_lost() {
  if (settings.calls_until_lost <= 0) return settings.calls_until_lost == 0;
  --settings.calls_until_lost;
  return false;
}

inline cudaError_t status_of_call() {
  return gpu_is_lost() ? cudaErrorECCUncorrectable : cudaSuccess;
}

}  // namespace cuda_emulation

/// Returns the last error, and forgets it.
inline cudaError_t cudaGetLastError() {
  return std::exchange(cuda_emulation::last_error, cudaSuccess);
}

// ── Devices ──

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, l2CacheSize;
  std::size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
};

inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = cuda_emulation::settings.driver_version;
  return cudaSuccess;
}

namespace cuda_emulation {

/// Those of CUDA_VISIBLE_DEVICES, up to the first that does not exist.
inline int visible_devices() {
  const char* const list = settings.hides_devices ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  if (list == nullptr) return settings.devices;
  int count = 0;
  std::istringstream numbers(list);
  for (std::string number; std::getline(numbers, number, ','); ++count) {
    const int device = std::atoi(number.c_str());
    if (device < 0 || device >= settings.devices) break;
  }
  return count;
}

}  // namespace cuda_emulation

inline cudaError_t cudaGetDeviceCount(int* count) {
  if (cuda_emulation::settings.driver_version < CUDART_VERSION) return cudaErrorInsufficientDriver;
  *count = cuda_emulation::visible_devices();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

inline cudaError_t cudaSetDevice(int device) {
  return device < cuda_emulation::settings.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->major = cuda_emulation::settings.capability / 10;
  properties->minor = cuda_emulation::settings.capability % 10;
  properties->multiProcessorCount = cuda_emulation::settings.multiprocessors;
  properties->l2CacheSize = cuda_emulation::settings.l2_bytes;
  properties->totalGlobalMem = cuda_emulation::settings.memory;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = cuda_emulation::kLargestDynamicShared;
  return cudaSuccess;
}

// ── Graphs ──

/// Launches in their order, each with its own copies of the arguments.
struct CudaEmulationGraph {
  std::vector<std::function<void()>> launches;
};
using cudaGraph_t = CudaEmulationGraph*;
using cudaGraphExec_t = struct CudaEmulationExecutableGraph*;
struct CudaEmulationExecutableGraph {
  CudaEmulationGraph graph;
};

struct CudaEmulationStream {
  cudaGraph_t capturing = nullptr;  ///< where launches go instead of being done
  /// What nothing has waited for yet. It returns false while it waits for another rank.
  std::vector<std::function<bool()>> work;
};
using cudaStream_t = CudaEmulationStream*;

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };

namespace cuda_emulation {

inline int captures = 0;         ///< that have begun and not ended
inline bool broken = false;      ///< such a capture, by a call that it forbids
inline int graphs_launched = 0;  ///< since the program began
inline std::size_t bytes_to_host = 0;

inline std::vector<cudaStream_t> streams;  ///< all that exist

/// Puts `work` into the stream, or into the graph that the stream captures.
inline void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) {
    work();
  } else if (stream->capturing != nullptr) {
    stream->capturing->launches.push_back(std::move(work));
  } else {
    stream->work.push_back([work = std::move(work)] {
      work();
      return true;
    });
  }
}

/// Does the work of the stream, up to what waits for another rank, or until `enough`. Whether all is done. A
/// kernel's Fault drops the rest.
inline bool go_on(cudaStream_t stream, const std::function<bool()>& enough = {}) {
  if (stream == nullptr) return true;
  const auto all = std::exchange(stream->work, {});
  for (auto work = all.begin(); work != all.end(); ++work) {
    if (!(enough && enough()) && (*work)()) continue;
    stream->work.assign(work, all.end());
    return false;
  }
  return true;
}

/// Does the work of the stream. That takes for ever if another rank does not come.
inline void finish(cudaStream_t stream) {
  while (!go_on(stream)) std::this_thread::yield();
  ++waits;
}

/// Does the work of all streams. A Fault is thrown again when the host waits for that stream.
inline void finish_all() {
  for (const cudaStream_t stream : streams) {
    try {
      finish(stream);
    } catch (const Fault& fault) {
      stream->work.push_back([fault]() -> bool { throw fault; });
    }
  }
}

/// Allocations, copies and waiting are forbidden while a stream captures, and break the capture.
inline cudaError_t status_outside_of_graphs() {
  if (captures == 0) return status_of_call();
  broken = true;
  return failed(cudaErrorStreamCaptureUnsupported);
}

}  // namespace cuda_emulation

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  if (stream == nullptr || stream->capturing != nullptr) return cudaErrorInvalidValue;
  stream->capturing = new CudaEmulationGraph;
  ++cuda_emulation::captures;
  cuda_emulation::broken = false;
  return cudaSuccess;
}

inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cuda_emulation::status_of_call();
}

inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capturing, nullptr);
  --cuda_emulation::captures;
  const cudaError_t status = cuda_emulation::broken
                                 ? cuda_emulation::failed(cudaErrorStreamCaptureInvalidated)
                                 : cuda_emulation::status_of_call();
  if (status != cudaSuccess) delete std::exchange(*graph, nullptr);
  return status;
}

inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  if (!cuda_emulation::settings.has_memory_for_graphs)
    return cuda_emulation::failed(cudaErrorMemoryAllocation);
  *executable = new CudaEmulationExecutableGraph{*graph};
  return cudaSuccess;
}

inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  // The first launch of a graph may need more.
  if (!cuda_emulation::settings.has_memory_for_graphs)
    return cuda_emulation::failed(cudaErrorMemoryAllocation);
  ++cuda_emulation::graphs_launched;
  for (const auto& launch : executable->graph.launches) cuda_emulation::enqueue(stream, launch);
  return cudaSuccess;
}

inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cuda_emulation::status_of_call();
}

// ── Memory ──

namespace cuda_emulation {

/// The size of each allocation.
inline std::map<void*, std::size_t> allocations;

/// Bytes before and after each allocation, in which race_check.h finds accesses beyond its ends.
constexpr std::size_t kGuard = 256;

inline void free_with_guards(void* memory) {
  std::free(static_cast<std::byte*>(memory) - kGuard);
}

inline std::size_t free_memory() {
  std::size_t used = 0;
  for (const auto& [memory, bytes] : allocations) used += bytes;
  return settings.memory - std::min(used, settings.memory);
}

/// Whether the bytes are in one piece of memory of a device, or page-locked.
inline bool is_allocated(const void* address, std::size_t count = 1) {
  const auto next = allocations.upper_bound(const_cast<void*>(address));
  if (next == allocations.begin()) return false;
  const auto& [memory, bytes] = *std::prev(next);
  return static_cast<const std::byte*>(address) + count <= static_cast<const std::byte*>(memory) + bytes;
}

/// Whether the streams never become empty. Counts such a wait.
inline bool never_ends() {
  if (settings.unfinished >= 0) return false;
  ++endless_waits;
  return true;
}

}  // namespace cuda_emulation

inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (const cudaError_t status = cuda_emulation::status_outside_of_graphs(); status != cudaSuccess)
    return status;
  if (bytes > cuda_emulation::free_memory()) return cuda_emulation::failed(cudaErrorMemoryAllocation);
  if (bytes == 0) {
    *memory = nullptr;
    return cudaSuccess;
  }
  void* whole = nullptr;
  if (posix_memalign(&whole, 256, bytes + 2 * cuda_emulation::kGuard) != 0) return cudaErrorMemoryAllocation;
  std::memset(whole, 0xff, bytes + 2 * cuda_emulation::kGuard);
  *memory = static_cast<std::byte*>(whole) + cuda_emulation::kGuard;
  cuda_emulation::allocations[*memory] = bytes;
  return cudaSuccess;
}

/// Waits for all streams.
inline cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (cuda_emulation::never_ends()) return cudaErrorInvalidValue;
  cuda_emulation::finish_all();
  if (cuda_emulation::allocations.erase(memory) == 0) return cudaErrorInvalidValue;
  cuda_emulation::free_with_guards(memory);
  return cuda_emulation::status_outside_of_graphs();
}

/// The host's memory counts as the device's here, so a test sees leaks.
inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes);
}
inline cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}

inline cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = cuda_emulation::free_memory();
  *total = cuda_emulation::settings.memory;
  return cudaSuccess;
}

enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};

// ── Streams and events ──

struct CudaEmulationEvent {
  struct State {  // an event may be destroyed before the stream reaches it
    std::chrono::steady_clock::time_point time;
    bool reached = true;
  };
  std::shared_ptr<State> state;  // of its last record
  cudaStream_t stream = nullptr;
};
using cudaEvent_t = CudaEmulationEvent*;
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  *stream = new CudaEmulationStream;
  cuda_emulation::streams.push_back(*stream);
  return cudaSuccess;
}
/// It returns at once, and its work is still done.
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!cuda_emulation::go_on(stream)) return cuda_emulation::status_of_call();
  std::erase(cuda_emulation::streams, stream);
  delete stream;
  return cuda_emulation::status_of_call();
}
/// Each time it is asked, a positive `unfinished` goes down by one.
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (cuda_emulation::settings.unfinished != 0) {
    if (cuda_emulation::settings.unfinished > 0) --cuda_emulation::settings.unfinished;
    return cuda_emulation::failed(cudaErrorNotReady);
  }
  const cudaError_t status = cuda_emulation::status_outside_of_graphs();
  if (status != cudaSuccess) return status;
  if (!cuda_emulation::go_on(stream)) return cuda_emulation::failed(cudaErrorNotReady);
  ++cuda_emulation::waits;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t status = cuda_emulation::status_outside_of_graphs();
  if (status == cudaSuccess && !cuda_emulation::never_ends()) cuda_emulation::finish(stream);
  return status;
}
inline cudaError_t cudaDeviceSynchronize() {
  const cudaError_t status = cuda_emulation::status_of_call();
  if (status == cudaSuccess && !cuda_emulation::never_ends()) cuda_emulation::finish_all();
  return status;
}

/// To memory of the host that is not page-locked, it returns when it is done (CUDA Runtime API, "API
/// synchronization behavior").
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  if (const cudaError_t status = cuda_emulation::status_outside_of_graphs(); status != cudaSuccess)
    return status;
  if (kind == cudaMemcpyDeviceToHost) cuda_emulation::bytes_to_host += bytes;
  if (bytes > 0) cuda_emulation::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && !cuda_emulation::is_allocated(to) && !cuda_emulation::never_ends())
    cuda_emulation::finish(stream);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t status = cuda_emulation::status_outside_of_graphs(); status != cudaSuccess)
    return status;
  if (bytes > 0) cuda_emulation::enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CudaEmulationEvent;
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  return cudaEventCreate(event);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  *event = {std::make_shared<CudaEmulationEvent::State>(), stream};
  event->state->reached = false;
  cuda_emulation::enqueue(stream, [state = event->state] {
    *state = {std::chrono::steady_clock::now(), true};
  });
  return cudaSuccess;
}
/// Does the work up to the event, and no more.
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const cudaError_t status = cuda_emulation::status_outside_of_graphs();
  if (status != cudaSuccess || cuda_emulation::never_ends()) return status;
  while (!event->state->reached) {
    cuda_emulation::go_on(event->stream, [state = event->state] { return state->reached; });
  }
  ++cuda_emulation::waits;
  return cuda_emulation::status_of_call();
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->state->time - from->state->time).count();
  return cudaSuccess;
}

// ── Launches ──

enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative,
  cudaLaunchAttributeProgrammaticStreamSerialization
};

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int programmaticStreamSerializationAllowed;
    int cooperative;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

struct cudaFuncAttributes {
  int ptxVersion;
};

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

namespace cuda_emulation {

/// The dynamic shared memory that a kernel may request, if it was raised.
inline std::map<const void*, std::size_t> shared_limits;

inline int overlapping_launches = 0;  ///< since the program began

/// The most launches that are on their way at once, as on a GPU. Another one waits until the first are done.
inline constexpr std::size_t kMostLaunches = 1024;

inline void make_room(cudaStream_t stream) {
  if (stream == nullptr || stream->capturing != nullptr || stream->work.size() < kMostLaunches) return;
  while (!never_ends() && !go_on(stream)) std::this_thread::yield();
}

}  // namespace cuda_emulation

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int value) {
  if (value < 0 || static_cast<std::size_t>(value) > cuda_emulation::kLargestDynamicShared)
    return cudaErrorInvalidValue;
  cuda_emulation::shared_limits[reinterpret_cast<const void*>(kernel)] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture <= cuda_emulation::settings.capability * 10) attributes->ptxVersion = architecture / 10;
  }
  return attributes->ptxVersion == 0 ? cudaErrorNoKernelImageForDevice : cuda_emulation::status_of_call();
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  const auto found = cuda_emulation::shared_limits.find(reinterpret_cast<const void*>(kernel));
  const std::size_t shared_limit = found == cuda_emulation::shared_limits.end() ? 48 << 10 : found->second;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
      block.x == 0 || block.y == 0 || block.z == 0 || block.z > 64 ||
      std::size_t{block.x} * block.y * block.z > 1024) {
    return cuda_emulation::failed(cudaErrorInvalidConfiguration);
  }
  if (config->dynamicSmemBytes > shared_limit) return cuda_emulation::failed(cudaErrorInvalidValue);
  if (cuda_emulation::gpu_is_lost()) return cudaErrorECCUncorrectable;
  cuda_emulation::make_room(config->stream);
  bool overlaps = false, together = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) {
      together = attribute.val.cooperative != 0;
    } else {
      overlaps = overlaps || attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  const unsigned most = static_cast<unsigned>(cuda_emulation::settings.multiprocessors) *
                        (2048 / (block.x * block.y * block.z));
  if (together && grid.x * grid.y * grid.z > most)
    return cuda_emulation::failed(cudaErrorCooperativeLaunchTooLarge);
  if (overlaps) ++cuda_emulation::overlapping_launches;
  // A kernel gets its own copies of the arguments; each thread may change its own.
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  cuda_emulation::enqueue(config->stream, [kernel, values, grid, block, overlaps, together,
                                           shared_bytes = config->dynamicSmemBytes] {
    if (cuda_emulation::on_kernel != nullptr) {
      cuda_emulation::on_kernel(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes);
    }
    cuda_emulation::processor.run_grid(grid, block, shared_bytes, overlaps, together,
                                       [&] { std::apply(kernel, values); });
  });
  return cudaSuccess;
}
