#include "common/program/statistics.h"

#include <fmt/format.h>

namespace staircase {
namespace {

std::string mebibytes(std::size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string to_string(const Statistics& s) {
  std::string line = fmt::format("{} prompt token{}", s.prompt_tokens, s.prompt_tokens == 1 ? "" : "s");
  if (s.new_tokens > 0) {
    line += fmt::format(", prefill {:.1f} ms ({}); {} new token{}", s.prefill_ms,
                        s.prefills == 1 ? "TTFT" : fmt::format("{} together", s.prefills), s.new_tokens,
                        s.new_tokens == 1 ? "" : "s");
  }
  if (s.decode_tokens > 0) {
    line +=
        fmt::format(", {:.2f} ms per token (TPOT), {:.1f} tokens/s", s.ms_per_token(), s.tokens_per_second());
  }
  line += fmt::format("; weights {}, activations {}, cache {}", mebibytes(s.weight_bytes),
                      mebibytes(s.activation_bytes), mebibytes(s.cache.bytes));
  // Reports more only for a cache that has copied.
  if (s.cache.copied > 0) {
    line +=
        fmt::format(" ({} allocated, {} copied)", mebibytes(s.cache.allocated), mebibytes(s.cache.copied));
  }
  return line;
}

}  // namespace staircase
