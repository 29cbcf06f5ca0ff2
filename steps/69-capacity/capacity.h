// How many users a machine serves, told beforehand: scheduler and cache are the real ones, and only the
// model's time comes from a formula.
#pragma once

#include <deque>

#include "common/measure/arrival_sweep.h"
#include "common/measure/pass_cost.h"
#include "latencies.h"
#include "paged_kv_cache.h"

namespace staircase {

struct ReplicaOptions : FleetOptions {
  PrefillOptions prefill = {};
  PagedOptions paged = {};
};

/// A server with a clock of its own.
struct Replica {
  double now = 0.0;
  int texts = 0;  ///< that wait or grow
  std::vector<float> logits = {};
  PagedKvCache cache;
  Scheduler scheduler;

  /// `times` gets those of each text, as the requests are numbered.
  Replica(Model& model, const ReplicaOptions& server, const PassCost& cost, std::vector<TextTimes>& times)
      : cache(model, server.places, *server.paged.blocks),
        scheduler(
            without_model(make_engine(model, cache, server.paged.prefix_caching), cost), server.places,
            server.prefill, [&](int number, const Token&) { times[number].tokens.push_back(now); },
            [this](int, const Generation&) { --texts; }) {}

  /// Nothing is computed: time goes on by what a pass costs, and each text with token 0.
  Engine without_model(Engine engine, const PassCost& cost) {
    engine.forward = [this, cost](Fed fed) {
      now += cost.seconds(describe(fed, cache));
      for (int r = 0; r < std::ssize(fed); ++r) {
        cache.append(r, static_cast<int>(fed[r].size()));
        cache.remember(r, fed[r]);
      }
      logits.assign(fed.size(), 0.0f);  // [rows, 1], of a vocabulary of one token
      return std::span<float>(logits);
    };
    return engine;
  }

  void run_until(double time) {
    while (now < time && !scheduler.idle()) scheduler.pass();
  }
};

inline void submit(Scheduler& scheduler, int number, const LoadedRequest& request) {
  RowOptions options;
  options.stopping = {.max_new_tokens = request.new_tokens, .ignore_eos = true};
  scheduler.submit(number, request.prompt, options);
}

/// What becomes of requests that come in this order.
inline std::vector<TextTimes> simulate(Model& model, const ReplicaOptions& server, const PassCost& cost,
                                       const std::vector<LoadedRequest>& requests) {
  std::vector<TextTimes> times;
  std::deque<Replica> replicas;
  for (int i = 0; i < server.replicas; ++i) replicas.emplace_back(model, server, cost, times);
  for (int number = 0; const LoadedRequest& request : requests) {
    times.push_back({request.arrival});
    for (Replica& replica : replicas) replica.run_until(request.arrival);
    Replica& next = server.least_busy ? *std::ranges::min_element(replicas, {}, &Replica::texts)
                                      : replicas[number % replicas.size()];
    next.now = std::max(next.now, request.arrival);
    submit(next.scheduler, number++, request);
    ++next.texts;
  }
  for (Replica& replica : replicas) replica.run_until(kAllAtOnce);
  return times;
}

/// The passes of the model itself, with 1, 2, 4, … places, while it serves requests that are all there.
inline std::vector<Pass> measure(Model& model, const ReplicaOptions& server,
                                 const std::vector<LoadedRequest>& requests) {
  std::vector<Pass> passes;
  for (int places = 1; places < 2 * server.places; places *= 2) {
    PagedKvCache cache(model, places, *server.paged.blocks);
    Engine engine = make_engine(model, cache, server.paged.prefix_caching);
    engine.forward = timed(engine.forward, cache, passes);
    Scheduler scheduler(
        engine, places, server.prefill, [](auto&&...) {}, [](auto&&...) {});
    for (const LoadedRequest& request : requests) submit(scheduler, 0, request);
    while (!scheduler.idle()) scheduler.pass();
  }
  return passes;
}

/// Measures what a pass costs, and tells how long requests would wait.
inline void plan(Model& model, ReplicaOptions server, const LoadOptions& load, const SweepOptions& options) {
  int most = model.config().n_positions;  // that a text may have
  server.paged.blocks = server.paged.blocks.value_or(server.places * blocks_for(most));
  most = std::min(most, kBlockSize * std::min(*server.paged.blocks, blocks_for(most)));
  const PassCost cost = fit([&](unsigned seed) {
    const LoadOptions few{2 * server.places, load.common_tokens, load.prompt_tokens, load.new_tokens, seed};
    return measure(model, server, make_load(few, kAllAtOnce, most));
  });
  sweep(options, load, most, [&](const std::vector<LoadedRequest>& requests) {
    const Latencies times = latencies(simulate(model, server, cost, requests));
    return Waiting{times.ttft, times.tpot, times.seconds};
  });
}

}  // namespace staircase
