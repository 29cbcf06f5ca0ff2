#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "plain_model.h"
#include "static_kv_cache.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  bool plain_loops = false;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add("--plain-loops", &plain_loops, "also compute logits in plain loops, and compare");
  program.add_dtype_option(memory_estimate);
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    if (plain_loops) {
      PlainModel plain(model);
      compare_logits([&] { return plain.logits(prompt); }, [&] { return model.next_logits(prompt); },
                     plain.times);
    }
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
