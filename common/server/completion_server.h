// OpenAI's interface for completions over HTTP, on top of whatever continues texts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/options.h"
#include "common/server/chat_prompts.h"
#include "common/server/completion_reply.h"
#include "common/server/completion_request.h"
#include "common/server/metrics.h"
#include "row.h"

namespace staircase {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> allowed_hosts = {};  ///< besides addresses and localhost
  std::vector<std::string> cors_origins = {};   ///< whose pages may ask; "*" is all
  std::string api_key_file = {};                ///< none: everybody may ask
  int max_batch_size = 32;
  int max_queue = 256;
};

void add_options(OptionSink& sink, ServerOptions& options);

/// How the texts of a request go on. Throws HttpError for a value that is not possible.
RowOptions row_options(CompletionRequest& request);

/// What becomes of a request.
enum class Admission {
  kTaken,  ///< its reply gets the texts
  kFull,   ///< too many wait already
  kEnds,   ///< no further request is taken
};

/// Scores a prompt: its tokens with their log-probabilities, and those of so many likeliest tokens in the
/// place of each. It does a part of the work and returns nullptr as long as there is some.
using ScorePrompt =
    std::function<std::shared_ptr<const std::vector<Token>>(const std::vector<int>& prompt, int likeliest)>;

/// What continues texts. A thread owns the model and does one pass after the other; the thread of the server
/// calls the other functions, which must not wait for the model.
class CompletionService {
 public:
  virtual ~CompletionService() = default;

  /// Has all texts of the request continued, or none of them. The service tells `reply` about each, from any
  /// thread, even before this returns.
  virtual Admission submit(CompletionRequest& request, const std::shared_ptr<CompletionReply>& reply) = 0;

  /// The client has left: what is still missing of this reply is needed no longer. Without a lesson about it
  /// the texts grow on, and the reply drops them.
  virtual void cancel(const std::shared_ptr<CompletionReply>& /*reply*/) {}

  /// Takes no further request. Without a lesson about it the process ends at once, and clients get no
  /// answers.
  virtual void drain();

  /// Continues some texts, in the thread that owns the model. Waits where there is nothing to do; returns
  /// false when it was drained and all texts have ended.
  virtual bool pass() = 0;
};

/// What a program tells of itself among the metrics: staircase_NAME, a counter if its name ends in _total as
/// Prometheus has it, and a gauge if not.
struct ProgramMetric {
  std::string name, help;
  std::function<double()> value;
};

/// How many texts have blocks of a paged cache at present, how full these are, and how much of the texts that
/// joined the cache held already. Rows after the first `places` keep texts that have ended.
template <typename Engine, typename Cache>
std::vector<ProgramMetric> cache_metrics(const Engine& engine, const Cache& cache, int places) {
  const auto growing = [&cache, places] {
    int count = 0;
    for (int row = 0; row < places; ++row) count += cache.blocks(row) > 0;
    return 1.0 * count;
  };
  return {{"texts_growing", "Unfinished texts that have a slot and blocks.", growing},
          {"cache_filled_ratio",
           "Share of the positions in allocated blocks that is in use; mean over all "
           "passes.",
           [&cache] { return cache.filled(); }},
          {"prefix_cache_queries_total", "Tokens of texts that joined the batch.",
           [&engine] { return engine.joined(); }},
          {"prefix_cache_hits_total", "Tokens of texts that joined the batch and were in the cache.",
           [&engine] { return engine.found(); }}};
}
template <typename Engine, typename Cache>
std::vector<ProgramMetric> cache_metrics(const Engine& engine, const Cache& cache) {
  return cache_metrics(engine, cache, cache.rows());
}

/// Serves until a signal ends it, SIGTERM or SIGINT, and all who had asked have their answers. This thread
/// does the passes of the service, and asks for the metrics behind each; another one has the clients. Says on
/// standard output where it listens. Throws Error with one sentence where the port or the key file cannot be
/// used. With `prompts` it answers chats as well, and a third thread writes their prompts.
void serve_completions(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                       const std::vector<ProgramMetric>& program_metrics = {},
                       ChatPrompts* prompts = nullptr);

}  // namespace staircase
