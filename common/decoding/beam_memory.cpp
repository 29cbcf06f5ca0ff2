#include "common/decoding/beam_memory.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/decoding/memory_estimate.h"
#include "kernels/platform.h"

namespace staircase {

std::int64_t beam_rows(const ModelConfig& config, int num_beams, int max_new_tokens) {
  std::int64_t texts = 1;
  for (int length = 1; length < max_new_tokens && texts < num_beams && config.vocab_size > 1; ++length)
    texts *= config.vocab_size;
  return texts < num_beams ? texts : num_beams;
}

std::size_t row_bytes(const ModelConfig& config, std::int64_t rows, int tokens) {
  return static_cast<std::size_t>(rows) * activation_bytes(config, tokens);
}

void limit_beams(OptionSink& sink, const int& num_beams, const int& max_new_tokens) {
  sink.model_rule([&num_beams, &max_new_tokens](const ModelConfig& config) {
    const std::int64_t rows = beam_rows(config, num_beams, max_new_tokens);
    if (rows <= 1) return;
    const std::size_t bytes = row_bytes(config, rows, 1), more = row_bytes(config, rows, 2) - bytes;
    const auto mebibytes = [](std::size_t size) { return static_cast<double>(size) / (1 << 20); };
    if (bytes > platform::memory_size()) {
      throw UsageError(
          "--num-beams is {}, but one token per beam needs {:.0f} MiB, more than the {:.0f} MiB of this "
          "machine; use fewer beams",
          num_beams, mebibytes(bytes), mebibytes(platform::memory_size()));
    }
    say(fmt::format("by formula: {} beams need {:.1f} MiB for a token each, {:.1f} MiB for each further one",
                    rows, mebibytes(bytes), mebibytes(more)));
  });
}

}  // namespace staircase
