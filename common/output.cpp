#include "common/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/message.h"

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

/// A token's text on one line, in quotes.
std::string quoted(const std::string& text) {
  std::string line = "\"";
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ') {
      line += fmt::format("\\x{:02x}", static_cast<int>(c));
    } else {
      line += c;
    }
  }
  return line + '"';
}

/// A bar of up to 40 characters, in eighths of one.
std::string bar(float probability) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::lround(probability * 40 * 8));
  std::string line;
  for (int i = 0; i < eighths / 8; ++i) line += "█";
  return line + kEighths[eighths % 8];
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
}

OnToken Output::on_token() {
  sequences_.emplace_back();
  if (form_ == Form::kText) {
    if (expected_ > 1) print(fmt::format("{}[{}]\n", sequences_.size() > 1 ? "\n\n" : "", sequences_.size()));
    // A person reads the continuation behind its prompt; a pipe gets the new text only.
    if (isatty(STDOUT_FILENO) != 0) print("\033[2m" + tokenizer_.decode(prompt_) + "\033[0m");
  }
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
  if (!token.candidates.empty()) show(token);

  if (holds_eos_) add_text(decoder_.push(eos_token_id_));
  holds_eos_ = token.id == eos_token_id_;
  if (!holds_eos_) add_text(decoder_.push(token.id));
}

void Output::finish(FinishReason reason, const CacheUse& cache) {
  statistics_.cache.bytes = std::max(statistics_.cache.bytes, cache.bytes);
  statistics_.cache.allocated += cache.allocated;
  statistics_.cache.copied += cache.copied;
  sequences_.back().finish_reason = reason;
  if (holds_eos_ && reason != FinishReason::kEos) add_text(decoder_.push(eos_token_id_));
  holds_eos_ = false;
  add_text(decoder_.finish());
  // The bars of the candidates would tear the text apart: it waits for the end.
  if (form_ == Form::kText && !sequences_.back().candidates.empty()) print(sequences_.back().text);
}

void Output::close(std::size_t weight_bytes) {
  statistics_.weight_bytes = weight_bytes;
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
    if (sequence.candidates.empty()) continue;
    auto& all = json["sequences"].back()["candidates"] = nlohmann::ordered_json::array();
    for (const std::vector<Candidate>& candidates : sequence.candidates) {
      auto& one = all.emplace_back(nlohmann::ordered_json::array());
      for (const Candidate& candidate : candidates) {
        one.push_back({{"token_id", candidate.token_id},
                       {"text", tokenizer_.decode(std::span(&candidate.token_id, 1))},
                       {"probability", candidate.probability}});
      }
    }
  }
  json["stats"] = {{"prompt_tokens", statistics_.prompt_tokens},
                   {"new_tokens", statistics_.new_tokens},
                   {"prefill_ms", statistics_.prefill_ms},
                   {"ms_per_token", statistics_.ms_per_token()},
                   {"tokens_per_second", statistics_.tokens_per_second()},
                   {"weight_bytes", weight_bytes},
                   {"cache_bytes", statistics_.cache.bytes},
                   {"cache_allocated_bytes", statistics_.cache.allocated},
                   {"cache_copied_bytes", statistics_.cache.copied}};
  print(json.dump() + "\n");
}

void Output::add_text(const std::string& text) {
  sequences_.back().text += text;
  if (form_ == Form::kText && sequences_.back().candidates.empty()) print(text);
}

void Output::show(const Token& token) {
  sequences_.back().candidates.push_back(token.candidates);
  if (form_ != Form::kText) return;
  std::string lines;
  for (const Candidate& candidate : token.candidates) {
    const bool chosen = candidate.token_id == token.id;
    const std::string text = quoted(tokenizer_.decode(std::span(&candidate.token_id, 1)));
    lines += fmt::format("{} {:<16} {:5.1f} % {}\n", chosen ? ">" : " ", text, 100.0f * candidate.probability,
                         bar(candidate.probability));
  }
  say(lines);
}

}  // namespace staircase
