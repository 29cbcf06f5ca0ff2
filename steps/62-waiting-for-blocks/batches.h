// Continues many prompts in a batch of bounded size, from the command line or from a file of requests.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "common/base/message.h"
#include "common/program/latency_report.h"
#include "common/program/program.h"
#include "generate.h"
#include "latencies.h"
#include "paged_engine.h"

namespace staircase {

/// Continues all prompts, each num_return_sequences times. `output` gets the texts in their order: it begins
/// all of them, gets their tokens, and finishes all at the end, with the memory that the cache used.
inline void generate_all(Model& model, const Prompts& prompts, const RowOptions& options,
                         const RunOptions& run, Output& output) {
  const int copies = run.num_return_sequences, texts = product(prompts.size(), copies, "texts");
  const int slots = std::min(texts, run.max_batch_size);
  std::unique_ptr<KvCache> cache = std::make_unique<NoCache>();
  if (run.use_cache) cache = std::make_unique<StaticKvCache>(model, slots);
  const std::vector<Generation> generated = generate(model, output.tokenizer(), prompts, copies, options,
                                                     slots, *cache, output.begin_texts(texts, copies));
  output.finish(generated, cache->use());
}

/// Adds --requests: each line of its file becomes a request. `defaults` fills in what a line leaves out.
inline void add_requests_option(Program& program, std::vector<Request>& requests, const RowOptions& defaults,
                                const RunOptions& run, const PrefillOptions& prefill,
                                const PagedOptions& paged) {
  program.add_requests_option([&](RequestLine& line) {
    Request request{static_cast<int>(requests.size()), line.arrival(), line.tokens(), defaults};
    add_options(line, request.options);
    line.end();
    const std::size_t context = line.config().n_positions;
    check_fits(request.prompt.size(), request.options.stopping.max_new_tokens,
               std::min(context, std::size_t{kBlockSize} * paged.blocks.value_or(context)));
    requests.push_back(request);
  });
  program.refuse_if(
      [&] { return program.has("--requests") && (run.num_return_sequences > 1 || !run.use_cache); },
      "--requests cannot be combined with --num-return-sequences or --no-use-cache");
  program.warn_if([&] { return paged.blocks && !program.has("--requests"); },
                  "--kv-blocks does nothing without --requests");
  program.warn_if([&] { return prefill.chunk && !program.has("--requests"); },
                  "--prefill-chunk does nothing without --requests");
}

/// Continues the prompt of each request once it has arrived; `output` gets the texts in their order.
inline void serve_all(Model& model, const std::vector<Request>& requests, int max_batch_size,
                      const PrefillOptions& prefill, const PagedOptions& paged, Output& output) {
  std::vector<Generation> texts(requests.size());
  const int count = static_cast<int>(requests.size()), slots = std::min(count, max_batch_size);
  const int blocks = paged.blocks ? *paged.blocks : product(slots, blocks_for(model.config().n_positions));
  PagedKvCache cache(model, slots, blocks);
  Trace trace(requests, real_time());
  PagedEngine engine(model, cache);
  WatchedEngine watched(engine, trace);
  Scheduler scheduler(watched, output.tokenizer(), slots, prefill, trace.watch(output.begin_texts(count)),
                      [&](int number, Generation text) { texts[number] = std::move(text); });
  serve(scheduler, requests, trace.timer);
  output.finish(texts, cache.use());
  report(latencies(trace.texts), texts.size(), 1.0 * trace.rows / std::max(trace.passes, 1), output);
  output.add_statistic("cache_filled", cache.filled());
  say(fmt::format("at most {} of {} blocks taken, and {:.1f} % of their positions filled",
                  cache.most_blocks(), blocks, 100.0 * cache.filled()));
}

}  // namespace staircase
