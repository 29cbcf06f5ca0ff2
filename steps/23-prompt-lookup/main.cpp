#include "batches.h"
#include "beam_search.h"
#include "benchmark.h"
#include "benchmark_kv_cache.h"
#include "check.h"
#include "common/program/program.h"
#include "drift.h"
#include "generate.h"
#include "prompt_lookup.h"
#include "speculative.h"

using namespace staircase;

int main(int argc, char** argv) {
  GenerateOptions options;
  Program program("Continues a text with a GPT-2.");
  program.add_option("--max-new-tokens", options.max_new_tokens, "how many tokens to generate");
  program.add_option("--min-new-tokens", options.min_new_tokens,
                     "how many tokens before the end-of-text token may come");
  program.add_option("--stop", options.stop.sequences, "end the text where this would come; repeatable");
  program.add_flag("--ignore-eos", options.ignore_eos, "go on behind the end-of-text token");
  program.add_flag("--do-sample", options.sampling.do_sample,
                   "draw each token instead of taking the likeliest");
  program.add_option("--seed", options.seed, "where the random numbers start");
  program.add_option("--num-return-sequences", options.num_return_sequences,
                     "how many continuations to draw");
  program.add_option("--presence-penalty", options.sampling.presence_penalty,
                     "subtract from the logit of each token that has occurred");
  program.add_option("--frequency-penalty", options.sampling.frequency_penalty,
                     "subtract from the logit of a token for each time it has occurred");
  program.add_option("--repetition-penalty", options.sampling.repetition_penalty,
                     "above 1: make each token that has occurred less likely");
  program.add_option("--temperature", options.sampling.temperature, "below 1: surer, above 1: more daring");
  program.add_option("--top-k", options.sampling.top_k, "keep the k likeliest tokens");
  program.add_option("--top-p", options.sampling.top_p,
                     "keep the likeliest tokens that reach this probability");
  program.add_dtype_option();
  program.add_flag("--use-cache,!--no-use-cache", options.use_cache,
                   "keep the keys and values of earlier tokens");
  program.add_choice("--on-overflow", options.on_overflow,
                     {{"slide", Overflow::kSlide}, {"recompute", Overflow::kRecompute}},
                     "what to do when the context is full");
  program.add_option("--refill", options.refill, "with how many tokens to fill the cache anew");
  program.add_option("--drift", options.drift, "compare both ways and plot the difference to this SVG file");
  program.add_option("--show-candidates", options.show_candidates, "show the likeliest tokens at each step");
  program.add_option("--logprobs", options.logprobs,
                     "show the log-probability of each token and of the N likeliest");
  program.add_flag("--echo", options.echo, "show the prompt, too, with its log-probabilities and perplexity");
  BeamOptions search;
  program.add_option("--num-beams", search.num_beams, "how many texts a search goes on with");
  program.add_option("--length-penalty", search.length_penalty, "above 0: favour long texts, below 0: short");
  program.add_choice(
      "--early-stopping", search.early_stopping,
      {{"false", EarlyStopping::kFalse}, {"true", EarlyStopping::kTrue}, {"never", EarlyStopping::kNever}},
      "when to stop, once as many texts have ended: by a guess, at once, when it is certain");
  program.add_flag("--show-beams", search.show_beams, "draw the tree of what the search tried");
  program.add_prompts_option();
  program.add_option("--max-batch-size", options.max_batch_size, "how many texts grow at a time, at most");
  std::vector<NamedModel> drafts;
  program.add_draft_model_option(drafts);
  program.add_auto_option("--num-speculative-tokens", options.num_speculative_tokens,
                          "how many tokens the draft model proposes at a time");
  program.add_option("--prompt-lookup-num-tokens", options.prompt_lookup_num_tokens,
                     "propose so many tokens from earlier in the text at a time");
  program.add_option("--max-matching-ngram-size", options.max_matching_ngram_size,
                     "how many tokens to look for there, at most");
  BenchmarkOptions benchmark;
  program.add_option(
      "--benchmark", benchmark.folder,
      "measure the gain of the draft model, or without one of the cache; results go to this folder");
  program.add_option("--repetitions", benchmark.repetitions, "how often to measure");
  program.add_option("--most-speculative-tokens", benchmark.most_speculative_tokens,
                     "where the benchmark ends");
  std::vector<int> lengths = CacheBenchmarkOptions().lengths;
  program.add_option("--benchmark-lengths", lengths, "for how many new tokens to measure the cache");
  program.add_check([&] {
    for (const int length : lengths) require(length >= 1, "--benchmark-lengths", length, "1 or more");
    check(search, options);
    check(options, search);
    check(benchmark);
    check_prompt_lookup(options, search, benchmark);
  });
  return program.run(argc, argv, [&](Gpt2& model, const Prompts& prompts, Output& output) {
    options.stop.tokenizer = &output.tokenizer();
    check(options, prompts, model.config());
    if (!drafts.empty()) {
      check_speculation(options, search, benchmark, drafts.size());
    } else if (!benchmark.folder.empty()) {
      check_cache_benchmark(options, search, prompts);
    }
    if (options.echo) echo(model, prompts, options.logprobs.value_or(0), output);
    if (!drafts.empty()) {
      if (!benchmark.folder.empty()) return benchmark_speculative(model, drafts, prompts, options, benchmark);
      DraftModel drafter(drafts[0].model);
      return speculate_all(model, drafter, prompts, options, output);
    }
    if (options.prompt_lookup_num_tokens) {
      options.num_speculative_tokens = options.prompt_lookup_num_tokens;
      PromptLookup drafter(options.max_matching_ngram_size, model.config().vocab_size);
      return speculate_all(model, drafter, prompts, options, output);
    }
    if (!benchmark.folder.empty()) {
      return benchmark_kv_cache(model, prompts[0], {benchmark.folder, benchmark.repetitions, lengths});
    }
    if (!options.drift.empty()) return compare_overflow(model, prompts[0], options, output);
    if (search.num_beams > 1) return beam_search_all(model, prompts, options, search, output);
    generate_all(model, prompts, options, output);
  });
}
