// The attribute of functions that use VDPBF16PS and related instructions. Only on x86-64.
#pragma once

// Clang 18 to 21 needs an explicit request for 512-bit vectors.
#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ < 22
#define STAIRCASE_EVEX512 ",evex512"
#else
#define STAIRCASE_EVEX512
#endif
#define STAIRCASE_TARGET __attribute__((target("avx512bw,avx512dq,avx512bf16" STAIRCASE_EVEX512)))
