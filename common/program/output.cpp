#include "common/program/output.h"

#include <algorithm>
#include <utility>

#include "common/program/json_output.h"
#include "common/program/standard_output.h"

namespace staircase {
namespace {

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

Output::Output(const Tokenizer& tokenizer, const EndTokens& ends, Prompts prompts, Form form,
               TraceFile* trace)
    : tokenizer_(tokenizer),
      ends_(ends),
      form_(form),
      trace_(trace),
      transcript_{.prompts = std::move(prompts)},
      terminal_(transcript_, tokenizer),
      start_(Clock::now()) {
  for (const auto& prompt : transcript_.prompts) {
    transcript_.statistics.prompt_tokens += static_cast<int>(prompt.size());
  }
}

Sequence& Output::sequence(std::size_t row) {
  return transcript_.sequences[transcript_.sequences.size() - growing_.size() + row];
}

void Output::echo(int prompt, std::vector<Token> tokens, std::optional<double> perplexity) {
  const Echo& echo = transcript_.echoes[prompt] = {std::move(tokens), perplexity};
  if (form_ == Form::kText) terminal_.show(prompt, echo);
}

OnToken Output::begin(int prompt) {
  return [take = begin_texts_of(prompt, 1)](const Token& token) { take(0, token); };
}

OnRowToken Output::begin_texts(int texts, int copies) {
  expect(texts);
  std::vector<int> prompts;
  for (int i = 0; i < texts; ++i) prompts.push_back(i / copies);
  return begin_all(prompts);
}

OnRowToken Output::begin_texts_of(int prompt, int texts) {
  return begin_all(std::vector<int>(texts, prompt));
}

/// Begins sequences; row i continues prompt number prompts[i].
OnRowToken Output::begin_all(const std::vector<int>& prompts) {
  growing_.assign(prompts.size(), TextStream(tokenizer_, ends_));
  for (const int prompt : prompts) {
    const int number = static_cast<int>(transcript_.sequences.size()) + 1;
    transcript_.sequences.push_back({.number = number, .prompt = prompt});
    if (trace_ != nullptr) trace_->begin(number, prompt);
  }
  terminal_.begin(prompts.size());
  start_ = Clock::now();
  return [this](int row, const Token& token) { take(static_cast<std::size_t>(row), token); };
}

void Output::take(std::size_t row, const Token& token) {
  Sequence& sequence = this->sequence(row);
  sequence.last = token.time;
  if (sequence.token_ids.empty()) sequence.first = sequence.last;
  ++transcript_.statistics.new_tokens;
  sequence.token_ids.push_back(token.id);
  if (!token.candidates.empty()) sequence.candidates.push_back(token.candidates);
  if (token.logprobs) sequence.tokens_with_logprobs.push_back(token);
  if (form_ == Form::kText) terminal_.show(sequence, token);
  if (trace_ != nullptr) trace_->add(sequence.number, token);
  add_text(sequence, growing_[row].push(token), token.origin);
}

void Output::add_text(Sequence& sequence, const std::string& text, Origin origin) {
  sequence.text += text;
  if (form_ == Form::kText) terminal_.add_text(sequence, text, origin);
}

void Output::finish(FinishReason reason, const CacheUse& cache) {
  Generation generation;
  generation.finish_reason = reason;
  finish(std::vector<Generation>{generation}, cache);
}

void Output::finish(const std::vector<Generation>& rows, const CacheUse& cache) {
  Statistics& statistics = transcript_.statistics;
  std::optional<Clock::time_point> first, last;  // the earliest first token, the latest last token
  for (std::size_t row = 0; row < rows.size(); ++row) {
    end(row, rows[row]);
    const Sequence& sequence = this->sequence(row);
    if (sequence.token_ids.empty()) continue;
    first = std::min(first.value_or(sequence.first), sequence.first);
    last = std::max(last.value_or(sequence.last), sequence.last);
    statistics.row_ms += milliseconds(sequence.last - sequence.first);
    statistics.decode_tokens += static_cast<int>(sequence.token_ids.size()) - 1;
  }
  if (first) {
    statistics.prefill_ms += milliseconds(*first - start_);
    ++statistics.prefills;
    statistics.decode_ms += milliseconds(*last - *first);
  }
  statistics.cache.bytes = std::max(statistics.cache.bytes, cache.bytes);
  statistics.cache.allocated += cache.allocated;
  statistics.cache.copied += cache.copied;
}

void Output::end(std::size_t row, const Generation& generation) {
  Sequence& sequence = this->sequence(row);
  sequence.finish_reason = generation.finish_reason;
  sequence.score = generation.score;
  add_text(sequence, growing_[row].finish(generation.finish_reason));
  if (form_ == Form::kText) terminal_.end(sequence);
  if (trace_ != nullptr) trace_->end(sequence.number, generation.finish_reason, generation.score);
}

void Output::set_speed(double prefill_ms, double tokens_per_second) {
  transcript_.statistics.prefill_ms = prefill_ms;
  transcript_.statistics.prefills = 1;
  transcript_.statistics.throughput = tokens_per_second;
}

void Output::add_statistic(const std::string& name, double value) {
  transcript_.more_statistics.emplace_back(name, value);
}

void Output::close(std::size_t weight_bytes, std::size_t activation_bytes) {
  transcript_.statistics.weight_bytes = weight_bytes;
  transcript_.statistics.activation_bytes = activation_bytes;
  if (form_ == Form::kText) {
    terminal_.close();
  } else {
    print(to_json(transcript_, tokenizer_) + "\n");
  }
}

}  // namespace staircase
