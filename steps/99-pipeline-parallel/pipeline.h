// Splits a model's blocks over several ranks, through which a batch passes in micro-batches.
#pragma once

#include <algorithm>
#include <vector>

#include "common/model/family.h"
#include "common/model/pass.h"

namespace staircase {

/// Takes the tokens of the pass through this rank's blocks. The residual stream comes from the previous rank
/// and goes to the next one. `network` embeds tokens on the first rank and returns logits on the last.
inline void run_stage(const Network& network, Pass& pass) {
  const Ranks& ranks = pass.ranks();
  Tensor x = pass.residual();  // [n_tokens, n_embd]
  if (ranks.rank() > 0) pass.receive(x, ranks.rank() - 1);
  network.run(pass);
  if (ranks.rank() + 1 < ranks.size()) pass.send(x, ranks.rank() + 1);
}

/// Sends the logits of the last rank to all ranks.
inline void share_logits(const Pass& pass) {
  const Ranks& ranks = pass.ranks();
  const int last = ranks.size() - 1;
  Tensor logits = pass.logits();
  if (ranks.rank() < last) return pass.receive(logits, last);
  for (int rank = 0; rank < last; ++rank) pass.send(logits, rank);
}

/// Cuts a pass's sequences into at most `micro_batches` groups, and takes each through this rank's blocks.
/// `send` does not wait: the next rank computes the first group while this one computes the second.
inline void forward(const Network& network, const Pass& pass, int micro_batches) {
  const std::int64_t sequences = pass.batch().n_sequences();
  const int count = static_cast<int>(std::min<std::int64_t>(micro_batches, sequences));
  for (int i = 0; i < count; ++i)
    pass.run_part(slice_of(sequences, i, count), [&](Pass& part) { run_stage(network, part); });
  share_logits(pass);
}

}  // namespace staircase
