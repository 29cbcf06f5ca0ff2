// Any bytes as the body of a completion request: it is refused with one sentence, or all that was read is
// within its bounds.
#include "common/server/completion_request.h"

#include <cstdint>
#include <cstdlib>

#include "common/decoding/row.h"

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace staircase;
  static const Tokenizer tokenizer = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-1m");
  static const ServedModel model("tales-1m", tokenizer,
                                 {.vocab_size = tokenizer.vocab_size(), .n_positions = 64});
  try {
    CompletionRequest request({reinterpret_cast<const char*>(data), size}, model);
    RowOptions options;
    add_options(request, options);
    require(request.texts() >= 1 && request.texts() <= CompletionRequest::kMaxTexts);
    for (const std::vector<int>& prompt : request.prompts()) {
      require(!prompt.empty() && std::ssize(prompt) + request.max_tokens <= model.n_positions);
      for (const int id : prompt) require(id >= 0 && id < model.vocab_size);
    }
    require(options.stop.sequences.size() <= CompletionRequest::kMaxStops);
    require(options.length.min_new_tokens <= request.max_tokens);
    const SamplingOptions& sampling = options.sampling;
    require(sampling.temperature >= 0.0f && sampling.repetition_penalty >= 0.125f);
    require(sampling.top_p.value_or(1.0f) > 0.0f && sampling.top_p.value_or(1.0f) <= 1.0f);
    require(sampling.top_k.value_or(1) >= 1 && request.logprobs.value_or(0) <= 20);
  } catch (const HttpError& error) {
    require(error.status >= 400 && error.status < 500 && error.what()[0] != '\0');
    error_response(error);
  }
  return 0;
}
