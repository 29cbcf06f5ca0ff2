// Bulk copies to shared memory and the barriers that count their bytes, as the PTX ISA describes them
// (sections "cp.async.bulk" and "mbarrier"). They need compute capability 9.0. On an older GPU a copy has
// ended when copy_in_bulk returns, and the wait is a barrier of the block.
#pragma once

#include "kernels/cuda/tensor_cores.cuh"

#ifdef __CUDACC__
namespace staircase::cuda {

/// Prepares an mbarrier. A phase of it ends once `arrivals` threads have arrived and all bytes that they
/// announced have been copied; then the next phase begins. The phases have the parities 0, 1, 0 and so on.
__device__ __forceinline__ void mbarrier_init([[maybe_unused]] std::uint64_t* barrier,
                                              [[maybe_unused]] unsigned arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
#endif
}

/// Shows the barriers that the thread has prepared to copies; other threads see them after a barrier.
__device__ __forceinline__ void mbarriers_are_ready() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Arrives at the barrier, and announces copies of `bytes` bytes.
__device__ __forceinline__ void mbarrier_arrive_expecting([[maybe_unused]] std::uint64_t* barrier,
                                                          [[maybe_unused]] unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}

/// Starts a copy of `bytes` bytes to shared memory. The addresses and `bytes` must be multiples of 16.
__device__ __forceinline__ void copy_in_bulk(void* to, const void* from, unsigned bytes,
                                             [[maybe_unused]] std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  for (unsigned i = 0; i < bytes / 16; ++i) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
#endif
}

/// Waits until the phase with that parity has ended. All threads of the block call it together.
__device__ __forceinline__ void mbarrier_wait([[maybe_unused]] std::uint64_t* barrier,
                                              [[maybe_unused]] unsigned parity) {
#if __CUDA_ARCH__ >= 900
  unsigned has_ended = 0;
  while (has_ended == 0) {
    asm volatile(
        "{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(has_ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
#else
  __syncthreads();
#endif
}

}  // namespace staircase::cuda
#endif
