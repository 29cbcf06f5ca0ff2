// The kernels' tests on a processor with AMX as on one without. There, products and attention in bfloat16 and
// bytes are computed by vectors, which no other test runs on such a machine.
#include <doctest/doctest.h>

#include "kernels/cpu/bfloat16_tile.h"
#include "kernels/cpu/int8_int4_tile.h"

TEST_CASE("the registers of AMX are hidden") {
  CHECK_FALSE(staircase::has_amx_bfloat16(32));
  CHECK_FALSE(staircase::has_amx_int8());
}
