#include "common/base/file.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "merges.h"
#include "prompt_tokens.h"
#include "static_kv_cache.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  bool shows_tokens = false;
  std::string corpus;
  int merges = 10;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add("--show-tokens", &shows_tokens, "print the tokens of the prompt");
  program.add("--corpus", Path{&corpus, "FILE"}, "a text to learn a vocabulary from");
  program.add("--merges", &merges, "tokens to learn besides the 256 bytes", between(0, 10'000));
  program.warn_if([&] { return corpus.empty() && merges != 10; }, "--merges does nothing without --corpus");
  program.add_dtype_option(memory_estimate);
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    if (!corpus.empty()) show_merges(read_file(corpus), merges);
    if (shows_tokens) show_tokens(output.tokenizer(), prompt);
    output.expect(run.num_return_sequences);
    for (int i = 0; i < run.num_return_sequences; ++i) {
      std::mt19937 generator(options.sampling.seed + static_cast<unsigned>(i));
      std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
      if (run.use_cache) cache = std::make_unique<StaticKvCache>(model);
      const Generation generation = generate(model, prompt, options, *cache, generator, output.begin());
      output.finish(generation.finish_reason, cache->use());
    }
  });
}
