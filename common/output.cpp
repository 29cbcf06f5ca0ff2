#include "common/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/error.h"

namespace staircase {
namespace {

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
  }
  return "";
}

/// Writes at once, so that a reader sees each token as it is chosen.
void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error("standard output takes no more text: {}", std::strerror(errno));
  }
}

}  // namespace

Output::Output(const Tokenizer& tokenizer, int eos_token_id, std::vector<int> prompt, Form form)
    : tokenizer_(tokenizer),
      eos_token_id_(eos_token_id),
      prompt_(std::move(prompt)),
      form_(form),
      decoder_(tokenizer),
      last_(Clock::now()) {
  statistics_.prompt_tokens = static_cast<int>(prompt_.size());
  // A person reads the continuation behind its prompt; a pipe gets the new text only.
  if (form_ == Form::kText && isatty(STDOUT_FILENO) != 0) {
    print("\033[2m" + tokenizer_.decode(prompt_) + "\033[0m");
  }
}

OnToken Output::on_token() {
  sequences_.emplace_back();
  last_ = Clock::now();
  return [this](const Token& token) { take(token); };
}

void Output::take(const Token& token) {
  const Clock::time_point now = Clock::now();
  Sequence& sequence = sequences_.back();
  if (sequence.token_ids.empty()) {
    statistics_.prefill_ms += milliseconds(now - last_);
  } else {
    statistics_.decode_ms += milliseconds(now - last_);
    ++statistics_.decode_tokens;
  }
  last_ = now;
  ++statistics_.new_tokens;
  sequence.token_ids.push_back(token.id);

  if (holds_eos_) add_text(decoder_.push(eos_token_id_));
  holds_eos_ = token.id == eos_token_id_;
  if (!holds_eos_) add_text(decoder_.push(token.id));
}

void Output::finish(FinishReason reason) {
  sequences_.back().finish_reason = reason;
  if (holds_eos_ && reason != FinishReason::kEos) add_text(decoder_.push(eos_token_id_));
  holds_eos_ = false;
  add_text(decoder_.finish());
}

void Output::close(std::size_t weight_bytes, std::size_t cache_bytes) {
  statistics_.weight_bytes = weight_bytes;
  statistics_.cache_bytes = cache_bytes;
  if (form_ == Form::kText) {
    print("\n");
    return;
  }
  nlohmann::ordered_json json;
  json["sequences"] = nlohmann::ordered_json::array();
  for (const Sequence& sequence : sequences_) {
    json["sequences"].push_back({{"prompt_token_ids", prompt_},
                                 {"token_ids", sequence.token_ids},
                                 {"text", sequence.text},
                                 {"finish_reason", name(sequence.finish_reason)}});
  }
  json["stats"] = {{"prompt_tokens", statistics_.prompt_tokens},
                   {"new_tokens", statistics_.new_tokens},
                   {"prefill_ms", statistics_.prefill_ms},
                   {"ms_per_token", statistics_.ms_per_token()},
                   {"tokens_per_second", statistics_.tokens_per_second()},
                   {"weight_bytes", weight_bytes},
                   {"cache_bytes", cache_bytes}};
  print(json.dump() + "\n");
}

void Output::add_text(const std::string& text) {
  sequences_.back().text += text;
  if (form_ == Form::kText) print(text);
}

}  // namespace staircase
