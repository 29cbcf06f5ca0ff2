#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "regex.h"

using namespace staircase;

int main(int argc, char** argv) {
  RowOptions options;
  RegexOptions constraint;
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
    if (!constraint.regex.empty()) {
      const Regex allowed(constraint.regex);
      options.edit_raw_logits = output.traced(allowed, [&, allowed](auto logits, auto text) {
        keep_allowed(logits, text, allowed, output.tokenizer(), model.config().end_tokens);
      });
    }
    generate_all(model, prompts, options, run, output);
  });
}
