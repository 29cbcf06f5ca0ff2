#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "prompt_lookup.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  SpeculationOptions speculation;
  LookupOptions lookup;
  std::optional<Model> draft;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, speculation);
  add_options(program, lookup);
  refuse_equal_texts(program, run, options);
  program.add_draft_model_option(draft);
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    std::unique_ptr<Drafter> drafter;
    if (draft) drafter = std::make_unique<DraftModel>(*draft);
    if (lookup.num_tokens) drafter = std::make_unique<PromptLookup>(lookup.ngram, model.config().vocab_size);
    if (!drafter) return generate_all(model, prompts, options, run, output);
    if ((draft && lookup.num_tokens) || prompts.size() > 1 || run.num_return_sequences > 1 || !run.use_cache)
      throw UsageError("use either --draft-model or --prompt-lookup-num-tokens, with the cache and one text");
    const int gamma = lookup.num_tokens.value_or(speculation.num_speculative_tokens);
    Speculation counts;
    const Generation text = speculate(model, *drafter, prompts[0], options, gamma, counts, output.begin());
    output.finish(text.finish_reason, text.cache);
    output.add_statistic("acceptance_rate", counts.accepted / std::max(1.0, 1.0 * counts.drafted));
    say(fmt::format("\n{} of {} drafted tokens accepted", counts.accepted, counts.drafted));
  });
}
