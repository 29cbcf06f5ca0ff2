#include "common/program/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/message.h"

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
    case FinishReason::kStop:
      return "stop";
  }
  return "";
}

/// A bar of up to 40 characters, in eighths of one.
std::string bar(float probability) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::lround(probability * 40 * 8));
  std::string line;
  for (int i = 0; i < eighths / 8; ++i) line += "█";
  return line + kEighths[eighths % 8];
}

/// One object a token: its log-probability and those of the likeliest ones in its place.
nlohmann::ordered_json logprobs_json(const std::vector<Token>& tokens, const Tokenizer& tokenizer) {
  const auto entry = [&](int id, std::optional<float> logprob) {
    return nlohmann::ordered_json{{"token_id", id},
                                  {"text", tokenizer.decode(std::span(&id, 1))},
                                  {"logprob", logprob ? nlohmann::ordered_json(*logprob) : nullptr}};
  };
  auto all = nlohmann::ordered_json::array();
  for (const Token& token : tokens) {
    auto& one = all.emplace_back(entry(token.id, token.logprobs->own));
    auto& top = one["top_logprobs"] = nlohmann::ordered_json::array();
    for (const Logprob& other : token.logprobs->likeliest)
      top.push_back(entry(other.token_id, other.logprob));
  }
  return all;
}

/// What a terminal is told before a token from there, for a person to see how the draft model does.
std::string colour_of(Origin origin) {
  switch (origin) {
    case Origin::kModel:
      return "";
    case Origin::kAccepted:
      return "\033[32m";  // green
    case Origin::kCorrected:
      return "\033[31m";  // red
    case Origin::kBonus:
      return "\033[36m";  // cyan
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

std::string quoted(const std::string& text) {
  std::string line = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line += {'\\', c};
    } else if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ') {
      line += fmt::format("\\x{:02x}", static_cast<int>(c));
    } else {
      line += c;
    }
  }
  return line + '"';
}

Output::Output(const Tokenizer& tokenizer, int eos_token_id, Prompts prompts, Form form)
    : tokenizer_(tokenizer),
      eos_token_id_(eos_token_id),
      prompts_(std::move(prompts)),
      form_(form),
      start_(Clock::now()) {
  for (const auto& prompt : prompts_) statistics_.prompt_tokens += static_cast<int>(prompt.size());
}

void Output::echo(int prompt, std::vector<Token> tokens, std::optional<double> perplexity) {
  const std::string number = prompts_.size() > 1 ? fmt::format("prompt {}: ", prompt + 1) : "";
  for (const Token& token : tokens) show_logprobs(token, number);
  echoes_[prompt] = {std::move(tokens), perplexity};
}

OnToken Output::on_token(int prompt) {
  return [take = on_row_token({prompt})](const Token& token) { take(0, token); };
}

OnRowToken Output::on_row_token(const std::vector<int>& prompts) {
  growing_ = sequences_.size();
  for (const int prompt : prompts) {
    const int number = static_cast<int>(sequences_.size()) + 1;
    sequences_.push_back({number, prompt, StreamDecoder(tokenizer_)});
  }
  start_ = Clock::now();
  return [this](int row, const Token& token) {
    take(sequences_[growing_ + static_cast<std::size_t>(row)], token);
  };
}

/// Only one sequence at a time can be printed while it grows, and none that what is shown of its tokens would
/// tear apart.
bool Output::streams(const Sequence& sequence) const {
  return form_ == Form::kText && &sequence == &sequences_[growing_] && sequence.candidates.empty() &&
         sequence.tokens.empty();
}

void Output::print_head(Sequence& sequence) {
  if (std::exchange(sequence.has_head, true)) return;
  if (expected_ > 1) print(fmt::format("{}[{}]\n", sequence.number > 1 ? "\n\n" : "", sequence.number));
  // A person reads the continuation behind its prompt; a pipe gets the new text only, unless it asks.
  const std::string prompt = tokenizer_.decode(prompts_[static_cast<std::size_t>(sequence.prompt)]);
  if (isatty(STDOUT_FILENO) != 0) {
    print("\033[2m" + prompt + "\033[0m");
  } else if (echoes_.contains(sequence.prompt)) {
    print(prompt);
  }
}

void Output::take(Sequence& sequence, const Token& token) {
  sequence.last = token.time;
  if (sequence.token_ids.empty()) sequence.first = sequence.last;
  ++statistics_.new_tokens;
  sequence.token_ids.push_back(token.id);
  if (!token.candidates.empty()) show(sequence, token);
  if (token.logprobs) {
    const bool alone = sequences_.size() - growing_ == 1;
    show_logprobs(token, alone ? "" : fmt::format("[{}] ", sequence.number));
    sequence.tokens.push_back(token);
  }

  if (token.text) {
    add_text(sequence, sequence.decoder.push(*token.text), token.origin);
    return;
  }
  if (sequence.holds_eos) add_text(sequence, sequence.decoder.push(eos_token_id_));
  sequence.holds_eos = token.id == eos_token_id_;
  if (!sequence.holds_eos) add_text(sequence, sequence.decoder.push(token.id), token.origin);
}

void Output::finish(FinishReason reason, const CacheUse& cache) {
  Generation generation;
  generation.finish_reason = reason;
  finish(std::vector<Generation>{generation}, cache);
}

void Output::finish(const std::vector<Generation>& rows, const CacheUse& cache) {
  Clock::time_point first = start_, last = start_;  // when all had begun, when none went on
  for (std::size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = sequences_[growing_ + row];
    end(sequence, rows[row].finish_reason);
    sequence.score = rows[row].score;
    if (sequence.token_ids.empty()) continue;
    first = std::max(first, sequence.first);
    last = std::max(last, sequence.last);
    statistics_.row_ms += milliseconds(sequence.last - sequence.first);
    statistics_.decode_tokens += static_cast<int>(sequence.token_ids.size()) - 1;
  }
  statistics_.prefill_ms += milliseconds(first - start_);
  statistics_.decode_ms += milliseconds(last - first);
  statistics_.cache.bytes = std::max(statistics_.cache.bytes, cache.bytes);
  statistics_.cache.allocated += cache.allocated;
  statistics_.cache.copied += cache.copied;
}

void Output::end(Sequence& sequence, FinishReason reason) {
  sequence.finish_reason = reason;
  if (sequence.holds_eos && reason != FinishReason::kEos) {
    add_text(sequence, sequence.decoder.push(eos_token_id_));
  }
  sequence.holds_eos = false;
  add_text(sequence, sequence.decoder.finish());
  if (form_ == Form::kJson) return;
  // What was not printed while it grew.
  print_head(sequence);
  if (!streams(sequence)) print(sequence.text);
}

void Output::close(std::size_t weight_bytes) {
  statistics_.weight_bytes = weight_bytes;
  if (form_ == Form::kText) {
    if (!sequences_.empty()) print("\n");
    return;
  }
  nlohmann::ordered_json json;
  json["sequences"] = nlohmann::ordered_json::array();
  for (const Sequence& sequence : sequences_) {
    json["sequences"].push_back({{"prompt_token_ids", prompts_[static_cast<std::size_t>(sequence.prompt)]},
                                 {"token_ids", sequence.token_ids},
                                 {"text", sequence.text},
                                 {"finish_reason", name(sequence.finish_reason)}});
    auto& object = json["sequences"].back();
    if (sequence.score) object["score"] = *sequence.score;
    if (const auto echo = echoes_.find(sequence.prompt); echo != echoes_.end()) {
      const auto& [tokens, perplexity] = echo->second;
      object["prompt_logprobs"] = logprobs_json(tokens, tokenizer_);
      object["perplexity"] = perplexity ? nlohmann::ordered_json(*perplexity) : nullptr;
    }
    if (!sequence.tokens.empty()) object["logprobs"] = logprobs_json(sequence.tokens, tokenizer_);
    if (sequence.candidates.empty()) continue;
    auto& all = object["candidates"] = nlohmann::ordered_json::array();
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
  for (const auto& [name, value] : more_statistics_) json["stats"][name] = value;
  print(json.dump() + "\n");
}

void Output::add_text(Sequence& sequence, const std::string& text, Origin origin) {
  sequence.text += text;
  if (!streams(sequence)) return;
  print_head(sequence);
  const std::string colour = isatty(STDOUT_FILENO) != 0 ? colour_of(origin) : "";
  print(colour.empty() ? text : colour + text + "\033[0m");
}

void Output::show(Sequence& sequence, const Token& token) {
  sequence.candidates.push_back(token.candidates);
  if (form_ != Form::kText) return;
  const bool alone = sequences_.size() - growing_ == 1;
  std::string lines = alone ? "" : fmt::format("[{}]\n", sequence.number);
  for (const Candidate& candidate : token.candidates) {
    const bool chosen = candidate.token_id == token.id;
    const std::string text = quoted(tokenizer_.decode(std::span(&candidate.token_id, 1)));
    lines += fmt::format("{} {:<16} {:5.1f} % {}\n", chosen ? ">" : " ", text, 100.0f * candidate.probability,
                         bar(candidate.probability));
  }
  say(lines);
}

void Output::show_logprobs(const Token& token, const std::string& number) {
  if (form_ != Form::kText) return;
  const auto text = [&](int id) { return quoted(tokenizer_.decode(std::span(&id, 1))); };
  const Logprobs& logprobs = *token.logprobs;
  std::string line = fmt::format("{}{:<16} {:>8}", number, text(token.id),
                                 logprobs.own ? fmt::format("{:.4f}", *logprobs.own) : "-");
  if (!logprobs.likeliest.empty()) line += "  |";
  for (const Logprob& other : logprobs.likeliest) {
    line += fmt::format("  {} {:.4f}", text(other.token_id), other.logprob);
  }
  say(line);
}

}  // namespace staircase
