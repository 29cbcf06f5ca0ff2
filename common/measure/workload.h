// Random requests to measure a server with: for one seed, the same on every machine.
#pragma once

#include <limits>
#include <vector>

#include "common/base/options.h"

namespace staircase {

/// A rate at which all requests are there from the start; also a time that never comes.
constexpr double kAllAtOnce = std::numeric_limits<double>::infinity();

struct Workload {
  int requests = 20'000;
  int common_tokens = 64;  ///< that all prompts begin with
  int prompt_tokens = 32;  ///< after them; the mean
  int new_tokens = 32;     ///< the mean
  unsigned seed = 1;
};

void add_options(OptionSink& sink, Workload& options);

/// The servers that a load is for.
struct FleetOptions {
  int slots = 16;           ///< maximum batch size of each
  int replicas = 1;         ///< how many servers there are
  bool least_busy = false;  ///< a request goes to the one with the fewest texts; otherwise to the next in
                            ///< turn
  int ranks = 1;            ///< that share each server's model, as in step 98
  float link_gbit = 10.0f;  ///< per second, that a rank receives
  float link_us = 50.0f;    ///< what a call to the other ranks takes besides
};

void add_options(OptionSink& sink, FleetOptions& options);

struct RandomRequest {
  double arrival = 0.0;  ///< in seconds from the start
  std::vector<int> prompt = {};
  int new_tokens = 1;
};

/// `rate` requests per second, in the order of their arrivals: a Poisson process, whose gaps have an
/// exponential distribution. With an infinite rate all of them are there at 0. Lengths are at least 1 and
/// have a geometric distribution, truncated so that no text needs more than `most` positions of a cache. The
/// texts are the same at every rate. Token ids are below 100. Throws UsageError if `most` is less than twice
/// what the common tokens and one more need.
std::vector<RandomRequest> random_requests(const Workload& options, double rate, int most);

}  // namespace staircase
