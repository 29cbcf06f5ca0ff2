// Refuses impossible options before any work is done.
#pragma once

#include <cmath>
#include <string_view>

#include "beam_search.h"
#include "benchmark.h"
#include "common/base/error.h"
#include "common/base/message.h"
#include "continuous.h"
#include "generate.h"

namespace staircase {

/// Throws UsageError that names the option, its value and the range, unless `valid`.
template <typename T>
void require(bool valid, std::string_view option, T value, std::string_view range) {
  if (!valid) throw UsageError("{} is {}, but it must be {}", option, value, range);
}

/// Throws UsageError for an impossible value, and warns of options that do nothing together.
inline void check(const GenerateOptions& options, const BeamOptions& search = {}) {
  const SamplingOptions& sampling = options.sampling;
  require(options.max_new_tokens >= (options.echo ? 0 : 1), "--max-new-tokens", options.max_new_tokens,
          options.echo ? "0 or more" : "1 or more, or 0 with --echo");
  require(options.min_new_tokens >= 0 && options.min_new_tokens <= options.max_new_tokens, "--min-new-tokens",
          options.min_new_tokens,
          fmt::format("between 0 and {}, the --max-new-tokens", options.max_new_tokens));
  for (const std::string& stop : options.stop.sequences) {
    if (stop.empty()) throw UsageError("--stop is empty, but a text to stop at has at least one character");
  }
  require(options.num_return_sequences >= 1, "--num-return-sequences", options.num_return_sequences,
          "1 or more");
  require(options.max_batch_size >= 1, "--max-batch-size", options.max_batch_size, "1 or more");
  require(options.max_batch_size >= options.num_return_sequences, "--max-batch-size", options.max_batch_size,
          fmt::format("{} or more, the --num-return-sequences", options.num_return_sequences));
  require(options.show_candidates >= 0, "--show-candidates", options.show_candidates, "0 or more");
  if (options.logprobs) {
    require(*options.logprobs >= 0 && *options.logprobs <= 20, "--logprobs", *options.logprobs,
            "between 0 and 20");
  }
  require(std::abs(sampling.presence_penalty) <= 2.0f, "--presence-penalty", sampling.presence_penalty,
          "between -2 and 2");
  require(std::abs(sampling.frequency_penalty) <= 2.0f, "--frequency-penalty", sampling.frequency_penalty,
          "between -2 and 2");
  require(std::isfinite(sampling.repetition_penalty) && sampling.repetition_penalty > 0.0f,
          "--repetition-penalty", sampling.repetition_penalty, "a number above 0");
  require(std::isfinite(sampling.temperature) && sampling.temperature >= 0.0f, "--temperature",
          sampling.temperature, "a number of 0 or more");
  if (options.num_speculative_tokens) {
    require(*options.num_speculative_tokens >= 1 && *options.num_speculative_tokens <= 16,
            "--num-speculative-tokens", *options.num_speculative_tokens, "between 1 and 16, or auto");
  }
  if (options.prompt_lookup_num_tokens) {
    require(*options.prompt_lookup_num_tokens >= 1 && *options.prompt_lookup_num_tokens <= 64,
            "--prompt-lookup-num-tokens", *options.prompt_lookup_num_tokens, "between 1 and 64");
  }
  require(options.max_matching_ngram_size >= 1, "--max-matching-ngram-size", options.max_matching_ngram_size,
          "1 or more");
  if (options.refill) require(*options.refill >= 1, "--refill", *options.refill, "1 or more");
  if (sampling.top_k) require(*sampling.top_k >= 1, "--top-k", *sampling.top_k, "1 or more");
  if (sampling.top_p) {
    require(*sampling.top_p > 0.0f && *sampling.top_p <= 1.0f, "--top-p", *sampling.top_p,
            "above 0 and at most 1");
  }

  if (options.refill && options.on_overflow == Overflow::kSlide) {
    warn("--refill does nothing without --on-overflow recompute");
  }
  if (!options.drift.empty() && (options.num_return_sequences > 1 || !options.use_cache)) {
    throw UsageError(
        "--drift compares two texts with a cache: it goes with neither --num-return-sequences nor "
        "--no-use-cache");
  }
  if (sampling.do_sample) {
    if (sampling.temperature < kGreedyTemperature) warn("a temperature near 0 is greedy decoding");
    return;
  }
  if (options.num_return_sequences > 1 && search.num_beams == 1) {
    throw UsageError(
        "--num-return-sequences {} needs --do-sample or --num-beams: without them all would be the same",
        options.num_return_sequences);
  }
  if (options.show_candidates == 0 && (sampling.temperature != 1.0f || sampling.top_k || sampling.top_p)) {
    warn("without --do-sample the likeliest token is taken, whatever --temperature, --top-k and --top-p are");
  }
}

/// Throws UsageError for what is impossible in a search, or has no meaning there.
inline void check(const BeamOptions& search, const GenerateOptions& options) {
  require(search.num_beams >= 1, "--num-beams", search.num_beams, "1 or more");
  require(std::abs(search.length_penalty) <= 10.0f, "--length-penalty", search.length_penalty,
          "between -10 and 10");
  if (search.num_beams == 1) {
    const BeamOptions plain;
    if (search.show_beams || search.length_penalty != plain.length_penalty ||
        search.early_stopping != plain.early_stopping) {
      warn("--show-beams, --length-penalty and --early-stopping do nothing without --num-beams");
    }
    return;
  }
  require(options.num_return_sequences <= search.num_beams, "--num-return-sequences",
          options.num_return_sequences, fmt::format("at most {}, the --num-beams", search.num_beams));
  require(options.max_batch_size >= search.num_beams, "--max-batch-size", options.max_batch_size,
          fmt::format("{} or more, the --num-beams", search.num_beams));
  const SamplingOptions& sampling = options.sampling;
  if (sampling.do_sample || sampling.temperature != 1.0f || sampling.top_k || sampling.top_p) {
    throw UsageError(
        "--num-beams draws nothing: it goes with none of --do-sample, --temperature, --top-k and --top-p");
  }
  if (options.show_candidates > 0 || !options.drift.empty()) {
    throw UsageError("--num-beams goes with neither --show-candidates (--show-beams shows more) nor --drift");
  }
}

inline void check(const BenchmarkOptions& benchmark) {
  require(benchmark.repetitions >= 1, "--repetitions", benchmark.repetitions, "1 or more");
  require(benchmark.most_speculative_tokens >= 1 && benchmark.most_speculative_tokens <= 16,
          "--most-speculative-tokens", benchmark.most_speculative_tokens, "between 1 and 16");
}

/// Throws UsageError for what does not go with so many draft models.
inline void check_speculation(const GenerateOptions& options, const BeamOptions& search,
                              const BenchmarkOptions& benchmark, std::size_t drafts) {
  if (!options.use_cache || !options.drift.empty()) {
    throw UsageError("--draft-model goes with neither --no-use-cache nor --drift");
  }
  if (drafts > 1 && benchmark.folder.empty()) {
    throw UsageError("--draft-model is given {} times, but without --benchmark only one can propose tokens",
                     drafts);
  }
  if (search.num_beams > 1) {
    throw UsageError("--draft-model proposes a single text: it does not go with --num-beams");
  }
  if (options.prompt_lookup_num_tokens) {
    throw UsageError("--draft-model and --prompt-lookup-num-tokens both propose tokens: choose one of them");
  }
}

/// Throws UsageError for what does not go with looking up.
inline void check_prompt_lookup(const GenerateOptions& options, const BeamOptions& search,
                                const BenchmarkOptions& benchmark) {
  if (!options.prompt_lookup_num_tokens) {
    if (options.max_matching_ngram_size != GenerateOptions().max_matching_ngram_size) {
      warn("--max-matching-ngram-size does nothing without --prompt-lookup-num-tokens");
    }
    return;
  }
  if (!options.use_cache || !options.drift.empty() || search.num_beams > 1 || !benchmark.folder.empty()) {
    throw UsageError(
        "--prompt-lookup-num-tokens goes with none of --no-use-cache, --drift, --num-beams and --benchmark");
  }
}

/// Throws UsageError for what the benchmark of the cache would not look at.
inline void check_cache_benchmark(const GenerateOptions& options, const BeamOptions& search,
                                  const Prompts& prompts) {
  if (prompts.size() > 1 || options.sampling.do_sample || search.num_beams > 1 || !options.use_cache ||
      !options.drift.empty()) {
    throw UsageError(
        "the --benchmark of the cache continues one prompt greedily, with a cache and without: it goes with "
        "none of a second prompt, --do-sample, --num-beams, --no-use-cache and --drift");
  }
}

inline void check(const ServingOptions& serving) {
  if (serving.prefill_chunk) {
    require(*serving.prefill_chunk >= 1, "--prefill-chunk", *serving.prefill_chunk, "1 or more");
  }
}

/// Throws UsageError for what does not go with requests.
inline void check_requests(const GenerateOptions& options, const BeamOptions& search, bool with_draft) {
  if (with_draft || options.prompt_lookup_num_tokens || !options.use_cache || !options.drift.empty() ||
      options.echo || options.num_return_sequences > 1 || search.num_beams > 1) {
    throw UsageError(
        "--requests goes with none of --draft-model, --prompt-lookup-num-tokens, --no-use-cache, --drift, "
        "--echo, --num-return-sequences and --num-beams");
  }
}

/// Throws UsageError for what does not go with the prompts or the model; warns of a prompt that it cannot see
/// whole.
inline void check(const GenerateOptions& options, const Prompts& prompts, const Gpt2Config& config) {
  if (options.refill) {
    require(*options.refill <= config.n_positions, "--refill", *options.refill,
            fmt::format("at most the model's {} positions", config.n_positions));
  }
  if (!options.drift.empty() && prompts.size() > 1) {
    throw UsageError("--drift compares two texts of one prompt, but there are {} prompts", prompts.size());
  }
  for (const std::vector<int>& prompt : prompts) {
    if (std::ssize(prompt) > config.n_positions) {
      warn("the prompt has {} tokens, and the model sees only the last {} of them", prompt.size(),
           config.n_positions);
    }
  }
}

}  // namespace staircase
