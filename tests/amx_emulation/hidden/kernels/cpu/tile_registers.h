// The registers of AMX as they are, on a processor that seems to have none.
#pragma once

#define has_tile_registers has_hidden_tile_registers
#include "../../../../../kernels/cpu/tile_registers.h"
#undef has_tile_registers

namespace staircase {

inline bool has_tile_registers() {
  return false;
}

}  // namespace staircase
