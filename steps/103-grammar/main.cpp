#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "grammar.h"
#include "memory_estimate.h"
#include "token_masks.h"

using namespace staircase;

int main(int argc, char** argv) {
  RowOptions options;
  GrammarOptions constraint;
  RunOptions run;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, constraint, options);
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
    generate_all(model, prompts, options, run, output);
  });
}
