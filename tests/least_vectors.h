// The CPU's kernels with the shortest vectors that they were compiled for.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace staircase {

/// While it lives, the CPU's kernels use neither AVX-512 nor matrix instructions. So attention multiplies
/// what a cache of few bits holds as float32, like a GPU. Otherwise it would round to bfloat16, and then a
/// number that a later layer keeps may become its neighbour.
class LeastVectors {
 public:
  LeastVectors() { choose(hwy::SupportedAndGeneratedTargets().back()); }
  ~LeastVectors() { choose(0); }
  LeastVectors(const LeastVectors&) = delete;
  LeastVectors& operator=(const LeastVectors&) = delete;

 private:
  static void choose(std::int64_t target) {  // 0: the best ones again
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace staircase
