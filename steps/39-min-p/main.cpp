#include "batches.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "min_p.h"

using namespace staircase;

int main(int argc, char** argv) {
  RowOptions options;
  MinPOptions tail;
  RunOptions run;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, tail, options.sampling);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    if (tail.min_p)
      options.edit_final_logits = [&](std::span<float> logits) { keep_min_p(logits, *tail.min_p); };
    generate_all(model, prompts, options, run, output);
  });
}
