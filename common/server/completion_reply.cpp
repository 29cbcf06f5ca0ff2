#include "common/server/completion_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

#include "common/base/quoted.h"
#include "common/decoding/text_stream.h"
#include "common/server/reasoning.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

/// Numbers (tokens and log-probabilities) that become JSON before other clients have their turn.
constexpr std::size_t kTurn = 4096;

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// The number of characters in a valid text.
std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

}  // namespace

/// Counts the characters of bytes that arrive in pieces.
class CharacterCount {
 public:
  explicit CharacterCount(std::size_t complete = 0) : complete_(complete) {}

  /// Adds the bytes of a token. Returns the number of characters before it: a token may begin within one.
  std::size_t add(std::string_view bytes) {
    if (bytes.empty()) return length();
    push(bytes.substr(0, 1));
    const std::size_t first = length() - 1;
    push(bytes.substr(1));
    return first;
  }

  std::size_t complete() const { return complete_; }

  /// Including a character whose last bytes are missing.
  std::size_t length() const { return complete_ + !unfinished_.empty(); }

 private:
  void push(std::string_view bytes) {
    unfinished_ += bytes;
    complete_ += characters(take_complete_utf8(unfinished_));
  }

  std::size_t complete_;
  std::string unfinished_ = {};
};

/// A prompt as the beginning of an answer.
struct CompletionReply::Echo {
  std::shared_ptr<const std::vector<Token>> prompt;
  std::string text = {};
  LogprobJson logprobs = {};
};

/// The state of a text; `part` and `logprobs` have not been sent yet.
struct CompletionReply::Text {
  int index;
  TextStream stream;
  CharacterCount count{};  // of all tokens, including those that a stop sequence may cut off
  std::optional<ReasoningSplit> split = {};
  std::string part = {};
  LogprobJson logprobs = {};
  std::size_t shown = 0;                                // characters of all parts
  std::deque<std::pair<Token, std::size_t>> held = {};  // tokens whose text is withheld, and their offsets
  std::optional<Token> pending_end = {};                // an end-of-text token that may be text
  std::string whole = {};                               // the choice, once complete
  int tokens = 0;                                       // new ones
  bool begins = true;                                   // nothing of it was sent
  std::string answer = {};                              // the whole text shown so far, and its tokens, if
                                                        // they are needed
  std::vector<int> ids = {};                            // to be passed on
  Clock::time_point first = {}, last = {};
  std::optional<FinishReason> end = {};

  void show(const std::string& added) {
    shown += characters(added);
    part += added;
  }
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
    texts_.push_back({.index = i, .stream = TextStream(*model.tokenizer, model.ends)});
    if (request_->within_reasoning) texts_.back().split.emplace(*request_->within_reasoning);
    // Without log-probabilities, nothing has to be computed for it.
    if (request_->echo && !request_->logprobs)
      texts_.back().show(model.tokenizer->decode(request_->prompt(i)));
  }
}

CompletionReply::~CompletionReply() = default;

/// An answer is this, some choices, and `end_of_object`; so is each part of a stream. The keys have the order
/// of OpenAI's documentation.
std::string CompletionReply::begin_of_object() const {
  return fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},"choices":[)", id_,
                     form_.object(request_->stream), created_, in_json(model_.name));
}

std::string CompletionReply::end_of_object(bool with_use) const {
  std::string use;
  if (with_use) {
    std::size_t prompts = 0, completions = 0;
    for (const std::vector<int>& prompt : request_->prompts()) prompts += prompt.size();
    for (const Text& text : texts_) completions += static_cast<std::size_t>(text.tokens);
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

/// The part of a text that was not sent yet.
NewText CompletionReply::take_new(Text& text) const {
  NewText news{.index = text.index,
               .text = std::exchange(text.part, {}),
               .logprobs = std::exchange(text.logprobs, {}),
               .begins = std::exchange(text.begins, false),
               .end = text.end};
  if (text.split) {
    SplitText parts = text.split->push(news.text);
    if (text.end) {
      const SplitText rest = text.split->finish();
      parts = {parts.reasoning + rest.reasoning, parts.content + rest.content};
    }
    news.text = std::move(parts.content);
    news.reasoning = std::move(parts.reasoning);
  }
  return news;
}

void CompletionReply::add_cached(int text, int tokens) {
  if (text % request_->n != 0) return;  // the first of the texts after a prompt counts
  const std::scoped_lock lock(mutex_);
  cached_ = cached_.value_or(0) + tokens;
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
    read(news);
    made += (news.prompt ? news.prompt->size() : 1) *
            static_cast<std::size_t>(1 + request_->logprobs.value_or(0));
    Text& text = texts_[static_cast<std::size_t>(news.text)];
    const bool has_news = !text.part.empty() || !text.logprobs.tokens.empty() || text.end;
    if (request_->stream && has_news) {
      for (const std::string& choice : form_.choices(take_new(text)))
        add_part(begin_of_object() + choice + end_of_object(false));
    }
    if (!request_->stream && text.end) {
      text.whole = (text.index > 0 ? "," : "") + form_.choice(take_new(text));
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

/// The texts may be many megabytes: they are moved, not joined.
void CompletionReply::send_whole() {
  HttpResponse response{.body = begin_of_object()};
  for (Text& text : texts_) response.more.push_back(std::move(text.whole));
  response.more.push_back(end_of_object(true));
  exchange_->send(std::move(response));
}

void CompletionReply::read(const News& news) {
  Text& text = texts_[static_cast<std::size_t>(news.text)];
  if (news.prompt) add_echo(text, news.prompt);
  if (news.token) add_new(text, *news.token);
  if (news.end) end(text, *news.end);
}

void CompletionReply::add_echo(Text& text, const std::shared_ptr<const std::vector<Token>>& prompt) {
  if (!echo_ || echo_->prompt != prompt) {
    echo_ = std::make_unique<Echo>(Echo{prompt});
    CharacterCount count;
    std::vector<int> ids;
    for (const Token& token : *prompt) {
      echo_->logprobs.add(
          form_.format(*model_.tokenizer, token, count.add(model_.tokenizer->bytes(token.id))));
      ids.push_back(token.id);
    }
    echo_->text = model_.tokenizer->decode(ids);
  }
  text.show(echo_->text);
  text.count = CharacterCount(text.shown);
  text.logprobs.add(echo_->logprobs);
}

void CompletionReply::add_new(Text& text, const Token& token) {
  if (const std::optional<int> end = text.stream.waiting_end()) {
    const std::size_t offset = text.count.length();
    text.count.add(model_.tokenizer->bytes(*end));
    if (const auto pending = std::exchange(text.pending_end, {})) text.held.emplace_back(*pending, offset);
  }
  show(text, text.stream.push(token));
  const bool is_end = text.stream.waiting_end().has_value();
  const std::size_t offset = is_end ? text.count.length() : text.count.add(model_.tokenizer->bytes(token.id));
  if (on_answer_) text.ids.push_back(token.id);
  // A token is sent with its text: until then a stop sequence may still cut it off.
  if (request_->logprobs && token.logprobs) {
    if (is_end && !form_.formats_end()) {
      text.pending_end = token;
    } else {
      text.held.emplace_back(token, offset);
    }
  }
  while (!text.held.empty() &&
         (text.held.front().second < text.shown || text.count.complete() <= text.shown)) {
    add_logprobs(text, text.held.front().second);
    text.held.pop_front();
  }
  text.last = token.time;
  if (++text.tokens > 1) return;
  text.first = token.time;
  metrics_.observe("staircase_time_to_first_token_seconds", seconds(token.time - arrival_));
}

/// The first of the withheld ones.
void CompletionReply::add_logprobs(Text& text, std::size_t offset) const {
  text.logprobs.add(form_.format(*model_.tokenizer, text.held.front().first, offset));
}

void CompletionReply::show(Text& text, const std::string& added) const {
  text.show(added);
  if (on_answer_) text.answer += added;
}

void CompletionReply::end(Text& text, FinishReason reason) {
  if (text.pending_end && reason != FinishReason::kEos)
    text.held.emplace_back(*text.pending_end, text.count.length());
  show(text, text.stream.finish(reason));
  for (; !text.held.empty(); text.held.pop_front())
    add_logprobs(text, std::min(text.held.front().second, text.shown));
  text.end = reason;
  --growing_;
  metrics_.count("staircase_texts", -1.0);
  metrics_.count("staircase_generated_tokens_total", text.tokens);
  if (text.tokens > 1) {
    metrics_.observe("staircase_time_per_output_token_seconds",
                     seconds(text.last - text.first) / (text.tokens - 1));
  }
  if (on_answer_) hand_on(text);
}

/// A stop sequence may end within a token.
void CompletionReply::hand_on(const Text& text) const {
  std::vector<int> shown;
  std::size_t bytes = 0;
  for (const int id : text.ids) {
    const std::string_view own = model_.tokenizer->bytes(id);
    if (text.answer.compare(bytes, own.size(), own) != 0) break;
    bytes += own.size();
    shown.push_back(id);
  }
  on_answer_(shown);
}

}  // namespace staircase
