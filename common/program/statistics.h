// The speed, in the terms of the serving field.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/model/kv_cache.h"

namespace staircase {

/// TTFT (time to first token) is the prefill; TPOT (time per output token) is the mean over the tokens after
/// it, as a reader of one sequence waits for them. Sequences that grow together, in a batch, share the time:
/// then tokens/s is more than 1 / TPOT. If sequences join a running batch, their prefill is part of the
/// others' decoding time.
struct Statistics {
  int prompt_tokens = 0;
  int new_tokens = 0;
  double prefill_ms = 0.0;  ///< until the first of a batch has its first token; of all batches together
  int prefills = 0;         ///< how many prefills that includes: only a single one is a TTFT
  double decode_ms = 0.0;   ///< from there to the last token of a batch; of all batches together
  double row_ms = 0.0;      ///< between the first and the last token of each sequence, together
  int decode_tokens = 0;    ///< new tokens except the first of each sequence, which ends a prefill
  std::optional<double> throughput = {};  ///< tokens/s of a service, in which no time is only decoding
  std::size_t weight_bytes = 0;
  std::size_t activation_bytes = 0;  ///< memory for intermediate results
  CacheUse cache = {};               ///< the most that was held at one time; allocated and copied in total

  double ms_per_token() const { return decode_tokens == 0 ? 0.0 : row_ms / decode_tokens; }
  double tokens_per_second() const {
    if (throughput) return *throughput;
    return decode_ms > 0.0 ? 1000.0 * decode_tokens / decode_ms : 0.0;
  }
};

/// The estimate as one line of text.
std::string to_string(const Statistics& statistics);

}  // namespace staircase
