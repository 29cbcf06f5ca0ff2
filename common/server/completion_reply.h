// The answer to POST /v1/completions, as its texts grow.
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/decoding/generation.h"
#include "common/server/completion_request.h"
#include "common/server/http.h"
#include "common/server/metrics.h"

namespace staircase {

/// The thread that owns the model puts in what it has, and goes on at once. The thread of the server takes it
/// out, makes JSON of it and sends it: at once for a stream, and else when all texts have ended.
class CompletionReply : public std::enable_shared_from_this<CompletionReply> {
 public:
  /// Of a request that was taken at this time. The metrics get its latencies and tokens.
  CompletionReply(std::string id, std::shared_ptr<const CompletionRequest> request, const ServedModel& model,
                  std::shared_ptr<Exchange> exchange, Metrics& metrics);
  ~CompletionReply();

  // ── In any thread ──

  /// The prompt of a text with what the model thinks of it, where `echo` and `logprobs` ask for it; before
  /// the first token.
  void add_prompt(int text, std::vector<Token> tokens);

  /// A new token of a text.
  void add_token(int text, Token token);

  /// A text has ended.
  void end_text(int text, FinishReason reason);

  // ── In the thread of the server ──

  /// The request was taken: the header of a stream goes out, however long the first token takes.
  void begin();

  /// Nobody reads it any more.
  void leave();

 private:
  /// What the one thread tells the other: some tokens of a text, or its end.
  struct News {
    int text;
    bool is_prompt = false;
    std::vector<Token> tokens = {};
    std::optional<FinishReason> end = {};
  };
  struct Text;

  void put(News news);
  void take();
  void read(const News& news);
  std::string whole();
  std::string object(nlohmann::ordered_json choices, bool with_use) const;

  const std::string id_;
  const std::shared_ptr<const CompletionRequest> request_;
  const ServedModel& model_;
  const std::shared_ptr<Exchange> exchange_;
  Metrics& metrics_;
  const Clock::time_point arrival_ = Clock::now();
  const long long created_;

  std::mutex mutex_;
  std::vector<News> news_;  // not yet taken out

  std::vector<Text> texts_;
  int growing_;             // texts that have not ended
  bool has_begun_ = false;  // the stream
  bool has_left_ = false;   // the client
};

}  // namespace staircase
