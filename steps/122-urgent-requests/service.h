// Continues texts for clients that connect and disconnect.
#pragma once

#include <condition_variable>
#include <map>

#include "cached_prompts.h"
#include "common/decoding/turn_scheduler.h"
#include "common/server/completion_server.h"

namespace staircase {

struct TurnOptions {
  int patience = 100;
  LookupOptions lookup = {};
};

inline void add_options(OptionSink& sink, TurnOptions& options) {
  sink.add("--patience", &options.patience, "passes that a request waits for each unit of its priority",
           at_least(0));
  add_options(sink, options.lookup);
}

/// The server thread queues work; the model thread does it between two passes. `mutex_` guards what they
/// share; neither computes while holding it.
class Service : public CompletionService {
 public:
  Service(Engine& engine, const Tokenizer& tokenizer, ScorePrompt score, const ServerOptions& options,
          const PrefillOptions& prefill, const TurnOptions& turns)
      : score_prompt_(std::move(score)),
        most_(options.max_batch_size + options.max_queue),
        engine_(engine,
                [this](int number, int cached) {
                  if (const auto [reply, i] = find(number); reply) reply->add_cached(i, cached);
                }),
        scheduler_(
            engine_, tokenizer, options.max_batch_size, prefill,
            [this](int number, const Token& token) {
              if (const auto [reply, i] = find(number); reply) reply->add_token(i, token);
            },
            [this](int number, const Generation& text) {
              // Its slot must be free before its client gets the end and sends the next request.
              if (const auto [reply, i] = find(number, true); reply) reply->end_text(i, text.finish_reason);
            }) {
    scheduler_.patience = turns.patience;
    scheduler_.lookup = turns.lookup;
  }

  Admission submit(CompletionRequest& request, const std::shared_ptr<CompletionReply>& reply) override {
    RowOptions options = row_options(request);
    request.add("--priority", &options.extras.priority, "", between(0, 100));
    const unsigned seed = options.sampling.seed;
    const std::lock_guard lock(mutex_);
    if (draining_) return Admission::kShuttingDown;
    // A request that is alone is always accepted: its texts get slots one after another.
    if (!unfinished_.empty() && std::ssize(unfinished_) + request.texts() > most_) return Admission::kFull;
    for (const int i : request.texts_by_prompt()) {
      unfinished_[++last_] = {reply, i};
      options.sampling.seed = seed + i;
      work_.push_back([=, this, number = last_, prompt = request.prompt(i), score = request.score()] {
        if (!find(number).first) return true;
        if (score && !reply->add_prompt(i, score_prompt_(prompt, *score))) return false;
        scheduler_.submit(number, prompt, options);
        return true;
      });
    }
    wake_.notify_one();
    return Admission::kAccepted;
  }

  void cancel(const std::shared_ptr<CompletionReply>& reply) override {
    const std::lock_guard lock(mutex_);
    std::erase_if(unfinished_, [&](const auto& ticket) {
      const bool has_left = ticket.second.first == reply;
      const auto forget = [=, this] {
        scheduler_.cancel(ticket.first);
        return true;
      };
      if (has_left) work_.push_front(forget);
      return has_left;
    });
    wake_.notify_one();
  }

  void drain() override {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    wake_.notify_one();
  }

  bool pass() override {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return !unfinished_.empty() || !work_.empty() || draining_; });
    if (unfinished_.empty() && work_.empty()) return false;
    // The growing texts wait for one part of a long job, then go on.
    for (bool is_done = true; is_done && !work_.empty();) {
      const auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      is_done = work();
      lock.lock();
      if (!is_done) work_.push_front(work);
    }
    lock.unlock();
    scheduler_.pass();
    return true;
  }

  bool searches() const override { return true; }

  std::vector<ProgramMetric> metrics() const override { return draft_metrics(scheduler_); }

 private:
  using Ticket = std::pair<std::shared_ptr<CompletionReply>, int>;  // a reply, and the number of its text

  /// The ticket of a text, without a reply if its client has left.
  Ticket find(int number, bool remove = false) {
    const std::lock_guard lock(mutex_);
    const Ticket ticket = unfinished_.contains(number) ? unfinished_.at(number) : Ticket();
    if (remove) unfinished_.erase(number);
    return ticket;
  }

  const ScorePrompt score_prompt_;
  const int most_;  // texts in the batch and in the queue together
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int, Ticket> unfinished_;        // tickets of all unfinished texts, by number
  int last_ = 0;                            // the latest of these numbers
  std::deque<std::function<bool()>> work_;  // each returns whether it is done; if not, it runs again later
  bool draining_ = false;
  CachedPrompts engine_;
  TurnScheduler scheduler_;  // used only by the model thread
};

}  // namespace staircase
