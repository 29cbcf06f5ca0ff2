// embedding: out[t] = token_table[tokens[t]] + position_table[position of t].
//
// out [n_tokens, width]. The token table is stored only once, in the panels of the output layer (packed[token
// / 64][feature][token % 64]). So the features of a token are far apart, and reading a token touches `width`
// cache lines. That costs about 10 µs; a second copy of the model's largest matrix would cost more.
#include <functional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/int8_int4_tile.h"
#include "kernels/half.h"

namespace staircase {
namespace {

/// out[i] = feature i of the token, plus feature i of its position if `position` is not null.
template <std::int64_t kInterleaved, typename W, typename Widen>
void embed(const W* panel, std::int64_t token, const float* position, std::int64_t width, const Widen& widen,
           float* out) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float feature = widen(panel[place_in_panel<kInterleaved>(i, token % kPanel)]);
    out[i] = position == nullptr ? feature : feature + position[i];
  }
}

}  // namespace

void CpuDevice::embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                          Tensor& out) {
  const std::int64_t width = out.dim(1);
  const auto* const tokens = batch.tokens.data<std::int32_t>();
  const auto* const offsets = batch.offsets.data<std::int32_t>();
  const auto* const starts = batch.starts.data<std::int32_t>();
  parallel_ranges(team_, batch.n_tokens(), [&](std::int64_t first, std::int64_t last) {
    std::int64_t sequence = 0;
    for (std::int64_t t = first; t < last; ++t) {
      while (t >= offsets[sequence + 1]) ++sequence;
      const std::int64_t token = tokens[t], panel = token / kPanel * token_table.packed.dim(1) * kPanel;
      const float* const position =
          position_table.size() == 0
              ? nullptr
              : position_table.data<float>() + (starts[sequence] + t - offsets[sequence]) * width;
      float* const out_row = out.data<float>() + t * width;
      const Tensor& table = token_table.packed;
      if (table.dtype() == DType::kFloat16) {
        embed<1>(table.data<std::uint16_t>() + panel, token, position, width, float32_from_float16, out_row);
      } else if (table.dtype() == DType::kBFloat16) {
        embed<kPair>(table.data<std::uint16_t>() + panel, token, position, width, float32_from_bfloat16,
                     out_row);
      } else if (is_quantized(table.dtype())) {
        with_panels(table.dtype(), table.data<void>(), [&]<typename Panel>(const Panel* panels) {
          const Panel* const groups = panels + token / kPanel * groups_of<Panel>(width);
          for (std::int64_t i = 0; i < width; ++i) {
            const float feature = weight_of(groups, i, token % kPanel);
            out_row[i] = position == nullptr ? feature : feature + position[i];
          }
        });
      } else {
        embed<1>(table.data<float>() + panel, token, position, width, std::identity(), out_row);
      }
    }
  });
}

}  // namespace staircase
