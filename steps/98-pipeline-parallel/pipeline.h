// A model's blocks on several ranks, through which a batch passes in groups.
#pragma once

#include <algorithm>
#include <vector>

#include "common/model/family.h"
#include "common/model/pass.h"

namespace staircase {

/// Takes the tokens of the pass through this rank's blocks. The residual stream comes from the rank before,
/// and goes on to the next one. `network` embeds tokens on the first rank, and has logits on the last one.
inline void run_stage(const Network& network, Pass& pass) {
  Ranks& ranks = pass.ranks();
  Tensor x = pass.residual();  // [n_tokens, n_embd]
  std::vector<float> numbers(x.size());
  if (ranks.rank() > 0) {
    ranks.receive(numbers, ranks.rank() - 1);
    pass.device().copy_from_host(numbers, x);
  }
  network.run(pass);
  if (ranks.rank() + 1 < ranks.size()) {
    pass.device().copy_to_host(x, numbers);
    ranks.send(numbers, ranks.rank() + 1);
  }
}

/// Gives all ranks the logits of the last one.
inline void share_logits(const Pass& pass) {
  Ranks& ranks = pass.ranks();
  const int last = ranks.size() - 1;
  Tensor logits = pass.logits();
  std::vector<float> numbers(logits.size());
  if (ranks.rank() == last) {
    pass.device().copy_to_host(logits, numbers);
    for (int rank = 0; rank < last; ++rank) ranks.send(numbers, rank);
  } else {
    ranks.receive(numbers, last);
    pass.device().copy_from_host(numbers, logits);
  }
}

/// Cuts the sequences of a pass into at most that many micro-batches, and takes them through this rank's
/// blocks in turn. `send` does not wait: while the next rank has the first, this one has the second.
inline void forward(const Network& network, const Pass& pass, int micro_batches) {
  const std::int64_t sequences = pass.batch().n_sequences();
  const int count = static_cast<int>(std::min<std::int64_t>(micro_batches, sequences));
  for (int i = 0; i < count; ++i)
    pass.run_part(slice_of(sequences, i, count), [&](Pass& part) { run_stage(network, part); });
  share_logits(pass);
}

}  // namespace staircase
