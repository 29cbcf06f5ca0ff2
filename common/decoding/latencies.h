// Measures how long a user waits for the first token, and how fast the text then grows.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "arrivals.h"

namespace staircase {

/// The times of a request's events, in seconds from the start.
struct TextTimes {
  double arrival = 0.0;
  std::optional<double> joined = {};  ///< when it joined the batch
  std::vector<double> tokens = {};    ///< when each new token was chosen
};

/// Records what happens while requests are served, as seen from outside.
struct Trace {
  Timer timer;
  std::vector<TextTimes> texts;  ///< numbered like the requests
  int passes = 0, rows = 0;      ///< the model's passes, and their rows in total

  Trace(const std::vector<Request>& requests, Timer clock) : timer(std::move(clock)), texts(requests.size()) {
    for (const Request& request : requests) texts[request.number].arrival = request.arrival;
  }

  /// Returns a callback that also records each token in the trace.
  OnRowToken watch(OnRowToken on_token) {
    return [this, tell = std::move(on_token)](int number, const Token& token) {
      texts[number].tokens.push_back(timer.now());
      tell(number, token);
    };
  }
};

/// An engine whose passes the trace records.
class WatchedEngine : public DelegatingEngine {
 public:
  WatchedEngine(Engine& engine, Trace& trace) : DelegatingEngine(engine), trace_(trace) {}

  std::span<const int> prepare(const Row& row, int r) override {
    std::optional<double>& joined = trace_.texts[row.number].joined;
    joined = joined.value_or(trace_.timer.now());
    trace_.rows += 1;
    return DelegatingEngine::prepare(row, r);
  }

  Logits forward(std::span<const std::span<const int>> sequences) override {
    trace_.passes += 1;
    return DelegatingEngine::forward(sequences);
  }

 private:
  Trace& trace_;
};

/// In milliseconds. TTFT, the time to first token, starts at the arrival and includes the wait in the queue.
/// TPOT, the time per output token, is the mean time of a text's tokens after the first. ITL, the inter-token
/// latency, is the time of each such token.
struct Latencies {
  std::vector<double> ttft = {}, tpot = {}, itl = {};
  double seconds = 0.0;  ///< from the first arrival to the last token
  double tokens_per_second = 0.0;
};

/// The latencies of all texts together; a text without a token counts only as an arrival.
inline Latencies latencies(const std::vector<TextTimes>& texts) {
  Latencies all;
  double first = std::numeric_limits<double>::max(), last = 0.0, count = 0.0;
  for (const auto& [arrival, joined, tokens] : texts) {
    first = std::min(first, arrival);
    if (tokens.empty()) continue;
    last = std::max(last, tokens.back());
    const auto length = static_cast<double>(tokens.size());
    count += length;
    all.ttft.push_back(1000.0 * (tokens.front() - arrival));
    if (length > 1.0) all.tpot.push_back(1000.0 * (tokens.back() - tokens.front()) / (length - 1.0));
    for (std::size_t i = 1; i < tokens.size(); ++i) all.itl.push_back(1000.0 * (tokens[i] - tokens[i - 1]));
  }
  all.seconds = std::max(last - first, 0.0);
  if (all.seconds > 0.0) all.tokens_per_second = count / all.seconds;
  return all;
}

}  // namespace staircase
