#include "common/program/program.h"
#include "generate.h"

using namespace staircase;

int main(int argc, char** argv) {
  GenerateOptions options;
  Program program("Continues a text with a GPT-2.");
  program.add_option("--max-new-tokens", options.max_new_tokens, "how many tokens to generate");
  program.add_flag("--ignore-eos", options.ignore_eos, "go on behind the end-of-text token");
  return program.run(argc, argv, [&](Gpt2& model, const std::vector<int>& prompt, Output& output) {
    const Generation generation = generate(model, prompt, options, output.on_token());
    output.finish(generation.finish_reason);
  });
}
