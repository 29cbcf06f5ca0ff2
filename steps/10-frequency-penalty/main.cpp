#include "check.h"
#include "common/program/program.h"
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
  program.add_option("--temperature", options.sampling.temperature, "below 1: surer, above 1: more daring");
  program.add_option("--top-k", options.sampling.top_k, "keep the k likeliest tokens");
  program.add_option("--top-p", options.sampling.top_p,
                     "keep the likeliest tokens that reach this probability");
  program.add_option("--show-candidates", options.show_candidates, "show the likeliest tokens at each step");
  program.add_check([&] { check(options); });
  return program.run(argc, argv, [&](Gpt2& model, const std::vector<int>& prompt, Output& output) {
    output.expect(options.num_return_sequences);
    for (int i = 0; i < options.num_return_sequences; ++i) {
      std::mt19937 generator(options.seed + static_cast<unsigned>(i));
      const Generation generation = generate(model, prompt, options, generator, output.on_token());
      output.finish(generation.finish_reason);
    }
  });
}
