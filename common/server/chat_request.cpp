#include "common/server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/quoted.h"
#include "common/server/reasoning.h"
#include "common/server/reply_form.h"
#include "common/server/request_body.h"
#include "common/server/tools.h"
#include "common/text/utf8.h"

namespace staircase {

using nlohmann::json;

namespace {

/// Keys of bodies with messages that are not implemented, but would change the answer.
std::map<std::string, json> refused_with_messages() {
  std::map<std::string, json> refused = not_implemented();
  refused.erase("tools");
  refused.insert({{"functions", json::array()},
                  {"function_call", "none"},
                  {"documents", json::array()},
                  {"chat_template", nullptr},
                  {"continue_final_message", false}});
  return refused;
}

const BodyKeys& chat_keys() {
  static const BodyKeys keys = [] {
    BodyKeys own{CompletionRequest::option_keys(), refused_with_messages(), ChatRequest::kMaxKeys};
    own.known.insert({"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs",
                      "add_generation_prompt", "separate_reasoning", "tools", "tool_choice",
                      "parallel_tool_calls"});
    own.known.insert(constraint_keys().begin(), constraint_keys().end());
    own.refused.insert({{"prompt", nullptr},
                        {"echo", false},
                        {"audio", nullptr},
                        {"modalities", json::array({"text"})},
                        {"prediction", nullptr},
                        {"web_search_options", nullptr},
                        {"reasoning_effort", "none"},
                        {"verbosity", "medium"}});
    return own;
  }();
  return keys;
}

const BodyKeys& template_keys() {
  static const BodyKeys keys{{"model", "messages", "chat_template_kwargs", "add_generation_prompt", "tools",
                              "tool_choice", "parallel_tool_calls"},
                             refused_with_messages(),
                             ChatRequest::kMaxKeys};
  return keys;
}

const BodyKeys& tokenize_keys() {
  static const BodyKeys keys = [] {
    BodyKeys own = template_keys();
    own.known.insert({"prompt", "add_special_tokens", "return_token_strs"});
    return own;
  }();
  return keys;
}

const BodyKeys& detokenize_keys() {
  static const BodyKeys keys{{"model", "tokens"}, {}, CompletionRequest::kMaxKeys};
  return keys;
}

/// The maximum number of values in a body of the maximum length.
constexpr std::size_t kMostTokens = 1 << 20;

JsonOptions read(std::string_view body, const BodyKeys& keys, const ServedModel& model) {
  JsonOptions values{read_body(body, keys, std::max<std::size_t>(keys.most, kMostTokens))};
  require_model(values, model);
  return values;
}

Rendered rendered(std::string_view body, const ServedModel& model, ChatPrompts& prompts,
                  bool must_fit = false) {
  Conversation conversation(body);
  if (model.writes_calls && conversation.has_calls()) conversation.write_calls(model.call_form);
  // Rejects a prompt that is surely too long before rendering it.
  const auto require_fit = [&](std::size_t bytes) {
    if (!must_fit || bytes <= model.most_bytes) return;
    throw HttpError(
        400,
        fmt::format(
            "this model's maximum context length is {} tokens, but the messages have {} bytes, which is more",
            model.n_positions, bytes),
        "messages", "context_length_exceeded");
  };
  require_fit(conversation.bytes());
  Rendered prompt = reject_errors("messages", [&] { return prompts.render(conversation); });
  require_fit(prompt.text.size());
  return prompt;
}

/// The functions that the answer may call, if there are some.
std::optional<Tools> tools_of(JsonOptions& values, std::string_view body) {
  const std::vector<std::string> keys{"tools", "tool_choice", "parallel_tool_calls"};
  if (std::ranges::none_of(keys, [&](const std::string& key) { return values.find(key) != nullptr; }))
    return {};
  Tools tools = read_tools(nlohmann::ordered_json::parse(body));
  return tools.functions.empty() ? std::nullopt : std::optional(std::move(tools));
}

}  // namespace

ChatRequest::ChatRequest(std::string_view body, const ServedModel& model, ChatPrompts& prompts)
    : CompletionRequest(body, model, chat_keys(), model.chat_defaults),
      rendered_(staircase::rendered(body, model, prompts, true)) {
  read_calls(body, model);
  read_logprobs();
  read_reasoning();
  prompts_ = {reject_errors("messages", [&] {
    return adapter == kNoAdapter ? prompts.encode(rendered_) : prompts.encode_anew(rendered_);
  })};
  if (prompts_.front().empty()) {
    throw HttpError(400, "the chat template turns these messages into an empty prompt", "messages");
  }
  read_max_tokens(model);
}

void make_constraint(std::string_view body, const ServedModel& model) {
  struct WithoutPrompt : CompletionRequest {
    WithoutPrompt(std::string_view body, const ServedModel& model)
        : CompletionRequest(body, model, chat_keys(), model.chat_defaults) {
      if (const auto tools = tools_of(*body_, body))
        calls_constraint(*body_, *tools, constraint.get(), model);
    }
  };
  WithoutPrompt(body, model);
}

void ChatRequest::read_calls(std::string_view body, const ServedModel& model) {
  const auto tools = tools_of(*body_, body);
  if (!tools) return;
  has_format_ = constraint != nullptr;
  constraint = calls_constraint(*body_, *tools, constraint.get(), model);
  calls = model.call_form;
  calls->is_whole_text |= has_format_;
  may_think_ = !tools->must_call && !calls->is_whole_text;
}

void ChatRequest::read_logprobs() {
  bool tells = false;
  int count = 0;
  reject_errors("logprobs", [&] { body_->get("logprobs", &tells); });
  reject_errors("top_logprobs", [&] {
    static constexpr Range kRange = between(0, 20);
    body_->get_option("top_logprobs", &count, kRange);
    if (count > 0 && !tells) throw Error("top_logprobs needs logprobs to be true");
  });
  if (tells) logprobs = count;
}

void ChatRequest::read_reasoning() {
  bool separates = false;
  reject_errors("separate_reasoning", [&] { body_->get("separate_reasoning", &separates); });
  if (separates) within_reasoning = ends_within_reasoning(rendered_.text);
  if (separates && calls && calls->is_whole_text && !has_format_) {
    throw HttpError(400,
                    "this model's calls are whole answers, without thoughts before them: leave out "
                    "separate_reasoning, or tools",
                    "separate_reasoning");
  }
  if (constraint && !may_think_ && within_reasoning == true) {
    throw HttpError(400,
                    "the template lets this answer begin with thoughts, but a constrained answer has none: "
                    "leave out separate_reasoning, or turn them off with chat_template_kwargs",
                    "separate_reasoning");
  }
}

void ChatRequest::read_max_tokens(const ServedModel& model) {
  const int length = static_cast<int>(prompts_.front().size()), rest = model.n_positions - length;
  std::optional<int> asked, newer;
  reject_errors("max_tokens", [&] { body_->get_option("max_tokens", &asked, at_least(0)); });
  reject_errors("max_completion_tokens",
                [&] { body_->get_option("max_completion_tokens", &newer, at_least(0)); });
  if (asked && newer && *asked != *newer) {
    throw HttpError(400,
                    fmt::format("max_tokens is {} and max_completion_tokens is {}, but they mean the same",
                                *asked, *newer),
                    "max_completion_tokens");
  }
  max_tokens = newer.value_or(asked.value_or(std::max(rest, 1)));
  if (max_tokens > rest) throw too_long(fmt::format("{}", length), max_tokens, model.n_positions, "messages");
}

void ChatRequest::add(const std::string& name, OptionValue value, const std::string& help, Range range) {
  if (name == "--max-new-tokens") {
    *std::get<int*>(value) = max_tokens;
  } else if (name == "--logprobs") {
    *std::get<std::optional<int>*>(value) = logprobs;
  } else {
    CompletionRequest::add(name, value, help, range);
  }
}

std::string tokenize(std::string_view body, const ServedModel& model, ChatPrompts& prompts) {
  JsonOptions values = read(body, tokenize_keys(), model);
  const json* const prompt = values.find("prompt");
  if ((prompt == nullptr) == (values.find("messages") == nullptr)) {
    throw HttpError(400, "the body must have either prompt or messages", "prompt");
  }
  // A plain prompt does not use these values, but an invalid one is still an error.
  bool opens = true;
  reject_errors("add_generation_prompt", [&] { values.get("add_generation_prompt", &opens); });
  reject_errors("chat_template_kwargs", [&] {
    const json* const kwargs = values.find("chat_template_kwargs");
    if (kwargs != nullptr && !kwargs->is_object()) refuse("chat_template_kwargs", *kwargs, "an object");
  });
  read_tools(nlohmann::ordered_json::parse(body));
  bool with_special = prompt != nullptr, with_texts = false;
  reject_errors("add_special_tokens", [&] { values.get("add_special_tokens", &with_special); });
  reject_errors("return_token_strs", [&] { values.get("return_token_strs", &with_texts); });
  std::vector<int> tokens;
  if (prompt != nullptr) {
    reject_errors("prompt", [&] {
      if (!prompt->is_string()) refuse("prompt", *prompt, "a text");
    });
    const std::string& text = prompt->get_ref<const std::string&>();
    tokens = with_special ? model.tokenizer->encode_prompt(text) : model.tokenizer->encode(text);
  } else {
    tokens = reject_errors("messages", [&] { return prompts.encode(rendered(body, model, prompts)); });
    if (with_special) tokens = model.tokenizer->with_begin(std::move(tokens));
  }
  json texts;
  if (with_texts) {
    texts = json::array();
    for (const int id : tokens) texts.push_back(to_valid_utf8(std::string(model.tokenizer->bytes(id))));
  }
  return json{{"count", tokens.size()},
              {"max_model_len", model.n_positions},
              {"tokens", tokens},
              {"token_strs", texts}}
      .dump();
}

std::string detokenize(std::string_view body, const ServedModel& model) {
  JsonOptions values = read(body, detokenize_keys(), model);
  const json* const tokens = values.find("tokens");
  if (tokens == nullptr) throw HttpError(400, "the body has no tokens", "tokens");
  return reject_errors("tokens", [&] {
    if (!tokens->is_array()) refuse("tokens", *tokens, "a list of token ids");
    std::vector<int> ids;
    for (const json& id : *tokens) ids.push_back(token_id("a token id of tokens", id, model));
    return json{{"prompt", model.tokenizer->decode(ids)}}.dump();
  });
}

std::string apply_template(std::string_view body, const ServedModel& model, ChatPrompts& prompts) {
  read(body, template_keys(), model);
  return fmt::format(R"({{"prompt":{}}})", in_json(rendered(body, model, prompts).text));
}

}  // namespace staircase
