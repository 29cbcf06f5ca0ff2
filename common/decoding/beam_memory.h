// How much memory the beams of a search need, before any of them is computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/options.h"
#include "common/model/config.h"

namespace staircase {

/// The most rows that a pass of a beam search computes: as many as there are beams, or as there are texts
/// before the last new token, vocab_size^(max_new_tokens - 1).
std::int64_t beam_rows(const ModelConfig& config, int num_beams, int max_new_tokens);

/// Bytes of the intermediate results of that many rows, each with that many tokens and the logits of its
/// last.
std::size_t row_bytes(const ModelConfig& config, std::int64_t rows, int tokens);

/// Before the weights of the model are read, prints what more than one row needs, and throws UsageError if
/// this machine has not that much memory.
void limit_beams(OptionSink& sink, const int& num_beams, const int& max_new_tokens);

}  // namespace staircase
