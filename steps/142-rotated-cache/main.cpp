#include "common/measure/rounding.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "quantize.h"
#include "rounded_kv_cache.h"
#include "static_kv_cache.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  bool show_rounding = false, compare = false;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add("--show-rounding", &show_rounding, "print the rounding error of each matrix in 8 bits");
  program.add("--compare-caches", &compare,
              "compare caches of all types: size, quality and speed on the prompt");
  program.add_dtype_option(memory_estimate);
  program.add_cache_dtype_option(&run.use_cache);
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    if (show_rounding)
      say(rounding_errors(model, [](auto... group) { return dequantize(quantize(group...)); }).text(3));
    if (compare) return say(compare_caches(model, caches_of(model), prompt).text(3));
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
