#include "common/text/chat_template.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/model/gguf.h"
#include "common/text/gguf_tokenizer.h"
#include "common/text/json_value.h"
#include "common/text/utf8.h"
#include "kernels/platform.h"

namespace staircase {

namespace {

using nlohmann::ordered_json;
using SpecialTokens = std::map<std::string, std::string>;

JinjaTemplate parsed(const std::string& source, const std::string& file) try {
  return JinjaTemplate(source);
} catch (const Error& error) {
  // Ollama's templates access fields as {{ .Messages }}, which is not Jinja.
  const bool go = source.find("{{ .") != std::string::npos ||
                  source.find("{{- range ") != std::string::npos ||
                  source.find("{{ if .") != std::string::npos || source.find("{{- if .") != std::string::npos;
  if (go)
    throw Error("{}: the chat template is written for Ollama in Go's template language, not in Jinja", file);
  throw Error("{}: {}", file, error.what());
}

/// The text of a token, which the file writes as a string, or as an object with further facts.
std::string token_text(const JsonValue& token) {
  return token.json().is_object() ? token["content"].text() : token.text();
}

SpecialTokens special_tokens_of(const JsonValue& config) {
  SpecialTokens tokens;
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (!config[key].is_null()) tokens[key] = token_text(config[key]);
  }
  return tokens;
}

/// Reads chat_template, which is a text or a list of named templates.
std::optional<std::string> template_of(const JsonValue& config) {
  const JsonValue named = config["chat_template"];
  if (named.is_null()) return {};
  if (named.json().is_string()) return named.text();
  for (const JsonValue& one : named.elements()) {
    if (one["name"].text() == "default") return one["template"].text();
  }
  named.refuse("and none of its templates is the default");
}

SpecialTokens special_tokens_of(const GgufFile& file) {
  SpecialTokens special;
  const auto tokens = file.texts("tokenizer.ggml.tokens");
  for (const auto& [name, key] : {std::pair{"bos_token", "tokenizer.ggml.bos_token_id"},
                                  std::pair{"eos_token", "tokenizer.ggml.eos_token_id"},
                                  std::pair{"pad_token", "tokenizer.ggml.padding_token_id"},
                                  std::pair{"unk_token", "tokenizer.ggml.unknown_token_id"}}) {
    const auto id = file.integer(key);
    if (tokens && id && *id < tokens->size()) special[name] = std::string((*tokens)[*id]);
  }
  return special;
}

std::optional<ChatTemplate> load_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  const auto source = gguf_chat_template(file);
  if (!source) return {};
  return ChatTemplate(*source, special_tokens_of(file), path.string());
}

/// The special tokens of a model whose own template is not read.
SpecialTokens special_tokens_in(const std::filesystem::path& model) {
  if (is_gguf(model)) return special_tokens_of(GgufFile(model));
  const auto path = model / "tokenizer_config.json";
  if (!is_there(path)) return {};
  const nlohmann::json config = parse_json_object(read_text_file(path), path.string());
  return special_tokens_of(JsonValue(config, path.string()));
}

/// Prepares messages as transformers does: without null members, and with thoughts under every name. The
/// order of the members is also transformers', which matters if a template writes a message as JSON.
ordered_json prepared(const ordered_json& messages) {
  ordered_json all = ordered_json::array();
  for (const ordered_json& message : messages) {
    if (!message.is_object()) throw Error("a message is {}, not an object", message.type_name());
    ordered_json kept = ordered_json::object(), thoughts;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (thoughts.is_null()) thoughts = message.value(name, ordered_json());
    }
    if (!thoughts.is_null()) kept["thinking"] = thoughts;
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) kept[key] = value;
    }
    if (!thoughts.is_null()) kept["reasoning_content"] = thoughts;
    all.push_back(std::move(kept));
  }
  return all;
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model) {
  if (is_gguf(model)) return load_gguf(model);
  const auto config_path = model / "tokenizer_config.json", file = model / "chat_template.jinja";
  SpecialTokens special;
  std::optional<std::string> source;
  std::string from = config_path.string();
  if (is_there(config_path)) {
    const nlohmann::json config = parse_json_object(read_text_file(config_path), from);
    special = special_tokens_of(JsonValue(config, from));
    if (!is_there(file)) source = template_of(JsonValue(config, from));
  }
  if (is_there(file)) {
    source = read_text_file(file);
    from = file.string();
  }
  if (!source) return {};
  return ChatTemplate(*source, std::move(special), from);
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model, const std::string& file) {
  std::optional<ChatTemplate> own = file.empty() ? load(model) : std::nullopt;
  if (own) return *std::move(own);
  if (file.empty()) {
    throw Error(
        "{} has no chat template: it continues texts, and was not trained to answer. tools/download "
        "smollm2-135m-instruct downloads a model that was; --chat-template names a template of your own",
        model.filename().string());
  }
  return ChatTemplate(read_text_file(file), special_tokens_in(model), file);
}

ChatTemplate::ChatTemplate(const std::string& source, SpecialTokens special_tokens, const std::string& file)
    : source_(source),
      file_(file),
      special_tokens_(std::move(special_tokens)),
      template_(parsed(source, file)),
      reads_parts_(writes_parts_as_text()) {}

/// Whether the template writes a content with one part exactly as it writes the text alone.
bool ChatTemplate::writes_parts_as_text() const {
  const ordered_json text = "Hello", part = {{"type", "text"}, {"text", text}},
                     system = {{"role", "system"}, {"content", "Be kind."}};
  const auto written = [&](const ordered_json& content, bool with_system) {
    ordered_json messages = ordered_json::array();
    if (with_system) messages.push_back(system);
    messages.push_back({{"role", "user"}, {"content", content}});
    return render(messages, ordered_json::object(), {},
                  {.steps = 1'000'000, .bytes = 16 << 20, .output = 1 << 20})
        .text;
  };
  for (const bool with_system : {false, true}) {  // some templates demand a system message, others reject one
    try {
      const std::string alone = written(text, with_system);
      return alone.find("Hello") != alone.npos && written(ordered_json::array({part}), with_system) == alone;
    } catch (const Error&) {
    }
  }
  return false;
}

Rendered ChatTemplate::render(const ordered_json& messages, const ordered_json& options, const std::tm& now,
                              const RenderLimits& limits) const {
  ordered_json data = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
  data.update(options);
  data["messages"] = prepared(messages);
  try {
    return template_.render({data, special_tokens_, now}, limits);
  } catch (const Error& error) {
    // Clients read this message, and the server's folders mean nothing to them.
    throw Error("{}: {}", std::filesystem::path(file_).filename().string(), error.what());
  }
}

Rendered ChatTemplate::render(const std::vector<Message>& messages) const {
  ordered_json turns = ordered_json::array();
  for (const Message& message : messages) {
    turns.push_back({{"role", message.role}, {"content", to_valid_utf8(message.content)}});
  }
  return render(turns, {{"add_generation_prompt", true}}, platform::local_time());
}

std::vector<int> encode_chat(const Tokenizer& tokenizer, const Rendered& rendered) {
  return tokenizer.encode_with_special_tokens(rendered.text, rendered.own);
}

Rendered marks_alone(const Tokenizer& tokenizer, Rendered rendered) {
  std::vector<bool> marks(rendered.text.size());
  for (const int token : tokenizer.special_tokens()) {
    const std::string_view mark = tokenizer.bytes(token);
    if (mark.empty()) continue;
    for (std::size_t at = 0; (at = rendered.text.find(mark, at)) != std::string::npos; ++at) {
      const auto begin = rendered.own.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end = begin + static_cast<std::ptrdiff_t>(mark.size());
      if (std::find(begin, end, false) != end) continue;
      std::fill_n(marks.begin() + static_cast<std::ptrdiff_t>(at), mark.size(), true);
    }
  }
  rendered.own = std::move(marks);
  return rendered;
}

}  // namespace staircase
