#include "bench/generation.h"

#include <limits>

#include "bench/timing.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

constexpr int kPrefills = 3;           // after one prefill to warm up
constexpr std::size_t kWarmUp = 1024;  // a warm-up uses at most this many tokens of a prompt

float gap_below(std::span<const float> logits, int best) {
  float second = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<int>(i) != best) second = std::max(second, logits[i]);
  }
  return logits[static_cast<std::size_t>(best)] - second;
}

/// Decodes `count` tokens greedily after each prompt, all prompts together. Returns new tokens per second for
/// the whole batch, timed from the first token to the last.
double decode_batch(Model& model, const std::vector<std::vector<int>>& prompts, int count) {
  StaticKvCache cache(model, static_cast<int>(prompts.size()));
  std::vector<std::span<const int>> sequences(prompts.begin(), prompts.end());
  std::vector<int> tokens(prompts.size());
  const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
  const auto step = [&] {
    const Logits logits = model.lazy_logits(sequences, cache);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      tokens[row] = logits.subspan(row * vocab_size, vocab_size).argmax();
      sequences[row] = {&tokens[row], 1};
    }
  };
  step();
  const double seconds = seconds_of([&] {
    for (int i = 1; i < count; ++i) step();
  });
  return static_cast<double>(prompts.size()) * (count - 1) / seconds;
}

}  // namespace

json measure_generation(const GenerationOptions& options) {
  const json prompts = parse_json_object(read_file(options.prompts), options.prompts.string());
  const auto prefill = prompts.at("prefill").get<std::vector<int>>();
  const auto prompt = prompts.at("decode").get<std::vector<int>>();
  const auto batch = prompts.at("batch").get<std::vector<std::vector<int>>>();
  const std::shared_ptr<Device> device = make_cpu_device(options.threads);
  Model model = Model::load(options.model, device, options.dtype);
  if (options.cache_dtype) model.use_cache_dtype(*options.cache_dtype);
  const ModelConfig& config = model.config();
  if (options.new_tokens < 2 || std::ssize(prompt) + options.new_tokens > config.n_positions) {
    throw UsageError("--new-tokens {}: from 2 to {} fit after the prompt", options.new_tokens,
                     config.n_positions - std::ssize(prompt));
  }
  StaticKvCache cache(model);

  // Decodes greedily. Measures the seconds until the first new token, and from the first to the last.
  std::vector<int> tokens;
  const auto decode = [&](std::span<const int> text, int count) {
    cache.truncate(0, 0);
    const double first = seconds_of([&] { tokens = {argmax(model.next_logits(text, cache))}; });
    const double others = seconds_of([&] {
      while (std::ssize(tokens) < count)
        tokens.push_back(argmax(model.next_logits({&tokens.back(), 1}, cache)));
    });
    return std::pair(first, others);
  };
  decode(std::span(prompt).first(std::min(prompt.size(), kWarmUp)), 8);
  const auto [first, others] = decode(prompt, options.new_tokens);
  const std::vector<int> timed = tokens;

  // Decode once more without the clock, from the last token of the prompt on.
  std::vector<float> gaps;
  cache.truncate(0, static_cast<int>(prompt.size()) - 1);
  std::span<const float> logits = model.next_logits({&prompt.back(), 1}, cache);
  for (const int token : timed) {
    gaps.push_back(gap_below(logits, token));
    logits = model.next_logits({&token, 1}, cache);
  }

  json result = {{"prompt_ms", 1e3 * first},
                 {"decode_tokens_per_s", (options.new_tokens - 1) / others},
                 {"token_ids", timed},
                 {"gaps", gaps}};
  if (!prefill.empty()) {
    json prefill_ms = json::array();
    for (int i = 0; i <= kPrefills; ++i) {
      cache.truncate(0, 0);
      const double time = seconds_of([&] { tokens = {argmax(model.next_logits(prefill, cache))}; });
      if (i > 0) prefill_ms.push_back(1e3 * time);
    }
    result["prefill_ms"] = prefill_ms;
    result["prefill_token"] = tokens[0];
  }
  if (!batch.empty()) {
    decode_batch(model, batch, 4);
    result["batch_tokens_per_s"] = decode_batch(model, batch, options.new_tokens);
  }
  return result;
}

}  // namespace staircase::bench
