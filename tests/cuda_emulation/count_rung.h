// The counters of a rung of the GPU's ladder, in a shape of GPT-2.
#pragma once

#include "kernels/rungs/cuda/matvec/prepared.h"
#include "tests/cuda_emulation/counters.h"

namespace staircase::rungs::gpu_matvec {

/// The last matrix of an MLP of GPT-2 124M, of which only every fourth output.
inline constexpr int kIn = 3072, kOut = 192;

/// Of the kernel that multiplies: what it asks of W, and of shared memory.
inline cuda_emulation::CountedLaunch count(const MatvecRung& rung) {
  const std::vector<float> w(std::size_t{kIn} * kOut, 0.25f), x(kIn, 0.5f);
  Prepared prepared(rung, kIn, kOut, w.data(), x.data());
  prepared.write_x();
  cuda_emulation::Counters counters;
  const std::size_t weights = std::size_t{kIn} * kOut;
  counters.only(prepared.operands().w, rung.stored == Stored::kFloat32    ? weights * 4
                                       : rung.stored == Stored::kBFloat16 ? weights * 2
                                                                          : weights);
  prepared.run();
  return counters.launches().back();
}

}  // namespace staircase::rungs::gpu_matvec
