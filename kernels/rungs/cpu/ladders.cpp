#include <array>

#include "kernels/rungs/cpu/attention/attention.h"
#include "kernels/rungs/cpu/matvec/matvec.h"
#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"
#include "kernels/rungs/cpu/product/product.h"

namespace staircase::rungs {

std::span<const Rung> matvec_ladder() {
  using namespace matvec;
  static const std::array ladder{kPlain,    kLoopOrder, kRegisters, kPackedPanels, kThreads,
                                 kPrefetch, kBFloat16,  kInt8,      kInt8Products};
  return ladder;
}

std::span<const Rung> product_ladder() {
  using namespace product;
  static const std::array ladder{kPlain,   kLoopOrder, kCacheBlocks, kPackedPanels, kRegisterTile,
                                 kThreads, kBFloat16,  kInt8,        kAmx};
  return ladder;
}

std::span<const AttentionRung> attention_ladder() {
  using namespace attention;
  static const std::array ladder{kPlain,      kLoopOrder, kDotProducts, kExponentials, kOnlineSoftmax,
                                 kPackedKeys, kGroups,    kThreads,     kSplitKeys,    kBFloat16};
  return ladder;
}

std::span<const PrefillRung> prefill_attention_ladder() {
  using namespace prefill_attention;
  static const std::array ladder{kPlain,         kCausal,  kSimd,     kPackedPanels, kQueryTile,
                                 kOnlineSoftmax, kThreads, kBFloat16, kAmx};
  return ladder;
}

}  // namespace staircase::rungs
