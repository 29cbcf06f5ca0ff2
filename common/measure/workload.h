// Random requests for measuring a server. A seed produces the same requests on every machine.
#pragma once

#include <limits>
#include <vector>

#include "common/base/options.h"

namespace staircase {

/// The rate at which all requests arrive at the start; also used as a time that never comes.
constexpr double kAllAtOnce = std::numeric_limits<double>::infinity();

struct Workload {
  int requests = 20'000;
  int common_tokens = 64;  ///< length of the prefix that all prompts share
  int prompt_tokens = 32;  ///< mean number of prompt tokens after the prefix
  int new_tokens = 32;     ///< mean number of new tokens
  unsigned seed = 1;
};

void add_options(OptionSink& sink, Workload& options);

/// The servers that serve the requests.
struct FleetOptions {
  int slots = 16;           ///< maximum batch size of each
  int replicas = 1;         ///< number of servers
  bool least_busy = false;  ///< a request goes to the server with the fewest sequences; otherwise servers
                            ///< take turns
  int ranks = 1;            ///< ranks that share the model of each server, as in step 98
  float link_gbit = 10.0f;  ///< Gbit per second that a rank receives
  float link_us = 50.0f;    ///< microseconds to start each call to the other ranks
};

void add_options(OptionSink& sink, FleetOptions& options);

struct RandomRequest {
  double arrival = 0.0;  ///< in seconds from the start
  std::vector<int> prompt = {};
  int new_tokens = 1;
};

/// Returns requests in the order of their arrivals, `rate` per second on average: a Poisson process, whose
/// gaps have an exponential distribution. With an infinite rate all requests arrive at 0. Lengths are at
/// least 1 and have a geometric distribution, truncated so that no sequence needs more than `most` positions
/// of a cache. Prompts and lengths are the same at every rate. Token ids are below 100. Throws UsageError if
/// `most` is below 2 · (common_tokens + 1).
std::vector<RandomRequest> random_requests(const Workload& options, double rate, int most);

}  // namespace staircase
