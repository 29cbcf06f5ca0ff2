// Predicts how many users a machine can serve: the scheduler and cache are real, the model's time a formula.
#pragma once

#include "common/measure/arrival_sweep.h"
#include "common/measure/pass_cost.h"
#include "latencies.h"
#include "paged_engine.h"
#include "preemption.h"

namespace staircase {

struct Server : FleetOptions {
  Model& model;
  const Tokenizer& tokenizer;
  PrefillOptions prefill = {};
  PagedOptions paged = {};
};

/// An engine that computes nothing: a pass advances its clock by the pass's cost and each text by token 0.
struct SimulatedEngine : PagedEngine {
  using PagedEngine::PagedEngine;
  PassCost cost = {};
  double now = 0.0;
  std::vector<float> logits = {};

  Logits compute(Fed fed, KvCache& cache) override {
    now += cost.seconds(describe(fed, cache));
    for (int r = 0; r < std::ssize(fed); ++r) cache.append(r, static_cast<int>(fed[r].size()));
    logits.assign(fed.size(), 0.0f);  // [rows, 1], of a vocabulary of one token
    return Logits(logits);
  }
};

/// A server with its own clock.
struct Replica {
  int texts = 0;  ///< waiting or growing
  PagedKvCache cache;
  SimulatedEngine engine;
  PreemptingScheduler scheduler;

  /// `times` gets the times of each text, numbered like the requests.
  Replica(const Server& server, std::vector<TextTimes>& times)
      : cache(server.model, server.slots, *server.paged.blocks),
        engine(server.model, cache, server.paged.prefix_caching),
        scheduler(
            engine, server.tokenizer, server.slots, server.prefill,
            [&](int number, const Token&) { times[number].tokens.push_back(engine.now); },
            [this](int, const Generation&) { --texts; }) {}

  void run_until(double time) {
    while (engine.now < time && !scheduler.idle()) scheduler.pass();
  }
};

inline void submit(Scheduler& scheduler, int number, const RandomRequest& request) {
  scheduler.submit(number, request.prompt,
                   {{.stopping = {.max_new_tokens = request.new_tokens, .ignore_eos = true}}});
}

/// Simulates requests that arrive in this order.
inline std::vector<TextTimes> simulate(const Server& server, const PassCost& cost,
                                       const std::vector<RandomRequest>& requests) {
  std::vector<TextTimes> times;
  std::deque<Replica> replicas;
  for (int i = 0; i < server.replicas; ++i) replicas.emplace_back(server, times).engine.cost = cost;
  for (int number = 0; const RandomRequest& request : requests) {
    times.push_back({request.arrival});
    for (Replica& replica : replicas) replica.run_until(request.arrival);
    Replica& next = server.least_busy ? *std::ranges::min_element(replicas, {}, &Replica::texts)
                                      : replicas[number % replicas.size()];
    next.engine.now = std::max(next.engine.now, request.arrival);
    submit(next.scheduler, number++, request);
    ++next.texts;
  }
  for (Replica& replica : replicas) replica.run_until(kAllAtOnce);
  return times;
}

/// Measures passes of the real model with 1, 2, 4, … slots, while it serves requests that have all arrived.
inline std::vector<MeasuredPass> measure(const Server& server, const std::vector<RandomRequest>& requests) {
  std::vector<MeasuredPass> passes;
  for (int slots = 1; slots < 2 * server.slots; slots *= 2) {
    PagedKvCache cache(server.model, slots, *server.paged.blocks);
    PagedEngine paged(server.model, cache, server.paged.prefix_caching);
    TimedEngine engine(paged, cache, passes);
    PreemptingScheduler scheduler(
        engine, server.tokenizer, slots, server.prefill, [](auto&&...) {}, [](auto&&...) {});
    for (const RandomRequest& request : requests) submit(scheduler, 0, request);
    while (!scheduler.idle()) scheduler.pass();
  }
  return passes;
}

/// Measures what a pass costs, and predicts how long requests would wait.
inline void plan(Server server, const Workload& load, const SweepOptions& options) {
  int most = server.model.config().n_positions;  // positions that a text may have
  server.paged.blocks = server.paged.blocks.value_or(server.slots * blocks_for(most));
  most = std::min(most, kBlockSize * std::min(*server.paged.blocks, blocks_for(most)));
  const PassCost cost = fit_shared(server, server.model.config(), [&](unsigned seed) {
    const Workload few{2 * server.slots, load.common_tokens, load.prompt_tokens, load.new_tokens, seed};
    return measure(server, random_requests(few, kAllAtOnce, most));
  });
  sweep(options, load, most, [&](const std::vector<RandomRequest>& requests) {
    const Latencies times = latencies(simulate(server, cost, requests));
    return Waiting{times.ttft, times.tpot, times.seconds};
  });
}

}  // namespace staircase
