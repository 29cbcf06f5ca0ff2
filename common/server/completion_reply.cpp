#include "common/server/completion_reply.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/text/utf8.h"

namespace staircase {

// The keys of an answer come in the order in which OpenAI describes them.
using json = nlohmann::ordered_json;

namespace {

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
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

/// What is known of a text; `part` and `logprobs` are what was not yet sent.
struct CompletionReply::Text {
  StreamDecoder decoder;
  bool holds_eos = false;  // an end-of-text token is text only when the text goes on behind it
  std::string part = {};
  json logprobs = nullptr;
  std::size_t length = 0;  // characters so far
  int tokens = 0;          // new ones
  Clock::time_point first = {}, last = {};
  std::optional<FinishReason> end = {};

  json choice(int index) {
    const json reason = !end ? json() : json(*end == FinishReason::kLength ? "length" : "stop");
    return {{"index", index},
            {"text", std::exchange(part, {})},
            {"logprobs", std::exchange(logprobs, nullptr)},
            {"finish_reason", reason}};
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
      texts_(static_cast<std::size_t>(request_->texts()), Text{StreamDecoder(*model.tokenizer)}),
      growing_(request_->texts()) {
  if (!request_->echo || request_->logprobs) return;
  for (std::size_t i = 0; i < texts_.size(); ++i) {  // nothing has to be computed for it
    Text& text = texts_[i];
    text.part = model.tokenizer->decode(request_->prompts()[i / request_->n]);
    text.length = characters(text.part);
  }
}

CompletionReply::~CompletionReply() = default;

/// An answer with some choices, or a part of one.
std::string CompletionReply::object(json choices, bool with_use) const {
  json object{{"id", id_},
              {"object", "text_completion"},
              {"created", created_},
              {"model", model_.name},
              {"choices", std::move(choices)}};
  if (with_use) {
    std::size_t prompts = 0;
    for (const std::vector<int>& prompt : request_->prompts()) prompts += prompt.size();
    std::size_t completions = 0;
    for (const Text& text : texts_) completions += static_cast<std::size_t>(text.tokens);
    object["usage"] = {{"prompt_tokens", prompts},
                       {"completion_tokens", completions},
                       {"total_tokens", prompts + completions}};
  } else if (request_->tells_use) {
    object["usage"] = nullptr;
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

void CompletionReply::add_prompt(int text, std::vector<Token> tokens) {
  put({.text = text, .is_prompt = true, .tokens = std::move(tokens)});
}

void CompletionReply::add_token(int text, Token token) {
  News news{.text = text};
  news.tokens.push_back(std::move(token));
  put(std::move(news));
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
  std::vector<News> all;
  {
    const std::scoped_lock lock(mutex_);
    all.swap(news_);
  }
  if (has_left_) return;
  std::string parts;  // of a stream: events as the HTML standard has them, section 9.2
  const auto add_part = [&](const std::string& data) { parts += fmt::format("data: {}\n\n", data); };
  for (const News& news : all) {
    read(news);
    Text& text = texts_[static_cast<std::size_t>(news.text)];
    const bool has_news = !text.part.empty() || !text.logprobs.is_null() || text.end;
    if (request_->stream && has_news) add_part(object(json::array({text.choice(news.text)}), false));
  }
  if (!request_->stream) {
    if (growing_ == 0) exchange_->send({.body = whole()});
    return;
  }
  if (growing_ == 0) {
    if (request_->tells_use) add_part(object(json::array(), true));
    add_part("[DONE]");
  }
  begin();
  exchange_->write(parts);
  if (growing_ == 0) exchange_->end_stream();
}

std::string CompletionReply::whole() {
  json choices = json::array();
  for (std::size_t i = 0; i < texts_.size(); ++i) choices.push_back(texts_[i].choice(static_cast<int>(i)));
  return object(std::move(choices), true);
}

void CompletionReply::read(const News& news) {
  Text& text = texts_[static_cast<std::size_t>(news.text)];
  for (const Token& token : news.tokens) {
    std::string added;
    const std::size_t offset = text.length;
    if (token.text) {
      added = text.decoder.push(*token.text);
    } else {
      if (text.holds_eos) added = text.decoder.push(model_.eos_token_id);
      text.holds_eos = token.id == model_.eos_token_id;
      if (!text.holds_eos) added += text.decoder.push(token.id);
    }
    text.length += characters(added);
    text.part += added;
    if (request_->logprobs && token.logprobs) {
      if (text.logprobs.is_null()) {
        text.logprobs = {{"tokens", json::array()},
                         {"token_logprobs", json::array()},
                         {"top_logprobs", json::array()},
                         {"text_offset", json::array()}};
      }
      const auto& [own, likeliest] = *token.logprobs;
      const std::string name = token_text(*model_.tokenizer, token.id);
      json top = json::object();
      for (const auto& [id, logprob] : likeliest) top[token_text(*model_.tokenizer, id)] = logprob;
      if (own) top[name] = *own;
      text.logprobs["tokens"].push_back(name);
      text.logprobs["token_logprobs"].push_back(own ? json(*own) : json());
      text.logprobs["top_logprobs"].push_back(own ? std::move(top) : json());
      text.logprobs["text_offset"].push_back(offset);
    }
    if (news.is_prompt) continue;
    text.last = token.time;
    if (++text.tokens > 1) continue;
    text.first = token.time;
    metrics_.observe("staircase_time_to_first_token_seconds", seconds(token.time - arrival_));
  }
  if (news.is_prompt) text.part += text.decoder.finish();
  if (news.end) {
    if (std::exchange(text.holds_eos, false) && *news.end != FinishReason::kEos) {
      text.part += text.decoder.push(model_.eos_token_id);
    }
    text.part += text.decoder.finish();
    text.end = news.end;
    --growing_;
    metrics_.count("staircase_texts", -1.0);
    metrics_.count("staircase_generated_tokens_total", text.tokens);
    if (text.tokens > 1) {
      metrics_.observe("staircase_time_per_output_token_seconds",
                       seconds(text.last - text.first) / (text.tokens - 1));
    }
  }
}

}  // namespace staircase
