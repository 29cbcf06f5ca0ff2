#include "common/measure/workload.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/base/error.h"

namespace staircase {

void add_options(OptionSink& sink, Workload& options) {
  sink.add("--num-requests", &options.requests, "number of requests at each rate", between(1, 1'000'000));
  sink.add("--common-tokens", &options.common_tokens, "length of the prefix that all prompts share",
           at_least(0));
  sink.add("--prompt-tokens", &options.prompt_tokens, "mean number of prompt tokens after them", at_least(1));
  sink.add("--new-tokens", &options.new_tokens, "mean number of new tokens", at_least(1));
  sink.add("--seed", &options.seed, "seed of the random requests", at_least(0));
}

void add_options(OptionSink& sink, FleetOptions& options) {
  sink.add("--max-batch-size", &options.slots, "maximum batch size of a server", between(1, 64));
  sink.add("--replicas", &options.replicas, "number of servers", between(1, 64));
  sink.add("--least-busy", &options.least_busy, "send each request to the server with the fewest sequences");
  sink.add("--ranks", &options.ranks, "ranks of each server that share its model (tensor parallelism)",
           between(1, 64));
  sink.add("--link-gbit", &options.link_gbit, "Gbit per second that a rank receives", above(0));
  sink.add("--link-us", &options.link_us, "microseconds to start each call to the other ranks", at_least(0));
}

std::vector<RandomRequest> random_requests(const Workload& options, double rate, int most) {
  const int half = most / 2;
  if (options.common_tokens >= half) {
    throw UsageError("--common-tokens is {}, but it must be below {}, half the positions of a text",
                     options.common_tokens, half);
  }
  std::mt19937 generator(options.seed);
  // Uses the inverse of the distribution, since standard libraries draw in different ways.
  const auto exponential = [&] { return -std::log1p(-static_cast<double>(generator()) / 4294967296.0); };
  const auto geometric = [&](int mean, int limit) {
    const double drawn = mean == 1 ? 0.0 : std::floor(exponential() / -std::log1p(-1.0 / mean));
    return static_cast<int>(std::min(1.0 + drawn, static_cast<double>(limit)));
  };
  std::vector<RandomRequest> requests;
  double now = 0.0;
  for (int i = 0; i < options.requests; ++i) {
    now += exponential() / rate;
    RandomRequest request{now, std::vector<int>(static_cast<std::size_t>(options.common_tokens), 1)};
    for (int own = geometric(options.prompt_tokens, half - options.common_tokens); own > 0; --own)
      request.prompt.push_back(static_cast<int>(generator() % 100));
    // The newest token needs no position.
    request.new_tokens = geometric(options.new_tokens, most + 1 - static_cast<int>(request.prompt.size()));
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace staircase
