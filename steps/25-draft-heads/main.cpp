#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "head_drafter.h"
#include "memory_estimate.h"
#include "report.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  SpeculationOptions speculation;
  std::optional<Model> draft;
  std::string heads;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, speculation);
  refuse_equal_texts(program, run, options);
  program.add_draft_model_option(draft);
  program.add("--heads", Path{&heads, "DIR"}, "folder of draft heads for the model");
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    std::unique_ptr<Drafter> drafter;
    if (draft) drafter = std::make_unique<DraftModel>(*draft);
    if (!heads.empty()) drafter = std::make_unique<HeadDrafter>(model, read_draft_heads(model, heads));
    if (!drafter) return generate_all(model, prompts, options, run, output);
    if ((draft && !heads.empty()) || prompts.size() > 1 || run.num_return_sequences > 1 || !run.use_cache)
      throw UsageError("use either --draft-model or --heads, with the cache and one text");
    const auto gamma = speculation.num_speculative_tokens;
    Speculation counts;
    const Generation text = speculate(model, *drafter, prompts[0], options, gamma, counts, output.begin());
    output.finish(text.finish_reason, text.cache);
    report(counts, plain_ms(model, text.tokens, options.sampling), output);
  });
}
