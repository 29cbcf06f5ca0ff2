#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <string_view>
#include <utility>

#include "common/base/quoted.h"
#include "common/server/http.h"
#include "common/server/reply_form.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

/// A token's text, log-probability and bytes, which need not form characters, without the closing brace.
std::string token_json(const Tokenizer& tokenizer, int id, float logprob) {
  const std::string_view bytes = tokenizer.bytes(id);
  std::string numbers;
  for (const char byte : bytes) {
    numbers += fmt::format("{}{}", numbers.empty() ? "" : ",", static_cast<unsigned char>(byte));
  }
  return fmt::format(R"({{"token":{},"logprob":{},"bytes":[{}])", in_json(to_valid_utf8(std::string(bytes))),
                     logprob, numbers);
}

/// The id of a call: nine letters and digits, because Mistral's templates accept no other id.
std::string call_id() {
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (std::size_t hash = std::hash<std::string>()(unique_id()); id.size() < 9; hash /= kDigits.size())
    id += kDigits[hash % kDigits.size()];
  return id;
}

/// A function's name and arguments, or more of the arguments, in JSON: OpenAI sends arguments as text.
std::string function_json(const CallPart& call) {
  const std::string name = call.name.empty() ? "" : fmt::format(R"("name":{},)", in_json(call.name));
  return fmt::format(R"({{{}"arguments":{}}})", name, in_json(call.arguments));
}

/// The part of a call in an event; only the first part has an id.
std::string call_json(const CallPart& call) {
  const std::string begin =
      call.name.empty() ? "" : fmt::format(R"("id":"{}","type":"function",)", call_id());
  return fmt::format(R"({{"index":{},{}"function":{}}})", call.index, begin, function_json(call));
}

/// The calls of a whole text, or nothing.
std::string calls_json(const std::vector<CallPart>& calls) {
  std::string list;
  for (const CallPart& call : calls) {
    list += fmt::format(R"({}{{"id":"{}","type":"function","function":{}}})", list.empty() ? "" : ",",
                        call_id(), function_json(call));
  }
  return list.empty() ? "" : fmt::format(R"(,"tool_calls":[{}])", list);
}

class ChatForm : public ReplyForm {
 public:
  std::string_view object(bool stream) const override {
    return stream ? "chat.completion.chunk" : "chat.completion";
  }

  bool formats_end() const override { return false; }

  LogprobJson format(const Tokenizer& tokenizer, const Token& token, std::size_t) const override {
    std::string top;
    for (const auto& [id, logprob] : token.logprobs->likeliest) {
      top += (top.empty() ? "" : ",") + token_json(tokenizer, id, logprob) + "}";
    }
    return {.tokens = fmt::format(R"({},"top_logprobs":[{}]}})",
                                  token_json(tokenizer, token.id, token.logprobs->own.value_or(0.0f)), top)};
  }

  std::string choice(NewText text) const override {
    std::string reasoning;
    if (text.reasoning) {
      reasoning = R"(,"reasoning_content":)" + (text.reasoning->empty() ? "null" : in_json(*text.reasoning));
    }
    const std::string calls = text.calls ? calls_json(*text.calls) : "";
    const std::string content = calls.empty() || !text.text.empty() ? in_json(text.text) : "null";
    const std::string message =
        fmt::format(R"({{"role":"assistant","content":{},"refusal":null{}{}}})", content, reasoning, calls);
    return choice(text, "message", message, text.end);
  }

  /// The first choice has the role, even for an empty text; the last one has only the finish reason.
  std::vector<std::string> choices(NewText text) const override {
    std::vector<std::string> all;
    const auto add = [&](const std::string& delta, std::optional<FinishReason> end) {
      all.push_back(choice(text, "delta", delta, end));
      text.logprobs = {};
    };
    if (text.begins) {
      all.push_back(choice(
          {.index = text.index}, "delta",
          text.calls ? R"({"role":"assistant","content":null})" : R"({"role":"assistant","content":""})",
          {}));
    }
    if (text.reasoning && !text.reasoning->empty()) {
      add(fmt::format(R"({{"reasoning_content":{}}})", in_json(*text.reasoning)), {});
    }
    if (!text.text.empty() || !text.logprobs.tokens.empty()) {
      add(fmt::format(R"({{"content":{}}})", in_json(text.text)), {});
    }
    if (text.calls) {
      for (const CallPart& call : *text.calls)
        add(fmt::format(R"({{"tool_calls":[{}]}})", call_json(call)), {});
    }
    if (text.end) add("{}", text.end);
    return all;
  }

 private:
  static std::string choice(const NewText& text, const char* kind, const std::string& content,
                            std::optional<FinishReason> end) {
    const std::string logprobs =
        text.logprobs.tokens.empty()
            ? "null"
            : fmt::format(R"({{"content":[{}],"refusal":null}})", text.logprobs.tokens);
    return fmt::format(
        R"({{"index":{},"{}":{},"logprobs":{},"finish_reason":{}{}}})", text.index, kind, content, logprobs,
        text.has_called && end == FinishReason::kEos ? R"("tool_calls")" : in_json(end), votes_json(text));
  }
};

}  // namespace

const ReplyForm& chat_form() {
  static const ChatForm form;
  return form;
}

}  // namespace staircase
