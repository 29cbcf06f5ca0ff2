// Compiles what processors other than x86-64 get of the sources with intrinsics, under another namespace:
// their functions must agree with the headers, and none may claim instructions.
#define staircase other_processors

#include <doctest/doctest.h>

#include "kernels/cpu/bfloat16_attention.h"
#include "kernels/cpu/bfloat16_tile.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/int8_int4_tile.h"

#undef __x86_64__

// clang-format off: in this order
#include "kernels/cpu/bfloat16_attention.cpp"
#include "kernels/cpu/bfloat16_tile.cpp"
#include "kernels/cpu/int8_int4_tile.cpp"
// clang-format on

namespace other = other_processors;

TEST_CASE("processors other than x86-64 have no tiles of vectors or matrices") {
  CHECK_FALSE(other::has_bfloat16_tile());
  CHECK_FALSE(other::has_amx_bfloat16(32));
  CHECK_FALSE(other::has_int8_tile());
  CHECK_FALSE(other::has_amx_int8());
  for (const other::DType dtype : {other::DType::kFloat32, other::DType::kFloat16, other::DType::kBFloat16,
                                   other::DType::kInt8, other::DType::kInt4})
    CHECK_FALSE(other::bfloat16::multiplies(dtype));
}
