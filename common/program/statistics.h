// The speed of a run, in the terms of the serving field.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/model/kv_cache.h"

namespace staircase {

/// TTFT (time to first token) is the time of the prefill. TPOT (time per output token) is the mean time per
/// later token for a reader of one sequence. Sequences in a batch share the time, so tokens/s is more than 1
/// / TPOT. If sequences join a running batch, their prefill is part of the others' decoding time.
struct Statistics {
  int prompt_tokens = 0;
  int new_tokens = 0;
  double prefill_ms = 0.0;  ///< until the first sequence of a batch has its first token; sum over all batches
  int prefills = 0;         ///< number of prefills in prefill_ms, which is a TTFT only for a single one
  double decode_ms = 0.0;   ///< from that first token to the last token of a batch; sum over all batches
  double row_ms = 0.0;      ///< from the first to the last token of a sequence; sum over all sequences
  int decode_tokens = 0;    ///< new tokens, except the first of each sequence, which ends a prefill
  std::optional<double> throughput = {};  ///< tokens/s of a service, whose prefills and decoding overlap
  std::size_t weight_bytes = 0;
  std::size_t activation_bytes = 0;  ///< memory for intermediate results
  CacheUse cache = {};               ///< the most bytes held at one time; bytes allocated and copied in total

  double ms_per_token() const { return decode_tokens == 0 ? 0.0 : row_ms / decode_tokens; }
  double tokens_per_second() const {
    if (throughput) return *throughput;
    return decode_ms > 0.0 ? 1000.0 * decode_tokens / decode_ms : 0.0;
  }
};

/// The statistics as one line of text.
std::string to_string(const Statistics& statistics);

}  // namespace staircase
