#include "common/server/completion_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/quoted.h"
#include "common/server/reply_text.h"

namespace staircase {

namespace {

/// How many numbers (tokens, log-probabilities) become JSON before other clients have their turn.
constexpr std::size_t kTurn = 4096;

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// The answer in a text: without thoughts and surrounding white space, but with its calls.
std::string answer_of(const NewText& text) {
  static constexpr const char* kSpaces = " \t\r\n";
  const std::size_t begin = std::min(text.text.find_first_not_of(kSpaces), text.text.size());
  std::string answer = text.text.substr(begin, text.text.find_last_not_of(kSpaces) + 1 - begin);
  if (text.calls) {
    for (const CallPart& call : *text.calls) answer += fmt::format("\n{}{}", call.name, call.arguments);
  }
  return answer;
}

}  // namespace

struct CompletionReply::Choice {
  ReplyText text;
  Clock::time_point first = {}, last = {};  // when the model chose its tokens
  std::string whole = {};                   // the choice, once complete
  NewText news{.index = 0};                 // the choice, where texts are ranked
  double sum = 0.0;                         // of the tokens' log-probabilities
};

CompletionReply::CompletionReply(std::string id, std::shared_ptr<const CompletionRequest> request,
                                 const ServedModel& model, std::shared_ptr<Exchange> exchange,
                                 Metrics& metrics, const ReplyForm& form, OnAnswer on_answer)
    : id_(std::move(id)),
      request_(std::move(request)),
      model_(model),
      exchange_(std::move(exchange)),
      metrics_(metrics),
      form_(form),
      on_answer_(std::move(on_answer)),
      created_(static_cast<long long>(std::time(nullptr))),
      growing_(request_->texts()) {
  for (int i = 0; i < request_->texts(); ++i) {
    choices_.push_back({ReplyText(i, *request_, model, form, on_answer_ != nullptr)});
  }
}

CompletionReply::~CompletionReply() = default;

/// An answer consists of this, some choices and `end_of_object`, and so does each part of a stream. The keys
/// follow the order of OpenAI's documentation.
std::string CompletionReply::begin_of_object() const {
  return fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},"choices":[)", id_,
                     form_.object(request_->stream), created_, in_json(model_.name_of(request_->adapter)));
}

std::string CompletionReply::end_of_object(bool with_use) const {
  std::string use;
  if (with_use) {
    std::size_t prompts = 0, completions = 0;
    for (const std::vector<int>& prompt : request_->prompts()) prompts += prompt.size();
    for (const Choice& choice : choices_) completions += static_cast<std::size_t>(choice.text.tokens());
    const auto cached = [&] {
      const std::scoped_lock lock(mutex_);
      return cached_;
    }();
    const std::string details =
        cached ? fmt::format(R"(,"prompt_tokens_details":{{"cached_tokens":{}}})", *cached) : "";
    use = fmt::format(R"(,"usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}{}}})",
                      prompts, completions, prompts + completions, details);
  } else if (request_->include_usage) {
    use = R"(,"usage":null)";
  }
  return "]" + use + "}";
}

void CompletionReply::add_cached(int text, int tokens) {
  if (text % request_->best_of != 0) return;  // only the first text after a prompt counts
  const std::scoped_lock lock(mutex_);
  if (counted_.insert(text).second) cached_ = cached_.value_or(0) + tokens;
}

bool CompletionReply::add_prompt(int text, std::shared_ptr<const std::vector<Token>> tokens) {
  if (tokens == nullptr) return false;
  put({.text = text, .prompt = std::move(tokens)});
  return true;
}

void CompletionReply::add_token(int text, Token token) {
  put({.text = text, .token = std::move(token)});
}

void CompletionReply::end_text(int text, FinishReason reason) {
  put({.text = text, .end = reason});
}

void CompletionReply::begin() {
  if (!request_->stream || std::exchange(has_begun_, true)) return;
  // A line that begins with a colon is a comment.
  exchange_->begin_stream("text/event-stream", ": the text is not there yet\n\n");
}

void CompletionReply::leave() {
  has_left_ = true;
  metrics_.count("staircase_texts", -growing_);
}

void CompletionReply::put(News news) {
  {
    const std::scoped_lock lock(mutex_);
    news_.push_back(std::move(news));
    if (news_.size() > 1) return;  // the server thread is already notified
  }
  exchange_->post([self = shared_from_this()] { self->take(); });
}

void CompletionReply::take() {
  {
    const std::scoped_lock lock(mutex_);
    std::ranges::move(news_, std::back_inserter(unread_));
    news_.clear();
  }
  if (has_left_ || has_ended_) return;
  std::string parts;  // of a stream: events as in the HTML standard, section 9.2
  const auto add_part = [&](const std::string& data) { parts += fmt::format("data: {}\n\n", data); };
  for (std::size_t made = 0; !unread_.empty() && made < kTurn; unread_.pop_front()) {
    const News& news = unread_.front();
    if (const auto fault = news.end && request_->constraint ? request_->constraint->fault() : std::nullopt)
      return fail(*fault, parts);
    read(news);
    made += (news.prompt ? news.prompt->size() : 1) *
            static_cast<std::size_t>(1 + request_->logprobs.value_or(0));
    Choice& choice = choices_[static_cast<std::size_t>(news.text)];
    if (request_->stream && choice.text.has_news()) {
      for (const std::string& part : form_.choices(choice.text.take_news()))
        add_part(begin_of_object() + part + end_of_object(false));
    }
    if (!request_->stream && choice.text.has_ended()) {
      choice.news = choice.text.take_news();
      if (!request_->ranks())
        choice.whole = (choice.news.index > 0 ? "," : "") + form_.choice(std::move(choice.news));
    }
  }
  if (!unread_.empty()) exchange_->post_without_flush([self = shared_from_this()] { self->take(); });
  has_ended_ = growing_ == 0;
  if (!request_->stream) {
    if (has_ended_) send_whole();
    return;
  }
  if (has_ended_) {
    if (request_->include_usage) add_part(begin_of_object() + end_of_object(true));
    add_part("[DONE]");
  }
  begin();
  exchange_->write(parts);
  if (has_ended_) exchange_->end_stream();
}

/// Ends an answer whose texts cannot follow the constraint, so that no client takes it for a valid one.
void CompletionReply::fail(const HttpError& error, const std::string& parts) {
  has_ended_ = true;
  metrics_.count("staircase_texts", -std::exchange(growing_, 0));
  const HttpResponse response = error_response(error);
  if (!request_->stream) return exchange_->send(response);
  begin();
  exchange_->write(parts + fmt::format("data: {}\n\ndata: [DONE]\n\n", response.body));
  exchange_->end_stream();
}

/// The texts of a prompt that the client gets, the best first. A search reports its texts in this order; if
/// it finds fewer than requested, the others have no tokens.
std::vector<CompletionReply::Choice*> CompletionReply::best_of(int prompt) {
  std::vector<Choice*> texts;
  for (int i = 0; i < request_->best_of; ++i)
    texts.push_back(&choices_[static_cast<std::size_t>(prompt * request_->best_of + i)]);
  if (request_->search) {
    const auto missing = std::find_if(texts.begin() + 1, texts.end(), [&](const Choice* choice) {
      return choice->text.tokens() == 0 && request_->max_tokens > 0;
    });
    texts.erase(missing, texts.end());
  } else {
    std::map<std::string, int> votes;  // Wang et al. 2022: self-consistency
    if (request_->votes) {
      for (Choice* const choice : texts) ++votes[answer_of(choice->news)];
      votes.erase("");  // a text without an answer has no vote
      for (Choice* const choice : texts) choice->news.votes = votes[answer_of(choice->news)];
    }
    std::ranges::stable_sort(texts, std::greater<>(), [](const Choice* choice) {
      return std::pair(choice->news.votes, choice->sum / std::max(1, choice->text.tokens()));
    });
  }
  if (std::ssize(texts) > request_->n) texts.resize(static_cast<std::size_t>(request_->n));
  return texts;
}

/// The texts may have many megabytes, so they are moved, not joined.
void CompletionReply::send_whole() {
  HttpResponse response{.body = begin_of_object()};
  if (request_->ranks()) {
    int index = 0;
    for (int prompt = 0; prompt < std::ssize(request_->prompts()); ++prompt) {
      for (Choice* const choice : best_of(prompt)) {
        if (on_answer_) on_answer_(choice->text.shown_ids());
        choice->news.index = index;
        response.more.push_back((index++ > 0 ? "," : "") + form_.choice(std::move(choice->news)));
      }
    }
  } else {
    for (Choice& choice : choices_) response.more.push_back(std::move(choice.whole));
  }
  response.more.push_back(end_of_object(true));
  exchange_->send(std::move(response));
}

void CompletionReply::read(const News& news) {
  Choice& choice = choices_[static_cast<std::size_t>(news.text)];
  if (news.prompt) {
    if (!echo_ || echo_->prompt != news.prompt)
      echo_ = std::make_unique<PromptEcho>(echo_of(news.prompt, *model_.tokenizer, form_));
    choice.text.add_echo(*echo_);
  }
  if (news.token) {
    choice.text.add(*news.token);
    if (news.token->logprobs) choice.sum += news.token->logprobs->own.value_or(0.0f);
    choice.last = news.token->time;
    if (choice.text.tokens() == 1) {
      choice.first = choice.last;
      metrics_.observe("staircase_time_to_first_token_seconds", seconds(choice.first - arrival_));
    }
  }
  if (news.end) end(choice, *news.end);
}

void CompletionReply::end(Choice& choice, FinishReason reason) {
  choice.text.end(reason);
  --growing_;
  const int tokens = choice.text.tokens();
  metrics_.count("staircase_texts", -1.0);
  metrics_.count("staircase_generated_tokens_total", tokens);
  if (tokens > 1) {
    metrics_.observe("staircase_time_per_output_token_seconds",
                     seconds(choice.last - choice.first) / (tokens - 1));
  }
  if (on_answer_ && !request_->ranks()) on_answer_(choice.text.shown_ids());
}

}  // namespace staircase
