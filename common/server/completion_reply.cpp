#include "common/server/completion_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/text/utf8.h"

namespace staircase {

namespace {

/// Numbers (tokens and log-probabilities) that become JSON before other clients have their turn.
constexpr std::size_t kTurn = 4096;

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// A text in JSON, with quotation marks.
std::string in_json(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// A token as a text. Bytes that are no characters by themselves are spelled out as OpenAI does:
/// "bytes:\xe2\x80".
std::string token_text(const Tokenizer& tokenizer, int id) {
  const std::string bytes(tokenizer.bytes(id));
  if (to_valid_utf8(bytes) == bytes) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// How many characters a valid text has.
std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

}  // namespace

/// Characters of bytes that come in pieces.
class CharacterCount {
 public:
  explicit CharacterCount(std::size_t complete = 0) : complete_(complete) {}

  /// Adds the bytes of a token. Returns how many characters stand in front of it: a token may begin within
  /// one.
  std::size_t add(std::string_view bytes) {
    if (bytes.empty()) return length();
    push(bytes.substr(0, 1));
    const std::size_t first = length() - 1;
    push(bytes.substr(1));
    return first;
  }

  std::size_t complete() const { return complete_; }

  /// With a character whose last bytes are missing.
  std::size_t length() const { return complete_ + !unfinished_.empty(); }

 private:
  void push(std::string_view bytes) {
    unfinished_ += bytes;
    complete_ += characters(take_complete_utf8(unfinished_));
  }

  std::size_t complete_;
  std::string unfinished_ = {};
};

/// Lists in JSON without their brackets.
struct CompletionReply::Told {
  std::string tokens = {}, token_logprobs = {}, top_logprobs = {}, text_offset = {};

  void add(const Told& more) {
    const auto add = [](std::string& list, const std::string& rest) {
      if (!list.empty() && !rest.empty()) list += ',';
      list += rest;
    };
    add(tokens, more.tokens);
    add(token_logprobs, more.token_logprobs);
    add(top_logprobs, more.top_logprobs);
    add(text_offset, more.text_offset);
  }
};

/// A prompt as the beginning of an answer.
struct CompletionReply::Echo {
  std::shared_ptr<const std::vector<Token>> prompt;
  std::string text = {};
  Told told = {};
};

/// What is known of a text; `part` and `told` are what was not yet sent.
struct CompletionReply::Text {
  int index;
  StreamDecoder decoder;
  CharacterCount count{};            // of all tokens, also of those that a stop sequence may cut off
  std::optional<int> held_end = {};  // an end-of-text token is text only when the text goes on after it
  std::string part = {};
  Told told = {};
  std::size_t shown = 0;                                // characters of all parts
  std::deque<std::pair<Token, std::size_t>> held = {};  // tokens whose text is held back, and their offsets
  std::string whole = {};                               // the choice, when it is complete
  int tokens = 0;                                       // new ones
  Clock::time_point first = {}, last = {};
  std::optional<FinishReason> end = {};

  void show(const std::string& added) {
    shown += characters(added);
    part += added;
  }
};

CompletionReply::CompletionReply(std::string id, std::shared_ptr<const CompletionRequest> request,
                                 const ServedModel& model, std::shared_ptr<Exchange> exchange,
                                 Metrics& metrics)
    : id_(std::move(id)),
      request_(std::move(request)),
      model_(model),
      exchange_(std::move(exchange)),
      metrics_(metrics),
      created_(static_cast<long long>(std::time(nullptr))),
      growing_(request_->texts()) {
  for (int i = 0; i < request_->texts(); ++i) {
    texts_.push_back({.index = i, .decoder = StreamDecoder(*model.tokenizer)});
    // Without log-probabilities nothing has to be computed for it.
    if (request_->echo && !request_->logprobs)
      texts_.back().show(model.tokenizer->decode(request_->prompt(i)));
  }
}

CompletionReply::~CompletionReply() = default;

/// An answer is this, some choices, and `end_of_object`; so is each part of a stream. The keys come in the
/// order in which OpenAI describes them.
std::string CompletionReply::begin_of_object() const {
  return fmt::format(R"({{"id":"{}","object":"text_completion","created":{},"model":{},"choices":[)", id_,
                     created_, in_json(model_.name));
}

std::string CompletionReply::end_of_object(bool with_use) const {
  std::string use;
  if (with_use) {
    std::size_t prompts = 0, completions = 0;
    for (const std::vector<int>& prompt : request_->prompts()) prompts += prompt.size();
    for (const Text& text : texts_) completions += static_cast<std::size_t>(text.tokens);
    use = fmt::format(R"(,"usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}})", prompts,
                      completions, prompts + completions);
  } else if (request_->tells_use) {
    use = R"(,"usage":null)";
  }
  return "]" + use + "}";
}

/// What was not yet sent of a text, behind a separator.
std::string CompletionReply::choice(Text& text, const char* separator) const {
  const char* const reason = !text.end                            ? "null"
                             : *text.end == FinishReason::kLength ? R"("length")"
                                                                  : R"("stop")";
  const Told told = std::exchange(text.told, {});
  const std::string logprobs =
      told.tokens.empty()
          ? "null"
          : fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                        told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset);
  return fmt::format(R"({}{{"index":{},"text":{},"logprobs":{},"finish_reason":{}}})", separator, text.index,
                     in_json(std::exchange(text.part, {})), logprobs, reason);
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
  // A line with a colon in front is a comment.
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
    if (news_.size() > 1) return;  // the server's thread knows
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
  std::string parts;  // of a stream: events as the HTML standard has them, section 9.2
  const auto add_part = [&](const std::string& data) { parts += fmt::format("data: {}\n\n", data); };
  for (std::size_t made = 0; !unread_.empty() && made < kTurn; unread_.pop_front()) {
    const News& news = unread_.front();
    read(news);
    made += (news.prompt ? news.prompt->size() : 1) *
            static_cast<std::size_t>(1 + request_->logprobs.value_or(0));
    Text& text = texts_[static_cast<std::size_t>(news.text)];
    const bool has_news = !text.part.empty() || !text.told.tokens.empty() || text.end;
    if (request_->stream && has_news) add_part(begin_of_object() + choice(text) + end_of_object(false));
    if (!request_->stream && text.end) text.whole = choice(text, text.index > 0 ? "," : "");
  }
  if (!unread_.empty()) exchange_->post_at_once([self = shared_from_this()] { self->take(); });
  has_ended_ = growing_ == 0;
  if (!request_->stream) {
    if (has_ended_) send_whole();
    return;
  }
  if (has_ended_) {
    if (request_->tells_use) add_part(begin_of_object() + end_of_object(true));
    add_part("[DONE]");
  }
  begin();
  exchange_->write(parts);
  if (has_ended_) exchange_->end_stream();
}

/// The texts may be many megabytes: they are handed over, not joined.
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

void CompletionReply::tell(Told& told, const Token& token, std::size_t offset) const {
  const auto& [own, likeliest] = *token.logprobs;
  const std::string name = in_json(token_text(*model_.tokenizer, token.id));
  std::vector<std::pair<std::string, float>> top;  // two tokens may have one text
  const auto add = [&](std::string text, float logprob) {
    const auto place = std::ranges::find(top, text, &std::pair<std::string, float>::first);
    place == top.end() ? top.emplace_back(std::move(text), logprob) : * place = {std::move(text), logprob};
  };
  for (const auto& [id, logprob] : likeliest) add(in_json(token_text(*model_.tokenizer, id)), logprob);
  if (own) add(name, *own);
  std::string list;
  for (const auto& [text, logprob] : top)
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", text, logprob);
  told.add({.tokens = name,
            .token_logprobs = own ? fmt::format("{}", *own) : "null",
            .top_logprobs = own ? "{" + list + "}" : "null",
            .text_offset = fmt::format("{}", offset)});
}

void CompletionReply::add_echo(Text& text, const std::shared_ptr<const std::vector<Token>>& prompt) {
  if (!echo_ || echo_->prompt != prompt) {
    echo_ = std::make_unique<Echo>(Echo{prompt});
    CharacterCount count;
    std::vector<int> ids;
    for (const Token& token : *prompt) {
      tell(echo_->told, token, count.add(model_.tokenizer->bytes(token.id)));
      ids.push_back(token.id);
    }
    echo_->text = model_.tokenizer->decode(ids);
  }
  text.show(echo_->text);
  text.count = CharacterCount(text.shown);
  text.told.add(echo_->told);
}

void CompletionReply::add_new(Text& text, const Token& token) {
  const std::string_view bytes = model_.tokenizer->bytes(token.id);
  const bool is_end = model_.ends.contains(token.id);
  if (const std::optional<int> held = std::exchange(text.held_end, {})) {
    text.count.add(model_.tokenizer->bytes(*held));
    if (!token.text) text.show(text.decoder.push(*held));
  }
  if (is_end) text.held_end = token.id;
  const std::size_t offset = is_end ? text.count.length() : text.count.add(bytes);
  if (token.text) {
    text.show(text.decoder.push(*token.text));
  } else if (!is_end) {
    text.show(text.decoder.push(bytes));
  }
  // A token is told with its text: until then a stop sequence may still cut it off.
  if (request_->logprobs && token.logprobs) text.held.emplace_back(token, offset);
  while (!text.held.empty() &&
         (text.held.front().second < text.shown || text.count.complete() <= text.shown)) {
    tell(text.told, text.held.front().first, text.held.front().second);
    text.held.pop_front();
  }
  text.last = token.time;
  if (++text.tokens > 1) return;
  text.first = token.time;
  metrics_.observe("staircase_time_to_first_token_seconds", seconds(token.time - arrival_));
}

void CompletionReply::end(Text& text, FinishReason reason) {
  const std::optional<int> held = std::exchange(text.held_end, {});
  if (held && reason != FinishReason::kEos) text.show(text.decoder.push(*held));
  text.show(text.decoder.finish());
  for (const auto& [token, offset] : text.held) tell(text.told, token, std::min(offset, text.shown));
  text.held.clear();
  text.end = reason;
  --growing_;
  metrics_.count("staircase_texts", -1.0);
  metrics_.count("staircase_generated_tokens_total", text.tokens);
  if (text.tokens > 1) {
    metrics_.observe("staircase_time_per_output_token_seconds",
                     seconds(text.last - text.first) / (text.tokens - 1));
  }
}

}  // namespace staircase
