#include "batches.h"
#include "benchmark.h"
#include "benchmark_kv_cache.h"
#include "common/program/program.h"
#include "generate.h"
#include "memory_estimate.h"
#include "speculative.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  RunOptions run;
  SpeculationOptions speculation;
  BenchmarkOptions benchmark;
  std::vector<NamedModel> drafts;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, speculation);
  add_options(program, benchmark);
  refuse_equal_texts(program, run, options);
  program.add_draft_model_option(drafts);
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    if (drafts.empty() && benchmark.folder.empty()) return generate_all(model, prompts, options, run, output);
    check(benchmark, drafts.size(), prompts, options, run);
    if (drafts.empty()) return benchmark_kv_cache(model, prompts[0], benchmark);
    if (!benchmark.folder.empty()) return benchmark_speculative(model, drafts, prompts, options, benchmark);
    Speculation counts;
    const Generation text = speculate(model, drafts[0].model, prompts[0], options,
                                      speculation.num_speculative_tokens, counts, output.begin());
    output.finish(text.finish_reason, text.cache);
    output.add_statistic("acceptance_rate", counts.accepted / std::max(1.0, 1.0 * counts.drafted));
    say(fmt::format("\n{} of {} drafted tokens accepted", counts.accepted, counts.drafted));
  });
}
