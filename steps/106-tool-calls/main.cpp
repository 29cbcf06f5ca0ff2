#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "jump_ahead.h"
#include "memory_estimate.h"

using namespace staircase;

int main(int argc, char** argv) {
  RowOptions options;
  GrammarOptions constraint;
  JumpOptions jump;
  RunOptions run;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, constraint, options);
  add_options(program, jump, constraint, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    const auto masks = constraint.rules.empty()
                           ? nullptr
                           : std::make_shared<TokenMasks<Grammar>>(TokenMasks<Grammar>{
                                 Grammar(constraint.rules), output.tokenizer(), model.config().end_tokens});
    if (masks) options.edit_raw_logits = output.traced(masks->allowed, KeepAllowed<Grammar>{masks});
    if (!jump.jump_ahead) return generate_all(model, prompts, options, run, output);
    if (prompts.size() > 1 || run.num_return_sequences > 1 || !run.use_cache)
      throw UsageError("--jump-ahead needs the cache, one prompt and one continuation");
    StaticKvCache cache(model, 1);
    int passes = 0;
    const Generation text =
        generate_ahead(model, masks, prompts[0], options, cache, passes, output.begin(), jump.tools);
    output.finish(text.finish_reason, cache.use());
    output.add_statistic("passes", passes);
    say(fmt::format("\n{} tokens in {} passes", text.tokens.size() - prompts[0].size(), passes));
  });
}
