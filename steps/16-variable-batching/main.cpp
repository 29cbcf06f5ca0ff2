#include "batches.h"
#include "check.h"
#include "common/program/program.h"
#include "drift.h"
#include "generate.h"

using namespace staircase;

int main(int argc, char** argv) {
  GenerateOptions options;
  Program program("Continues a text with a GPT-2.");
  program.add_option("--max-new-tokens", options.max_new_tokens, "how many tokens to generate");
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
  program.add_prompts_option();
  program.add_option("--max-batch-size", options.max_batch_size, "how many texts grow at a time, at most");
  program.add_check([&] { check(options); });
  return program.run(argc, argv, [&](Gpt2& model, const Prompts& prompts, Output& output) {
    check(options, prompts, model.config());
    if (!options.drift.empty()) return compare_overflow(model, prompts[0], options, output);
    generate_all(model, prompts, options, output);
  });
}
