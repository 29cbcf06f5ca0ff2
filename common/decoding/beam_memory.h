// Computes how much memory the beams of a search need, before it runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/options.h"
#include "common/model/config.h"

namespace staircase {

/// The maximum number of rows in a pass of a beam search: num_beams, or fewer if only
/// vocab_size^(max_new_tokens - 1) texts are possible before the last new token.
std::int64_t beam_rows(const ModelConfig& config, int num_beams, int max_new_tokens);

/// Bytes of the intermediate results of `rows` rows, each with `tokens` tokens and logits for the last one.
std::size_t row_bytes(const ModelConfig& config, std::int64_t rows, int tokens);

/// Adds a check before the model's weights are read: it prints what more than one row needs, and throws
/// UsageError if this machine has less memory.
void limit_beams(OptionSink& sink, const int& num_beams, const int& max_new_tokens);

}  // namespace staircase
