#include "common/server/reply_text.h"

#include <algorithm>

#include "common/text/utf8.h"

namespace staircase {

namespace {

/// The number of characters in a valid text.
std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

}  // namespace

std::size_t CharacterCount::add(std::string_view bytes) {
  if (bytes.empty()) return length();
  push(bytes.substr(0, 1));
  const std::size_t first = length() - 1;
  push(bytes.substr(1));
  return first;
}

void CharacterCount::push(std::string_view bytes) {
  unfinished_ += bytes;
  complete_ += characters(take_complete_utf8(unfinished_));
}

PromptEcho echo_of(std::shared_ptr<const std::vector<Token>> prompt, const Tokenizer& tokenizer,
                   const ReplyForm& form) {
  PromptEcho echo{std::move(prompt)};
  CharacterCount count;
  std::vector<int> ids;
  for (const Token& token : *echo.prompt) {
    echo.logprobs.add(form.format(tokenizer, token, count.add(tokenizer.bytes(token.id))));
    ids.push_back(token.id);
  }
  echo.text = tokenizer.decode(ids);
  return echo;
}

ReplyText::ReplyText(int index, const CompletionRequest& request, const ServedModel& model,
                     const ReplyForm& form, bool keeps_ids)
    : index_(index),
      tokenizer_(*model.tokenizer),
      form_(form),
      has_logprobs_(request.logprobs.has_value()),
      keeps_ids_(keeps_ids),
      stream_(*model.tokenizer, model.ends) {
  if (request.within_reasoning) split_.emplace(*request.within_reasoning);
  if (request.calls) calls_.emplace(*request.calls);
  if (!request.echo || has_logprobs_) return;
  // Without log-probabilities, nothing has to be computed for the prompt.
  part_ = tokenizer_.decode(request.prompt(index));
  shown_ = characters(part_);
}

void ReplyText::add_echo(const PromptEcho& echo) {
  part_ += echo.text;
  shown_ += characters(echo.text);
  count_ = CharacterCount(shown_);
  logprobs_.add(echo.logprobs);
}

void ReplyText::add(const Token& token) {
  if (const std::optional<int> end = stream_.waiting_end()) {
    const std::size_t offset = count_.length();
    count_.add(tokenizer_.bytes(*end));
    if (const auto pending = std::exchange(pending_end_, {})) held_.emplace_back(*pending, offset);
  }
  show(stream_.push(token));
  const bool is_end = stream_.waiting_end().has_value();
  const std::size_t offset = is_end ? count_.length() : count_.add(tokenizer_.bytes(token.id));
  if (keeps_ids_) ids_.push_back(token.id);
  // A token is sent together with its text, because a stop sequence may cut it off until then.
  if (has_logprobs_ && token.logprobs) {
    if (is_end && !form_.formats_end()) {
      pending_end_ = token;
    } else {
      held_.emplace_back(token, offset);
    }
  }
  while (!held_.empty() && (held_.front().second < shown_ || count_.complete() <= shown_)) {
    add_first_held(held_.front().second);
  }
  ++tokens_;
}

void ReplyText::end(FinishReason reason) {
  if (pending_end_ && reason != FinishReason::kEos) held_.emplace_back(*pending_end_, count_.length());
  show(stream_.finish(reason));
  while (!held_.empty()) add_first_held(std::min(held_.front().second, shown_));
  end_ = reason;
}

NewText ReplyText::take_news() {
  NewText news{.index = index_,
               .text = std::exchange(part_, {}),
               .logprobs = std::exchange(logprobs_, {}),
               .begins = std::exchange(begins_, false),
               .end = end_};
  if (split_) {
    SplitText parts = split_->push(news.text);
    if (end_) {
      const SplitText rest = split_->finish();
      parts = {parts.reasoning + rest.reasoning, parts.content + rest.content};
    }
    news.text = std::move(parts.content);
    news.reasoning = std::move(parts.reasoning);
  }
  if (calls_) {
    SplitCalls parts = calls_->push(news.text);
    if (end_) parts.content += calls_->finish();
    news.text = std::move(parts.content);
    news.calls = std::move(parts.calls);
    news.has_called = calls_->calls();
  }
  return news;
}

std::vector<int> ReplyText::shown_ids() const {
  std::vector<int> shown;
  std::size_t bytes = 0;
  for (const int id : ids_) {
    const std::string_view own = tokenizer_.bytes(id);
    if (answer_.compare(bytes, own.size(), own) != 0) break;
    bytes += own.size();
    shown.push_back(id);
  }
  return shown;
}

/// Shows text that the model wrote.
void ReplyText::show(const std::string& added) {
  part_ += added;
  shown_ += characters(added);
  if (keeps_ids_) answer_ += added;
}

void ReplyText::add_first_held(std::size_t offset) {
  logprobs_.add(form_.format(tokenizer_, held_.front().first, offset));
  held_.pop_front();
}

}  // namespace staircase
