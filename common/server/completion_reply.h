// The answer to POST /v1/completions, as its texts grow.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/decoding/results.h"
#include "common/server/completion_request.h"
#include "common/server/http.h"
#include "common/server/metrics.h"
#include "common/server/reply_form.h"

namespace staircase {

struct PromptEcho;

/// The model thread adds its tokens and continues immediately. The server thread takes them out, turns them
/// into JSON and sends it: immediately for a stream, otherwise when all texts have ended. It pauses after
/// every few thousand numbers, because all other clients wait meanwhile.
class CompletionReply : public std::enable_shared_from_this<CompletionReply> {
 public:
  /// Takes the tokens of an answer, without those that the client does not get: the end-of-text token, and a
  /// stop sequence.
  using OnAnswer = std::function<void(const std::vector<int>& tokens)>;

  /// The reply to a request that has just been accepted. It adds latencies and tokens to the metrics, and
  /// calls `on_answer` in the server thread for each text that ends, before the client gets the end.
  CompletionReply(std::string id, std::shared_ptr<const CompletionRequest> request, const ServedModel& model,
                  std::shared_ptr<Exchange> exchange, Metrics& metrics,
                  const ReplyForm& form = completion_form(), OnAnswer on_answer = {});
  ~CompletionReply();

  // ── In any thread ──

  /// Adds the prompt of a text with its log-probabilities, if `echo` and `logprobs` request it, before the
  /// first token. Returns false for nullptr, which means that they are not computed yet.
  bool add_prompt(int text, std::shared_ptr<const std::vector<Token>> tokens);

  /// Reports how many tokens of a text's prompt are cached, before the first token. Only the first call for a
  /// text counts, and only the first text of each prompt.
  void add_cached(int text, int tokens);

  /// Adds a new token of a text.
  void add_token(int text, Token token);

  /// Ends a text.
  void end_text(int text, FinishReason reason);

  // ── In the server thread ──

  /// Call when the request is accepted: sends the header of a stream before the first token.
  void begin();

  /// Call when the client has left.
  void leave();

 private:
  /// Some tokens of a text, or its end, on the way from one thread to the other.
  struct News {
    int text;
    std::shared_ptr<const std::vector<Token>> prompt = {};
    std::optional<Token> token = {};
    std::optional<FinishReason> end = {};
  };
  struct Choice;

  void put(News news);
  void take();
  void read(const News& news);
  void end(Choice& choice, FinishReason reason);
  void fail(const HttpError& error, const std::string& parts);
  std::string begin_of_object() const;
  std::string end_of_object(bool with_use) const;
  std::vector<Choice*> best_of(int prompt);
  void send_whole();

  const std::string id_;
  const std::shared_ptr<const CompletionRequest> request_;
  const ServedModel& model_;
  const std::shared_ptr<Exchange> exchange_;
  Metrics& metrics_;
  const ReplyForm& form_;
  const OnAnswer on_answer_;
  const Clock::time_point arrival_ = Clock::now();
  const long long created_;

  mutable std::mutex mutex_;
  std::vector<News> news_;          // not yet taken out
  std::optional<int> cached_ = {};  // tokens of the prompts, if the service reports them
  std::set<int> counted_ = {};      // the texts that `cached_` counts

  std::deque<News> unread_;  // taken out, but not yet JSON
  std::vector<Choice> choices_;
  std::unique_ptr<PromptEcho> echo_;  // of the last prompt, whose texts share it
  int growing_;                       // texts that have not ended
  bool has_begun_ = false;            // whether the stream has begun
  bool has_left_ = false;             // whether the client has left
  bool has_ended_ = false;            // whether the answer has ended
};

}  // namespace staircase
