// How a function says that it uses VDPBF16PS and what belongs to it. Only on x86-64.
#pragma once

// Some clangs want to be told that vectors of 512 bits are meant.
#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ < 22
#define STAIRCASE_EVEX512 ",evex512"
#else
#define STAIRCASE_EVEX512
#endif
#define STAIRCASE_TARGET __attribute__((target("avx512bw,avx512bf16" STAIRCASE_EVEX512)))
