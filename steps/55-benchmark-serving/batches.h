// Continues many prompts in a batch of bounded size, from the command line or from a file of requests.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "common/decoding/model_engine.h"
#include "common/program/latency_report.h"
#include "common/program/program.h"
#include "generate.h"
#include "latencies.h"

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
                                const RunOptions& run, const PrefillOptions& prefill) {
  program.add_requests_option([&](RequestLine& line) {
    Request request{static_cast<int>(requests.size()), line.arrival(), line.tokens(), defaults};
    add_options(line, request.options);
    line.end();
    requests.push_back(request);
  });
  program.refuse_if(
      [&] { return program.has("--requests") && (run.num_return_sequences > 1 || !run.use_cache); },
      "--requests cannot be combined with --num-return-sequences or --no-use-cache");
  program.warn_if([&] { return prefill.chunk && !program.has("--requests"); },
                  "--prefill-chunk does nothing without --requests");
}

/// Continues the prompt of each request once it has arrived; `output` gets the texts in their order.
inline void serve_all(Model& model, const std::vector<Request>& requests, int max_batch_size,
                      const PrefillOptions& prefill, Output& output) {
  std::vector<Generation> texts(requests.size());
  const int count = static_cast<int>(requests.size()), slots = std::min(count, max_batch_size);
  StaticKvCache cache(model, slots);
  Trace trace(requests, real_time());
  StaticEngine engine(model, cache);
  WatchedEngine watched(engine, trace);
  Scheduler scheduler(watched, output.tokenizer(), slots, prefill, trace.watch(output.begin_texts(count)),
                      [&](int number, Generation text) { texts[number] = std::move(text); });
  serve(scheduler, requests, trace.timer);
  output.finish(texts, cache.use());
  report(latencies(trace.texts), texts.size(), 1.0 * trace.rows / std::max(trace.passes, 1), output);
}

}  // namespace staircase
