// Continues texts for clients that connect and disconnect.
#pragma once

#include <condition_variable>
#include <map>

#include "common/server/completion_server.h"
#include "preemption.h"

namespace staircase {

/// The server thread queues work; the model thread does it between two passes. `mutex_` guards what they
/// share; neither computes while holding it.
class Service : public CompletionService {
 public:
  Service(Engine& engine, const Tokenizer& tokenizer, ScorePrompt score, const ServerOptions& options,
          const PrefillOptions& prefill)
      : score_prompt_(std::move(score)),
        most_(options.max_batch_size + options.max_queue),
        scheduler_(
            engine, tokenizer, options.max_batch_size, prefill,
            [this](int number, const Token& token) {
              const auto [reply, i] = find(number);
              reply->add_token(i, token);
            },
            [this](int number, const Generation& text) {
              // Its slot must be free before its client gets the end and sends the next request.
              const auto [reply, i] = find(number, true);
              reply->end_text(i, text.finish_reason);
            }) {}

  Admission submit(CompletionRequest& request, const std::shared_ptr<CompletionReply>& reply) override {
    RowOptions options = row_options(request);
    const unsigned seed = options.sampling.seed;
    const std::lock_guard lock(mutex_);
    // A request that is alone is always accepted: its texts get slots one after another.
    if (!unfinished_.empty() && std::ssize(unfinished_) + request.texts() > most_) return Admission::kFull;
    for (const int i : request.texts_by_prompt()) {
      unfinished_[++last_] = {reply, i};
      options.sampling.seed = seed + i;
      work_.push_back([=, this, number = last_, prompt = request.prompt(i), score = request.score()] {
        while (score && !reply->add_prompt(i, score_prompt_(prompt, *score))) continue;
        scheduler_.submit(number, prompt, options);
      });
    }
    wake_.notify_one();
    return Admission::kAccepted;
  }

  void drain() override { std::_Exit(0); }  // clients get no answers

  bool pass() override {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return !unfinished_.empty(); });
    const auto now = std::exchange(work_, {});
    lock.unlock();
    for (const auto& work : now) work();
    scheduler_.pass();
    return true;
  }

 private:
  using Ticket = std::pair<std::shared_ptr<CompletionReply>, int>;  // a reply, and the number of its text

  Ticket find(int number, bool remove = false) {
    const std::lock_guard lock(mutex_);
    const Ticket ticket = unfinished_.at(number);
    if (remove) unfinished_.erase(number);
    return ticket;
  }

  const ScorePrompt score_prompt_;
  const int most_;  // texts in the batch and in the queue together
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int, Ticket> unfinished_;  // tickets of all unfinished texts, by number
  int last_ = 0;                      // the latest of these numbers
  std::vector<std::function<void()>> work_;
  PreemptingScheduler scheduler_;  // used only by the model thread
};

}  // namespace staircase
