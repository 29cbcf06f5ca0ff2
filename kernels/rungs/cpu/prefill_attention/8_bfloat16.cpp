// VDPBF16PS multiplies 32 pairs of bfloat16 numbers and adds them to 16 sums, as in rung 7 of the matrix
// product. Around the tile, all is as in rung 7 (paired_block.h).
#include <cstring>

#include "kernels/rungs/cpu/prefill_attention/paired_block.h"

namespace staircase::rungs::prefill_attention {

#if defined(__AVX512BF16__) && defined(__AVX512F__)
namespace {

struct PairsTile {
  static constexpr std::int64_t kRows = 6, kStep = 2;

  /// result [6, 64] = rows [6, depth] · panel [depth / 2, 64, 2], or += with kAdds.
  template <bool kAdds>
  static void multiply(const std::uint16_t* rows, std::int64_t row_stride, const std::uint16_t* panel,
                       std::int64_t depth, float* result, std::int64_t stride) {
    __m512 sums[kRows][4];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 4; ++v)
        sums[r][v] = kAdds ? _mm512_loadu_ps(result + r * stride + v * 16) : _mm512_setzero_ps();
    for (std::int64_t i = 0; i < depth; i += kStep) {
      __m512bh numbers[4];
      for (int v = 0; v < 4; ++v)
        numbers[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + i * kPanel + v * 32));
      for (int r = 0; r < kRows; ++r) {
        std::int32_t pair;
        std::memcpy(&pair, rows + r * row_stride + i, sizeof(pair));
        const auto own = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int v = 0; v < 4; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], own, numbers[v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 4; ++v) _mm512_storeu_ps(result + r * stride + v * 16, sums[r][v]);
  }
};

}  // namespace

constexpr PrefillRung kBFloat16{"8-bfloat16", "two products for each sum of an instruction",
                                run_in_pairs<PairsTile>};

#else

constexpr PrefillRung kBFloat16{"8-bfloat16", "two products for each sum of an instruction", nullptr,
                                "AVX-512 BF16"};

#endif

}  // namespace staircase::rungs::prefill_attention
