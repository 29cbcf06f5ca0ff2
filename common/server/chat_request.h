// The body of POST /v1/chat/completions.
#pragma once

#include <string>
#include <string_view>

#include "common/server/completion_request.h"
#include "common/server/conversation.h"

namespace staircase {

/// A completion of one prompt, written by the model's template. Without max_tokens it may fill the context.
class ChatRequest : public CompletionRequest {
 public:
  static constexpr int kMaxKeys = 20000;

  /// Throws HttpError as other requests do. May take long, because it runs the template and the tokenizer.
  ChatRequest(std::string_view body, const ServedModel& model, ChatPrompts& prompts);

  const Rendered& rendered() const { return rendered_; }

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

 private:
  void read_calls(std::string_view body, const ServedModel& model);
  void read_max_tokens(const ServedModel& model);
  void read_logprobs();
  void read_reasoning();

  Rendered rendered_;
  bool has_format_ = false;  // whether an answer without a call has a format
  bool may_think_ = false;   // whether a constrained answer may think first
};

/// Makes a chat's constraint and keeps it in `model.constraints`, where a later ChatRequest finds it. Throws
/// HttpError as ChatRequest does.
void make_constraint(std::string_view body, const ServedModel& model);

/// The answers to POST /tokenize, /detokenize and /apply-template, in JSON. They throw HttpError.
std::string tokenize(std::string_view body, const ServedModel& model, ChatPrompts& prompts);
std::string detokenize(std::string_view body, const ServedModel& model);
std::string apply_template(std::string_view body, const ServedModel& model, ChatPrompts& prompts);

}  // namespace staircase
