// Stands in for the instructions that CUDA C++ has no functions for and kernels/cuda/tensor_cores.cuh writes
// in PTX, as the PTX ISA describes them. All lanes of a warp execute them together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <type_traits>

#include "tests/cuda_emulation/emulation.h"

namespace cuda_emulation {

inline std::uint64_t pair(unsigned low, unsigned high) {
  return std::uint64_t{high} << 32 | low;
}

template <typename T>
float element(std::uint64_t registers, unsigned i) {
  const auto bits = static_cast<std::uint16_t>(registers >> 16 * i);
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float({bits});
  } else {
    return __bfloat162float({bits});
  }
}

}  // namespace cuda_emulation

/// mma.sync.aligned.m16n8k16.row.col: d += a b with a [16, 16] and b [16, 8] of T and d [16, 8] in float32.
/// The matrices are spread over the registers of a warp as in the figures of section "Matrix Fragments for
/// mma.m16n8k16".
template <typename T>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                  cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  using cuda_emulation::element, cuda_emulation::pair;
  // Of each lane: the elements of its a in the columns below 8 and above, and those of its b.
  const auto left = cuda_emulation::processor.gather(pair(a[0], a[1]), where);
  const auto right = cuda_emulation::processor.gather(pair(a[2], a[3]), where);
  const auto b = cuda_emulation::processor.gather(pair(b0, b1), where);
  const unsigned group = cuda_emulation::lane() / 4, place = cuda_emulation::lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned below = i / 2 * 2;  // the rows from 8 on are in the upper half of a pair
    const unsigned column = place * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned owner = k % 8 / 2;  // among the four lanes that share a row of a or a column of b
      const float x = element<T>((k < 8 ? left : right)[group * 4 + owner], below + k % 2);
      const float y = element<T>(b[column * 4 + owner], k / 8 * 2 + k % 2);
      d[i] += x * y;
    }
  }
}

/// ldmatrix.sync.aligned.m8n8.x4.shared.b16: four 8x8 matrices of 16-bit elements. Lane 8 m + r names row r
/// of matrix m, 16 bytes, and gets of each matrix two neighbours of row lane / 4, or of column lane / 4 with
/// .trans.
template <bool kTransposed>
__attribute__((noinline)) void ldmatrix_x4(unsigned (&to)[4], const void* row,
                                           cuda_emulation::Place where = {__builtin_FILE(),
                                                                          __builtin_LINE()}) {
  const auto rows = cuda_emulation::processor.gather(reinterpret_cast<std::uintptr_t>(row), where);
  const cuda_emulation::CountedAsOne as_one;
  as_one.count(cuda_emulation::Access::kLoad, cuda_emulation::Memory::kShared, row, 16,
               __builtin_return_address(0));
  const unsigned group = cuda_emulation::lane() / 4, place = cuda_emulation::lane() % 4 * 2;
  for (unsigned m = 0; m < 4; ++m) {
    unsigned bits[2];
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned r = kTransposed ? place + i : group, column = kTransposed ? group : place + i;
      bits[i] = reinterpret_cast<const std::uint16_t*>(rows[m * 8 + r])[column];
    }
    to[m] = bits[1] << 16 | bits[0];
  }
}

inline float ex2_approx_ftz(float x) {
  return x < -126.0f ? 0.0f : std::exp2(x);
}

/// ld.global.nc.L1::no_allocate.v4.u32
__attribute__((noinline, no_sanitize("thread"))) inline void ld_global_nc_no_allocate(unsigned (&to)[4],
                                                                                      const void* from) {
  if (cuda_emulation::on_constant_read != nullptr) cuda_emulation::on_constant_read(from, sizeof to);
  if (cuda_emulation::on_request != nullptr) {
    cuda_emulation::on_request(cuda_emulation::Access::kStream, cuda_emulation::Memory::kGlobal, from,
                               sizeof to, __builtin_return_address(0));
  }
  std::memcpy(to, from, sizeof to);
}

/// cp.async.bulk.prefetch.L2.global. It must name memory of the device: an address beyond is an error there.
__attribute__((noinline)) inline void prefetch_in_bulk(const void* from, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0 || bytes % 16 != 0)
    cuda_emulation::processor.fail("prefetches in bulk what is no multiple of 16 bytes");
  if (!cuda_emulation::is_allocated(from, bytes))
    cuda_emulation::processor.fail("prefetches in bulk what is not in one piece of the device's memory");
  if (cuda_emulation::on_request != nullptr) {
    cuda_emulation::on_request(cuda_emulation::Access::kPrefetch, cuda_emulation::Memory::kGlobal, from,
                               bytes, __builtin_return_address(0));
  }
}

/// ld.relaxed.gpu.global.s32
__attribute__((noinline, no_sanitize("thread"))) inline int load_guess(const std::int32_t* from) {
  if (cuda_emulation::on_request != nullptr) {
    cuda_emulation::on_request(cuda_emulation::Access::kLoad, cuda_emulation::Memory::kGlobal, from,
                               sizeof *from, __builtin_return_address(0));
  }
  return cuda_emulation::guess == nullptr ? *from : cuda_emulation::guess(*from);
}

namespace cuda_emulation {

/// Reads what no kernel writes, as __ldg does, without counting it.
__attribute__((noinline, no_sanitize("thread"))) inline uint4 constant(const void* from) {
  if (on_constant_read != nullptr) on_constant_read(from, sizeof(uint4));
  return *static_cast<const uint4*>(from);
}

}  // namespace cuda_emulation

/// cp.async.cg.shared.global of 16 bytes; before the wait for the kernel before, of what no kernel writes.
__attribute__((noinline)) inline void cp_async_16(void* to, const void* from) {
  const cuda_emulation::CountedAsOne as_one;
  const void* const here = __builtin_return_address(0);
  as_one.count(cuda_emulation::Access::kStream, cuda_emulation::Memory::kGlobal, from, sizeof(uint4), here);
  as_one.count(cuda_emulation::Access::kStore, cuda_emulation::Memory::kShared, to, sizeof(uint4), here);
  cuda_emulation::processor.begin_copy(to, cuda_emulation::processor.thread()->waited
                                               ? *static_cast<const uint4*>(from)
                                               : cuda_emulation::constant(from));
}

inline void cp_async_commit_group() {
  cuda_emulation::processor.commit_copies();
}

template <unsigned kNewest>
void cp_async_wait_group() {
  const cuda_emulation::CountedAsOne counted_already;
  cuda_emulation::processor.wait_for_copies(kNewest);
}

// ── Bulk copies ──
//
// An mbarrier is 8 bytes of shared memory. For the check of races, a copy is a write by the thread that
// requests it, until a thread has waited for its bytes.

/// mbarrier.init.shared.b64
inline void mbarrier_init(std::uint64_t* barrier, unsigned arrivals) {
  cuda_emulation::processor.init_mbarrier(barrier, arrivals);
}

/// fence.proxy.async: copies see the barriers that the thread has initialized.
inline void mbarriers_are_ready() {}

/// mbarrier.arrive.expect_tx.shared.b64
inline void mbarrier_arrive_expecting(std::uint64_t* barrier, unsigned bytes) {
  cuda_emulation::processor.arrive_expecting(barrier, bytes);
}

/// cp.async.bulk.shared.global.mbarrier::complete_tx::bytes; before the wait for the kernel before, of what
/// no kernel writes.
__attribute__((noinline)) inline void copy_in_bulk(void* to, const void* from, unsigned bytes,
                                                   std::uint64_t* barrier) {
  using cuda_emulation::processor;
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes) % 16 != 0)
    processor.fail("copies in bulk what is no multiple of 16 bytes");
  if (!cuda_emulation::is_allocated(from, bytes))
    processor.fail("copies in bulk what is not in one piece of the device's memory");
  if (!processor.thread()->waited && cuda_emulation::on_constant_read != nullptr)
    cuda_emulation::on_constant_read(from, bytes);
  const cuda_emulation::CountedAsOne as_one;
  as_one.count(cuda_emulation::Access::kStream, cuda_emulation::Memory::kGlobal, from, bytes,
               __builtin_return_address(0));
  processor.begin_bulk_copy(to, from, bytes, barrier);
}

/// mbarrier.try_wait.parity.shared.b64, until the phase with that parity has ended.
inline void mbarrier_wait(std::uint64_t* barrier, unsigned parity,
                          cuda_emulation::Place where = {__builtin_FILE(), __builtin_LINE()}) {
  cuda_emulation::processor.wait_for_mbarrier(barrier, parity, where);
}
