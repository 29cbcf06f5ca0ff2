// combine_rows: out[r] = Σ_j shares[r, j] · x[places[r, j]], or out[r] += that.
//
// x [n, width], places and shares [rows, k], out [rows, width]. Two operations for each 4 bytes of x: limited
// by the bandwidth of the cache that holds the products.
#include "kernels/cpu/cpu_device.h"

namespace staircase {

void CpuDevice::combine_rows(const Tensor& x, const Tensor& places, const Tensor& shares, Epilogue epilogue,
                             Tensor& out) {
  const std::int64_t width = out.dim(1), k = places.dim(1);
  each_few_rows(out, [&](IndexRange rows) {
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      float* const to = out.data<float>() + r * width;
      if (epilogue == Epilogue::kStore) std::fill_n(to, width, 0.0f);
      for (std::int64_t j = r * k; j < (r + 1) * k; ++j) {
        const float* const from = x.data<float>() + places.data<std::int32_t>()[j] * width;
        const float share = shares.data<float>()[j];
        for (std::int64_t i = 0; i < width; ++i) to[i] += share * from[i];
      }
    }
  });
}

}  // namespace staircase
