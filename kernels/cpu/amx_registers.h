// The parts that the compiler's own names of the instructions on AMX's registers (_tile_loadd and so on) do
// not cover. Only on x86-64. Tests replace this file with an emulation.
#pragma once

#include <cpuid.h>
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/bfloat16_target.h"
#include "kernels/platform.h"

#define STAIRCASE_AMX_TARGET __attribute__((target("avx512bw,amx-tile,amx-bf16,amx-int8" STAIRCASE_EVEX512)))

namespace staircase {

/// Whether this processor has the registers and multiplies bfloat16 and bytes in them, and the system allows
/// it. No processor has had the registers without both.
inline bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25,
                     kAll = kBFloat16 | kTiles | kInt8;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll &&
         __builtin_cpu_supports("avx512bw") && platform::request_amx();
}

/// LDTILECFG with the 64 bytes there. With the compilers' own name for it, some of them leave out the stores.
STAIRCASE_AMX_TARGET inline void load_amx_shapes(const void* shapes) {
  asm volatile("ldtilecfg %0" ::"m"(*static_cast<const char(*)[64]>(shapes)));
}

}  // namespace staircase
