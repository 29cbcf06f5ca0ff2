#include "common/decoding/window_estimate.h"
#include "common/program/program.h"
#include "generate.h"
#include "ring_kv_cache.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add_dtype_option([](const ModelConfig& config, DType dtype) {
    const std::size_t bytes = ring_bytes(config, dtype, RingKvCache::kMostAtOnce, RingKvCache::kBlock);
    return windowed_memory_estimate(config, dtype, bytes);
  });
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    output.expect(run.num_return_sequences);
    for (int i = 0; i < run.num_return_sequences; ++i) {
      std::mt19937 generator(options.sampling.seed + static_cast<unsigned>(i));
      std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
      if (run.use_cache) cache = std::make_unique<RingKvCache>(model);
      const Generation generation = generate(model, prompt, options, *cache, generator, output.begin());
      output.finish(generation.finish_reason, cache->use());
    }
  });
}
