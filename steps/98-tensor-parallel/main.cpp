#include "common/measure/rank_comparison.h"
#include "common/parallel/mpi_ranks.h"
#include "common/program/program.h"
#include "forward_pass.h"
#include "generate.h"
#include "memory_estimate.h"
#include "static_kv_cache.h"

using namespace staircase;

int main(int argc, char** argv) {
  const std::unique_ptr<Ranks> ranks = started_ranks();
  TextOptions options;
  RunOptions run;
  bool own_pass = false;
  std::optional<int> compared_ranks;
  Program program("Continues a text with a language model.");
  program.share_over(*ranks);
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add("--own-pass", &own_pass, "compute with this step's own forward pass");
  program.add("--compare-ranks", &compared_ranks, "also compute logits on this many ranks", between(1, 64));
  program.add_dtype_option(memory_estimate);
  return program.run(argc, argv, [&](Model& model, const std::vector<int>& prompt, Output& output) {
    const auto prepare = [&](Model& part) {
      if (own_pass) part.run_with([&weights = llama_weights(part)](Pass& pass) { forward(weights, pass); });
    };
    prepare(model);
    if (compared_ranks) compare_with_ranks(model, *compared_ranks, prompt, prepare);
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
