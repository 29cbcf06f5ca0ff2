// Instructions for which CUDA C++ has no function: products on tensor cores, asynchronous copies to shared
// memory, and a fast power of 2. All need compute capability 8.0. Each function is named after its
// instruction in the PTX ISA.
//
// A tensor core multiplies matrices that are spread over the registers of a warp. With group = lane / 4 and
// pair = lane % 4 · 2, a lane holds two neighbours of
//
//   a [16, 16]: a[0] is (group, pair), a[1] (group + 8, pair), a[2] (group, pair + 8), a[3] both + 8;
//   b [16, 8]:  b0 is (pair, group) and (pair + 1, group), b1 the same 8 rows further down;
//   d [16, 8]:  d[0] and d[1] are (group, pair) and its neighbour, d[2] and d[3] those 8 rows further down.
//
// So two neighbouring d, rounded to 16 bits, form an a: the result of one product feeds the next without a
// detour through memory.
#pragma once

#include "kernels/cuda/device_functions.cuh"

namespace staircase::cuda {

#ifdef __CUDACC__

/// d += a b. All lanes of the warp must call this together. T is __half or __nv_bfloat16, two in each
/// register.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

/// Converts an address to the form that shared-memory instructions need.
__device__ __forceinline__ unsigned shared_address(const void* memory) {
  return static_cast<unsigned>(__cvta_generic_to_shared(memory));
}

/// Loads four 8×8 matrices of 16-bit elements from shared memory. All lanes of the warp must call this
/// together. Lane 8 m + r passes the address of row r of matrix m, 16 aligned bytes. A lane gets two
/// neighbours of row `group` of each matrix or, if transposed, of column `group`. Transposing turns a
/// row-major matrix into a `b`.
template <bool kTransposed>
__device__ __forceinline__ void ldmatrix_x4(unsigned (&to)[4], const void* row) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
#endif
}

/// Starts copying 16 aligned bytes to shared memory.
__device__ __forceinline__ void cp_async_16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#endif
}

/// Makes a group of the copies that the thread has started since the last call.
__device__ __forceinline__ void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits for all of the thread's groups except the newest kNewest. Other threads see the data after the next
/// barrier.
template <unsigned kNewest>
__device__ __forceinline__ void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
#endif
}

/// 2^x, with an error of about 2 units in the last place; below 2^-126 it is 0.
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float power = 0.0f;
#if __CUDA_ARCH__ >= 800
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
#endif
  return power;
}

#endif

/// Rounds two numbers and packs them into a register, as matrices need them.
template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  const Vector<T, 2> both{narrow<T>(low), narrow<T>(high)};
  unsigned bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

}  // namespace staircase::cuda
