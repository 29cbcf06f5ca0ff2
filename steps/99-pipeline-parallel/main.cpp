#include "batches.h"
#include "common/measure/rank_comparison.h"
#include "common/parallel/mpi_ranks.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "pipeline.h"

using namespace staircase;

int main(int argc, char** argv) {
  const std::unique_ptr<Ranks> ranks = started_ranks();
  RowOptions options;
  RunOptions run;
  int micro_batches = 4;
  std::optional<int> compared_ranks;
  Program program("Continues a text with a language model.");
  program.share_over(*ranks, Split::kBlocks);
  add_options(program, options);
  add_options(program, run);
  refuse_equal_texts(program, run, options);
  program.add("--micro-batches", &micro_batches, "micro-batches that follow each other through the ranks",
              at_least(1));
  program.add("--compare-ranks", &compared_ranks, "also compute logits on this many ranks", between(1, 64));
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    const auto prepare = [&](Model& part) {
      part.run_with([&](Pass& pass) { forward(part.network(), pass, micro_batches); });
    };
    if (ranks->size() > 1) prepare(model);
    if (compared_ranks) compare_with_stages(model, *compared_ranks, prompts, prepare);
    generate_all(model, prompts, options, run, output);
  });
}
