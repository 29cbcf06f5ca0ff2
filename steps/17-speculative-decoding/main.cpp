#include "batches.h"
#include "check.h"
#include "common/base/message.h"
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
  Program program("Continues a text with a GPT-2.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, speculation);
  program.add_draft_model_option(draft);
  program.add_dtype_option();
  program.before_loading([](const ModelConfig& config, DType dtype) { say(memory_estimate(config, dtype)); });
  program.add_check([&] { check(options, run); });
  program.add_prompts_option();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    check(options, prompts, model.config());
    if (!draft) return generate_all(model, prompts, options, run, output);
    if (prompts.size() > 1 || run.num_return_sequences > 1 || !run.use_cache)
      throw UsageError("--draft-model is for one text with a cache: one prompt, and one continuation of it");
    Speculation counts;
    const Generation text = speculate(model, *draft, prompts[0], options, speculation.num_speculative_tokens,
                                      counts, output.on_token());
    output.finish(text.finish_reason, text.cache);
    output.add_statistic("acceptance_rate", counts.accepted / std::max(1.0, 1.0 * counts.drafted));
    say(fmt::format("\n{} of {} drafted tokens accepted", counts.accepted, counts.drafted));
  });
}
