#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "speculative.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  SpeculationOptions speculation;
  std::optional<Model> draft;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, speculation);
  refuse_equal_texts(program, run, options);
  program.add_draft_model_option(draft);
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    if (!draft) return generate_all(model, prompts, options, run, output);
    if (prompts.size() > 1 || run.num_return_sequences > 1 || !run.use_cache)
      throw UsageError("--draft-model needs the cache, one prompt and one continuation");
    Speculation counts;
    const Generation text = speculate(model, *draft, prompts[0], options, speculation.num_speculative_tokens,
                                      counts, output.begin());
    output.finish(text.finish_reason, text.cache);
    output.add_statistic("acceptance_rate", counts.accepted / std::max(1.0, 1.0 * counts.drafted));
    say(fmt::format("\n{} of {} drafted tokens accepted", counts.accepted, counts.drafted));
  });
}
