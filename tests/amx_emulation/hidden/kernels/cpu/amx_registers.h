// The registers of AMX as they are, on a processor that seems to have none.
#pragma once

#define has_amx has_hidden_amx
#include "../../../../../kernels/cpu/amx_registers.h"
#undef has_amx

namespace staircase {

inline bool has_amx() {
  return false;
}

}  // namespace staircase
