#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/quoted.h"
#include "common/server/reply_form.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

/// A token as a text. Bytes that are not characters by themselves are spelled out as OpenAI does:
/// "bytes:\xe2\x80".
std::string token_text(const Tokenizer& tokenizer, int id) {
  const std::string bytes(tokenizer.bytes(id));
  if (to_valid_utf8(bytes) == bytes) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

class CompletionForm : public ReplyForm {
 public:
  std::string_view object(bool) const override { return "text_completion"; }

  bool formats_end() const override { return true; }

  LogprobJson format(const Tokenizer& tokenizer, const Token& token, std::size_t offset) const override {
    const auto& [own, likeliest] = *token.logprobs;
    const std::string name = in_json(token_text(tokenizer, token.id));
    std::vector<std::pair<std::string, float>> top;  // two tokens may have the same text
    const auto add = [&](std::string text, float logprob) {
      const auto place = std::ranges::find(top, text, &std::pair<std::string, float>::first);
      place == top.end() ? top.emplace_back(std::move(text), logprob) : * place = {std::move(text), logprob};
    };
    for (const auto& [id, logprob] : likeliest) add(in_json(token_text(tokenizer, id)), logprob);
    if (own) add(name, *own);
    std::string list;
    for (const auto& [text, logprob] : top)
      list += fmt::format("{}{}:{}", list.empty() ? "" : ",", text, logprob);
    return {.tokens = name,
            .token_logprobs = own ? fmt::format("{}", *own) : "null",
            .top_logprobs = own ? "{" + list + "}" : "null",
            .text_offset = fmt::format("{}", offset)};
  }

  std::string choice(NewText text) const override {
    const LogprobJson& lists = text.logprobs;
    const std::string logprobs =
        lists.tokens.empty()
            ? "null"
            : fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                          lists.tokens, lists.token_logprobs, lists.top_logprobs, lists.text_offset);
    return fmt::format(R"({{"index":{},"text":{},"logprobs":{},"finish_reason":{}{}}})", text.index,
                       in_json(text.text), logprobs, in_json(text.end), votes_json(text));
  }

  std::vector<std::string> choices(NewText text) const override { return {choice(std::move(text))}; }
};

}  // namespace

void LogprobJson::add(const LogprobJson& more) {
  const auto add = [](std::string& list, const std::string& rest) {
    if (!list.empty() && !rest.empty()) list += ',';
    list += rest;
  };
  add(tokens, more.tokens);
  add(token_logprobs, more.token_logprobs);
  add(top_logprobs, more.top_logprobs);
  add(text_offset, more.text_offset);
}

std::string votes_json(const NewText& text) {
  return text.votes ? fmt::format(R"(,"votes":{})", *text.votes) : "";
}

std::string_view in_json(std::optional<FinishReason> reason) {
  if (!reason) return "null";
  return *reason == FinishReason::kLength ? R"("length")" : R"("stop")";
}

const ReplyForm& completion_form() {
  static const CompletionForm form;
  return form;
}

}  // namespace staircase
