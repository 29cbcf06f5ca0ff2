// What AMX code needs besides the compiler's intrinsics (_tile_loadd and so on). Only on x86-64. Tests
// replace this file with an emulation.
#pragma once

#include <cpuid.h>
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/bfloat16_target.h"
#include "kernels/platform.h"

#define STAIRCASE_AMX_TARGET __attribute__((target("avx512bw,amx-tile,amx-bf16,amx-int8" STAIRCASE_EVEX512)))

namespace staircase {

/// Whether this processor has AMX registers and multiplies bfloat16 and bytes in them, and the system allows
/// their use. So far every processor with these registers multiplies both.
inline bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25,
                     kAll = kBFloat16 | kTiles | kInt8;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll &&
         __builtin_cpu_supports("avx512bw") && platform::request_amx();
}

/// Executes LDTILECFG with the 64 bytes at `shapes`. With the intrinsic for it, some compilers drop the
/// stores to these bytes.
STAIRCASE_AMX_TARGET inline void load_amx_shapes(const void* shapes) {
  asm volatile("ldtilecfg %0" ::"m"(*static_cast<const char(*)[64]>(shapes)));
}

}  // namespace staircase
