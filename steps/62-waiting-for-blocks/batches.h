// Many prompts in a batch of a bounded size: each continued one or more times, or as its request says.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/measure/measurement.h"
#include "common/program/program.h"
#include "generate.h"
#include "latencies.h"
#include "paged_kv_cache.h"

namespace staircase {

/// Continues all prompts, each num_return_sequences times; `output` gets the texts in their order: it expects
/// so many, sees their tokens by on_row_token, and finishes all at the end with what the cache used.
inline void generate_all(Model& model, const Prompts& prompts, const RowOptions& options,
                         const RunOptions& run, Output& output) {
  const int copies = run.num_return_sequences, texts = product(prompts.size(), copies, "texts");
  std::vector<int> owners;  // the prompt of each text
  for (int i = 0; i < texts; ++i) owners.push_back(i / copies);
  output.expect(texts);
  const int places = std::min(texts, run.max_batch_size);
  const auto cache = run.use_cache ? std::make_unique<StaticKvCache>(model, places) : nullptr;
  const std::vector<Generation> generated =
      generate(model, prompts, copies, options, places, cache.get(), output.on_row_token(owners));
  output.finish(generated, cache ? cache->use() : CacheUse());
}

/// Throws UsageError for a text that may outgrow the context; its newest token needs no position.
inline void check_fits(const Request& request, const PagedOptions& paged, const ModelConfig& config) {
  const std::size_t prompt = request.prompt.size(), context = config.n_positions;
  const std::size_t most = std::min(context, std::size_t{kBlockSize} * paged.blocks.value_or(context));
  const int max_new_tokens = request.options.stopping.max_new_tokens;
  if (max_new_tokens == 0 || prompt + max_new_tokens <= most + 1) return;
  throw UsageError(
      "a prompt of {} tokens and {} new ones are more than the {} positions that a text may have", prompt,
      max_new_tokens, most);
}

/// Adds --requests, whose lines become `requests`. What a line leaves open is as in `defaults`.
inline void add_requests_option(Program& program, std::vector<Request>& requests, const RowOptions& defaults,
                                const RunOptions& run, const PrefillOptions& prefill,
                                const PagedOptions& paged) {
  program.add_requests_option([&](RequestLine& line) {
    Request request{static_cast<int>(requests.size()), line.arrival(), line.tokens(), defaults};
    request.options.stop.tokenizer = &line.tokenizer();
    add_options(line, request.options);
    line.end();
    check_fits(request, paged, line.config());
    requests.push_back(request);
  });
  program.refuse_if(
      [&] { return program.has("--requests") && (run.num_return_sequences > 1 || !run.use_cache); },
      "--requests goes with neither --num-return-sequences nor --no-use-cache");
  program.warn_if([&] { return paged.blocks && !program.has("--requests"); },
                  "--kv-blocks does nothing without --requests");
  program.warn_if([&] { return prefill.chunk && !program.has("--requests"); },
                  "--prefill-chunk does nothing without --requests");
}

/// Tells how long everybody waited; each figure is of the half, of 95 % and of 99 % of the texts.
inline void report(const Trace& trace, Output& output) {
  const Latencies times = latencies(trace.texts);
  const std::size_t texts = trace.texts.size();
  std::string line = fmt::format("\n{} request{} in {:.2f} s, {:.1f} tokens/s, {:.1f} rows a pass", texts,
                                 texts == 1 ? "" : "s", times.seconds, times.tokens_per_second,
                                 static_cast<double>(trace.rows) / std::max(trace.passes, 1));
  const auto add = [&](const char* name, const char* statistic, const std::vector<double>& values) {
    if (values.empty()) return;
    line += fmt::format("; {} in ms:", name);
    for (const int percent : {50, 95, 99}) {
      const double value = quantile(values, percent / 100.0);
      line += fmt::format("{} {:.1f} (p{})", percent == 50 ? "" : ",", value, percent);
      output.add_statistic(fmt::format("{}_ms_p{}", statistic, percent), value);
    }
  };
  add("TTFT", "ttft", times.ttft);
  add("TPOT", "tpot", times.tpot);
  add("ITL", "itl", times.itl);
  output.set_speed(times.ttft.empty() ? 0.0 : quantile(times.ttft, 0.5), times.tokens_per_second);
  say(line);
}

/// Continues the prompt of each request from its time on; `output` gets the texts in their order.
inline void serve_all(Model& model, const std::vector<Request>& requests, int max_batch_size,
                      const PrefillOptions& prefill, const PagedOptions& paged, Output& output) {
  std::vector<Generation> texts(requests.size());
  std::vector<int> numbers(requests.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const int places = std::min(static_cast<int>(texts.size()), max_batch_size);
  const int blocks = paged.blocks ? *paged.blocks : product(places, blocks_for(model.config().n_positions));
  PagedKvCache cache(model, places, blocks);
  output.expect(static_cast<int>(texts.size()));
  Trace trace(requests, real_time());
  Scheduler scheduler(trace.watch(make_engine(model, cache)), places, prefill,
                      trace.watch(output.on_row_token(numbers)),
                      [&](int number, Generation text) { texts[number] = std::move(text); });
  serve(scheduler, requests, trace.timer);
  output.finish(texts, cache.use());
  report(trace, output);
  output.add_statistic("cache_filled", cache.filled());
  say(fmt::format("at most {} of {} blocks taken, and {:.1f} % of their positions filled",
                  cache.most_blocks(), blocks, 100.0 * cache.filled()));
}

}  // namespace staircase
