#include "common/program/program.h"
#include "generate.h"

using namespace staircase;

int main(int argc, char** argv) {
  StoppingOptions stopping;
  Program program("Continues a text with a language model.");
  add_options(program, stopping);
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    const Generation generation = generate(model, prompt, stopping, output.begin());
    output.finish(generation.finish_reason);
  });
}
