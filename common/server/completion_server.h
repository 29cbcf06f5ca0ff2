// OpenAI's interface for completions over HTTP, on top of any service that continues texts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/options.h"
#include "common/server/access.h"
#include "common/server/completion_reply.h"
#include "common/server/completion_request.h"
#include "common/server/conversation.h"
#include "common/server/metrics.h"

namespace staircase {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  AccessOptions access = {};
  int max_batch_size = 32;
  int max_queue = 256;
};

void add_options(OptionSink& sink, ServerOptions& options);

/// Whether a request was accepted, and why not.
enum class Admission {
  kAccepted,      ///< its reply gets the texts
  kFull,          ///< too many texts wait already
  kShuttingDown,  ///< no more requests are accepted
};

/// Scores a prompt: returns its tokens with their log-probabilities, and this many most likely tokens at each
/// position. Each call does part of the work and returns nullptr until all of it is done.
using ScorePrompt =
    std::function<std::shared_ptr<const std::vector<Token>>(const std::vector<int>& prompt, int likeliest)>;

/// A program's own metrics: staircase_NAME, a counter if its name ends in _total as is usual in Prometheus,
/// otherwise a gauge.
struct ProgramMetric {
  std::string name, help;
  std::function<double()> value;
};

/// A service that continues texts. One thread owns the model and runs one pass after another; the server
/// thread calls the other functions, which must not wait for the model.
class CompletionService {
 public:
  virtual ~CompletionService() = default;

  /// Accepts all texts of the request, or none of them. The service reports each to `reply`, from any thread,
  /// even before this returns.
  virtual Admission submit(CompletionRequest& request, const std::shared_ptr<CompletionReply>& reply) = 0;

  /// The client has left, so the rest of this reply is no longer needed. By default the texts keep growing,
  /// and the reply drops them.
  virtual void cancel(const std::shared_ptr<CompletionReply>& /*reply*/) {}

  /// Called after SIGTERM, SIGINT or SIGUSR1: from now on, the service accepts no more requests.
  virtual void drain() = 0;

  /// Runs one pass in the model thread. Waits if there is nothing to do; returns false once the service is
  /// drained and all texts have ended.
  virtual bool pass() = 0;

  /// Whether the service obeys RowExtras::search. If not, requests for a beam search are rejected.
  virtual bool searches() const { return false; }

  /// Metrics that the service counts itself; read in the model thread, between two passes.
  virtual std::vector<ProgramMetric> metrics() const { return {}; }
};

/// Metrics of a paged cache: how many texts have blocks, how full these blocks are, and how many tokens of
/// joining texts were cached. Rows after the first `slots` keep ended texts.
template <typename Engine, typename Cache>
std::vector<ProgramMetric> cache_metrics(const Engine& engine, const Cache& cache, int slots) {
  const auto growing = [&cache, slots] {
    int count = 0;
    for (int row = 0; row < slots; ++row) count += cache.blocks(row) > 0;
    return 1.0 * count;
  };
  return {{"texts_growing", "Unfinished texts that have a slot and blocks.", growing},
          {"cache_filled_ratio",
           "Share of the positions in allocated blocks that is in use; mean over all "
           "passes.",
           [&cache] { return cache.filled(); }},
          {"cache_bytes", "Memory of the cache: keys, values and block tables.",
           [&cache] { return static_cast<double>(cache.use().bytes); }},
          {"prefix_cache_queries_total", "Tokens of texts that joined the batch.",
           [&engine] { return engine.joined(); }},
          {"prefix_cache_hits_total", "Tokens of texts that joined the batch and were in the cache.",
           [&engine] { return engine.found(); }}};
}
template <typename Engine, typename Cache>
std::vector<ProgramMetric> cache_metrics(const Engine& engine, const Cache& cache) {
  return cache_metrics(engine, cache, cache.rows());
}

/// Metrics of drafting under vLLM's names: how many tokens a scheduler has drafted and accepted.
template <typename Scheduler>
std::vector<ProgramMetric> draft_metrics(const Scheduler& scheduler) {
  return {{"spec_decode_num_draft_tokens_total", "Drafted tokens.",
           [&scheduler] { return static_cast<double>(scheduler.drafted); }},
          {"spec_decode_num_accepted_tokens_total", "Drafted tokens that became part of a text.",
           [&scheduler] { return static_cast<double>(scheduler.accepted); }}};
}

/// Serves until SIGTERM, SIGINT or SIGUSR1 arrives and all earlier requests have their answers. This thread
/// runs the service's passes and collects the metrics after each; another one serves the clients, and three
/// more read requests, compile constraints and write the prompts of chats. Prints the server's address on
/// standard output. Throws Error with one sentence if the port or the key file cannot be used. With `prompts`
/// it also answers chats. `adapters` holds the names of the model's adapters.
void serve_completions(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                       const std::vector<ProgramMetric>& program_metrics = {}, ChatPrompts* prompts = nullptr,
                       const std::vector<std::string>& adapters = {});

}  // namespace staircase
