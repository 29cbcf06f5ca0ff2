#include "common/program/program.h"
#include "generate.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    output.expect(run.num_return_sequences);
    for (int i = 0; i < run.num_return_sequences; ++i) {
      std::mt19937 generator(options.sampling.seed + static_cast<unsigned>(i));
      const Generation generation = generate(model, prompt, options, generator, output.begin());
      output.finish(generation.finish_reason);
    }
  });
}
