// gather_rows copies, so it must be equal to the bit.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

TEST_CASE("gather_rows copies the requested rows, of any dtype, in their order and as often as requested") {
  const std::vector<std::int32_t> lists[] = {{0}, {6}, {6, 0, 3}, {2, 2, 2}, {0, 1, 2, 3, 4, 5, 6}};
  for (const std::size_t width : {1u, 3u, 16u, 75u, 257u}) {
    for (const DType dtype : kTypes) {
      const Values x = rounded(random_values(7 * width, 1), dtype);
      for (const auto& indices : lists) {
        Values want;
        for (const std::int32_t index : indices) {
          const float* const row = x.data() + static_cast<std::size_t>(index) * width;
          want.insert(want.end(), row, row + width);
        }
        on_every_device([&](Device& device) {
          Tensor out = result_tensor(device, shape_of(indices.size(), width), dtype);
          device.gather_rows(upload_as(dtype, device, shape_of(7, width), x), upload_ints(device, indices),
                             out);
          INFO(to_string(dtype));
          CHECK(difference("out", download_any(device, out), want, width, 0.0) == "");
        });
      }
    }
  }
}

}  // namespace
}  // namespace staircase
