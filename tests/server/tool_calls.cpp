// Calls of functions: which templates have a form for them, which answers may call, and how an answer is
// split into its calls. Also what a body may hold about functions and earlier calls.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "common/base/file.h"
#include "common/server/call_form.h"
#include "common/server/call_split.h"
#include "common/server/chat_request.h"
#include "common/server/tools.h"
#include "common/text/json_schema.h"
#include "common/text/tokenizer_json.h"
#include "grammar.h"
#include "object_members.h"
#include "row.h"
#include "tests/error_message.h"

using namespace staircase;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// As those of Hermes and Qwen.
const std::string kHermes =
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor "
    "%}<|im_end|>\n"
    "{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ "
    "m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first }}<tool_call>\n"
    "{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson "
    "}}}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% "
    "endif %}";

/// As that of Llama 3.
const std::string kLlama =
    "{% for tool in tools or [] %}{{ tool | tojson(indent=4) }}\n{% endfor %}{% for m in messages %}[{{ "
    "m.role }}]"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% "
    "endif %}"
    "{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": "
    "{{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}\n{% endfor %}";

/// The turns of Mistral, whose calls are as given: `i` counts them, and `call` is each of them. Ids must be
/// of nine characters.
std::string mistral(const std::string& calls) {
  return "{% for m in messages %}{% if loop.last and tools %}[AVAILABLE_TOOLS]{{ tools | tojson "
         "}}[/AVAILABLE_TOOLS]"
         "{% endif %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
         "{% if m.tool_call_id | length != 9 %}{{ raise_exception('short ids') }}{% endif %}"
         "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% else %}{{ m.content }}{% for call in m.tool_calls "
         "or [] "
         "%}"
         "{% if call.id | length != 9 %}{{ raise_exception('short ids') }}{% endif %}" +
         calls + "{% endfor %}</s>{% endif %}{% endfor %}";
}

const std::string kNemo = mistral(
    "{{ '[TOOL_CALLS][' if loop.first else ', ' }}{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ "
    "call.function.arguments | tojson }}, \"id\": \"{{ call.id }}\"}{{ ']' if loop.last }}");
const std::string kMinistral = mistral(
    "[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]{{ call.function.arguments | tojson }}");

/// As that of Apertus: a name is a key.
const std::string kKeys = mistral(
    "{{ '<|tools_prefix|>[' if loop.first else ', ' }}{\"{{ call.function.name }}\": {{ "
    "call.function.arguments "
    "| tojson }}}{{ ']<|tools_suffix|>' if loop.last }}");

const std::string* const kAll[] = {&kHermes, &kLlama, &kNemo, &kMinistral, &kKeys};

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-6m");
  return loaded;
}

class TemplatePrompts : public ChatPrompts {
 public:
  explicit TemplatePrompts(const std::string& source) : template_(source, {}, "folder/t.jinja") {}

  Rendered render(const Conversation& conversation) override { return conversation.rendered_by(template_); }
  std::vector<int> encode(const Rendered& prompt) override { return encode_chat(tokenizer(), prompt); }

 private:
  ChatTemplate template_;
};

std::optional<CallForm> form_of(const std::string& source) {
  TemplatePrompts prompts(source);
  return call_form_of(prompts);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

ServedModel model_of(const std::string& source) {
  const int end = tokenizer().special_tokens().front();
  ServedModel model(
      "models/tales", tokenizer(),
      {.vocab_size = tokenizer().vocab_size(), .n_positions = 4096, .end_tokens = EndTokens({end})});
  model.set_call_form(form_of(source));
  return model;
}

const std::string kUser = R"({"role": "user", "content": "Hello"})";
const std::string kAdd =
    R"({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters":
  {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "}\n", "\"}", "\\"]}},
   "required": ["a"], "additionalProperties": false}}})";
const std::string kNow = R"({"type": "function", "function": {"name": "now"}})";

/// A request whose messages are a user's, or those given.
std::string refusal(const std::string& more, const std::string& messages = kUser,
                    const std::string& source = kHermes) {
  TemplatePrompts prompts(source);
  try {
    ChatRequest request(fmt::format(R"({{"messages": [{}]{}}})", messages, more), model_of(source), prompts);
    row_options(request);
  } catch (const HttpError& error) {
    return fmt::format("{} {}: {}", error.status, error.key, error.what());
  }
  return "";
}

std::string prompt(const std::string& more, const std::string& messages = kUser,
                   const std::string& source = kHermes) {
  TemplatePrompts prompts(source);
  return ChatRequest(fmt::format(R"({{"messages": [{}]{}}})", messages, more), model_of(source), prompts)
      .rendered()
      .text;
}

struct Call {
  std::string name, arguments;

  bool operator==(const Call&) const = default;
};

/// An answer as a reader takes it apart, who looks for the markers from the left; nothing if it is no answer.
struct Read {
  std::string content;
  std::vector<Call> calls;
};
std::optional<Read> read(const CallForm& form, std::string text) {
  static const json choices = json::parse(kAdd)["function"]["parameters"]["properties"]["b"]["enum"];
  Read read;
  const auto take = [&](const std::string& begin) {
    if (text.size() < begin.size()) return false;
    for (std::size_t i = 0; i < begin.size(); ++i) {
      const bool fits = begin[i] == '\0' ? text[i] > 0 && std::isalnum(text[i]) : text[i] == begin[i];
      if (!fits) return false;
    }
    text.erase(0, begin.size());
    return true;
  };
  const std::size_t first =
      form.is_whole_text ? (text.starts_with(form.marker) ? 0 : text.npos) : text.find(form.marker);
  read.content = text.substr(0, first);
  if (first == text.npos) return read;
  read.content.erase(read.content.find_last_not_of(" \n\t\r") + 1);
  text.erase(0, first);
  if (!take(form.begin)) return {};
  do {
    Call& call = read.calls.emplace_back();
    const std::size_t after = std::min(text.find_first_of("\"["), text.size());
    call.name = text.substr(0, after);
    text.erase(0, after);
    if (!take(form.middle)) return {};
    // The shortest text that is an object: no object begins another one.
    std::size_t length = 0;
    json value;
    for (; text.starts_with("{") && length <= text.size(); ++length) {
      value = json::parse(text.substr(0, length), nullptr, false);
      if (value.is_object()) break;
    }
    if (!value.is_object()) return {};
    call.arguments = text.substr(0, length);
    text.erase(0, length);
    const bool fits =
        call.name == "add"
            ? value.contains("a") && value["a"].is_number_integer() && value["a"] >= 0 && value["a"] <= 9 &&
                  value.size() == (value.contains("b") ? 2u : 1u) &&
                  (!value.contains("b") || std::ranges::find(choices, value["b"]) != choices.end())
            : (call.name == "now" || call.name == "now_utc") && value.empty();
    if (!fits) return {};
  } while (!form.between.empty() && take(form.between));
  if (!take(form.end) || !text.empty()) return {};
  return read;
}

/// An answer, often a valid one.
std::string drawn(const CallForm& form, std::mt19937& random) {
  const auto one_of = [&](const std::vector<std::string>& all) { return all[random() % all.size()]; };
  std::vector<std::string> pieces;
  while (random() % 3 == 0)
    pieces.push_back(one_of({"Hi ", "<", "<tool_", "\n", "é", "\xff", "{\"name\"", "<tool_call", "{"}));
  for (auto calls = random() % 4, left = calls; left > 0; --left) {
    pieces.push_back(left == calls || form.between.empty() ? form.begin : form.between);
    const std::string name = one_of({"add", "now", "now_utc"});
    pieces.push_back(name);
    pieces.push_back(form.middle);
    pieces.push_back(name == "add" ? one_of({R"({"a": 3})", R"({"a":0, "b": "x"})", R"({"a": 9, "b": "}\n"})",
                                             R"({"a": 1, "b": "\"}"})", R"({"a": 1, "b": "\\"})"})
                                   : one_of({"{}", "{ }"}));
    if (left == 1 || form.between.empty()) pieces.push_back(form.end);
  }
  if (random() % 2 == 0) {
    const std::string other =
        one_of({"", "Hi", "}", "\n", "{}", form.between, R"({"a": 10})", R"({"b": "x"})", "nowadd",
                form.begin, form.marker, form.middle, form.end, "now", "\"", " "});
    if (pieces.empty() || random() % 2 == 0) {
      pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(random() % (pieces.size() + 1)), other);
    } else {
      pieces[random() % pieces.size()] = other;
    }
  }
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  for (char& byte : text)
    if (byte == '\0') byte = "aZ059-"[random() % 5 + (random() % 100 == 0)];  // of an id
  return text;
}

std::vector<CalledFunction> functions() {
  const auto parameters = json::parse(kAdd)["function"]["parameters"];
  // In the order of the properties.
  const std::string none = R"({"type": "object", "additionalProperties": false})";
  return {{"add", parameters.dump()}, {"now", none}, {"now_utc", none}};
}

}  // namespace

TEST_CASE(
    "a template's form of calls is the one in which it writes them, if it shows functions and results") {
  const auto hermes = form_of(kHermes), llama = form_of(kLlama);
  REQUIRE(hermes);
  CHECK(hermes->marker == "<tool_call>");
  CHECK_FALSE(hermes->is_whole_text);
  CHECK(hermes->begin == "<tool_call>\n{\"name\": \"");
  CHECK(hermes->middle == "\", \"arguments\": ");
  CHECK(hermes->end == "}\n</tool_call>");
  CHECK(hermes->between == hermes->end + "\n" + hermes->begin);
  REQUIRE(llama);
  CHECK(llama->marker == "{\"name\": \"");
  CHECK(llama->is_whole_text);
  CHECK(llama->end == "}");
  CHECK(llama->between.empty());
  const std::string id(9, CallForm::kOfId);
  const CallForm nemo = form_of(kNemo).value(), ministral = form_of(kMinistral).value(),
                 keys = form_of(kKeys).value();
  CHECK(nemo.marker == "[TOOL_CALLS]");
  CHECK(nemo.begin == "[TOOL_CALLS][{\"name\": \"");
  CHECK(nemo.end == ", \"id\": \"" + id + "\"}]");
  CHECK(nemo.between == ", \"id\": \"" + id + "\"}, {\"name\": \"");
  CHECK(ministral.begin == "[TOOL_CALLS]");
  CHECK(ministral.middle == "[CALL_ID]" + id + "[ARGS]");
  CHECK(ministral.end.empty());
  CHECK(ministral.between == "[TOOL_CALLS]");
  CHECK(keys.marker == "<|tools_prefix|>");
  CHECK(keys.middle == "\": ");
  for (const auto& [from_, to] : std::vector<std::pair<std::string, std::string>>{
           {"tool | tojson", "tool.function.name"},   // its descriptions are left out
           {"<tool_response>\n{{ m.content }}", ""},  // and the results
           {"arguments | tojson", "arguments.hour"},  // and the arguments
           {"<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{",
            "<tool_call>\n{{ call.function.name }}{{"},                              // nothing ends the name
           {"{\"name\": \"{{ call.function.name }}\", ", "{"},                       // nor is there one
           {"{{ '\\n' if m.content or not loop.first }}<tool_call>", "<|im_end|>"},  // in another turn
           {"{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}",
            "{\"arguments\": {{ call.function.arguments | tojson }}, \"name\": \"{{ call.function.name "
            "}}\"}"}}) {
    const auto& from = from_;  // clang 14 captures no structured binding
    CAPTURE(from);
    CHECK_FALSE(form_of(replaced(kHermes, from, to)));
  }
  // A count makes each call another one, so an answer has one; so it is if the second has another form.
  for (const char* const other :
       {"{{ loop.index }}<tool_call>", "{{ '<tool_call> ' if loop.last }}<tool_call>"}) {
    const auto one = form_of(replaced(kHermes, "<tool_call>", other));
    CHECK((!one || one->between.empty()));
  }
  // No character of a name ends one.
  for (const std::string after : {"a", "Z", "7", "_", "-", ":", "."}) {
    CAPTURE(after);
    CHECK(form_of(replaced(kMinistral, "[CALL_ID]", after + "[CALL_ID]")).has_value() ==
          (after == ":" || after == "."));
  }
  CHECK_FALSE(form_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"));
  CHECK_FALSE(form_of("{{ raise_exception('never') }}"));
  CHECK_FALSE(
      form_of("{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}"));
}

TEST_CASE(
    "an answer is valid exactly if a reader finds only valid calls in it, wherever its tokens are cut") {
  std::mt19937 random(1);
  for (const std::string* const source : kAll) {
    const CallForm form = form_of(*source).value();
    for (const bool must_call : {false, true}) {
      for (const bool may_repeat : {false, true}) {
        const Grammar grammar(answer_rules(form, functions(), must_call, may_repeat));
        int valid = 0, calling = 0;
        for (int i = 0; i < 3000; ++i) {
          const std::string text = drawn(form, random);
          CAPTURE(text);
          const auto expected = read(form, text);
          bool is_valid = expected.has_value();
          if (is_valid && must_call) is_valid = !expected->calls.empty() && text.starts_with(form.marker);
          if (is_valid && !may_repeat) is_valid = expected->calls.size() <= 1;
          REQUIRE(grammar.accepts(grammar.after(grammar.start(), text)) == is_valid);
          if (!is_valid) continue;
          ++valid;
          calling += expected->calls.size() > (may_repeat && !form.between.empty());
          CallSplit split(form);
          Read got;
          for (std::size_t begin = 0; begin < text.size();) {
            const std::size_t length = 1 + random() % (random() % 2 == 0 ? 3 : 40);
            SplitCalls parts = split.push(text.substr(begin, length));
            got.content += parts.content;
            for (const auto& [index, name, arguments] : parts.calls) {
              if (!name.empty()) got.calls.push_back({name, ""});
              REQUIRE(index == std::ssize(got.calls) - 1);
              got.calls.back().arguments += arguments;
            }
            begin += length;
            REQUIRE(split.push("").calls.empty());  // a token without text makes no part
          }
          got.content += split.finish();
          REQUIRE(got.content == expected->content);
          REQUIRE(got.calls == expected->calls);
          CHECK(split.calls() == !got.calls.empty());
        }
        CHECK(valid > 200);
        CHECK(calling > 100);
      }
    }
  }
}

TEST_CASE("with a format, an answer is calls alone or a text of the format") {
  const GrammarRules format = json_schema_rules(
      R"({"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"],
                            "additionalProperties": false})",
      written_members);
  std::mt19937 random(1);
  for (const std::string* const source : kAll) {
    const CallForm form = form_of(*source).value();
    const Grammar either(answer_rules(form, functions(), false, true, format)),
        calls(answer_rules(form, functions(), true, true, format)),
        calls_alone(answer_rules(form, functions(), true, true));
    const auto accepts = [](const Grammar& grammar, const std::string& text) {
      return grammar.accepts(grammar.after(grammar.start(), text));
    };
    for (const std::string text : {R"({"said": "Hi"})", R"({"said": ""})", R"({"said": "<tool_call>\n"})"}) {
      CHECK(accepts(either, text));
      CHECK_FALSE(accepts(calls, text));
      // The reader of an answer takes it for one without calls.
      CallForm whole = form;
      whole.is_whole_text = true;
      CallSplit split(whole);
      const SplitCalls parts = split.push(text);
      CHECK(parts.content + split.finish() == text);
      CHECK(parts.calls.empty());
    }
    int valid = 0;
    for (int i = 0; i < 2000; ++i) {
      const std::string text = drawn(form, random);
      CAPTURE(text);
      const bool is_call = accepts(calls_alone, text);
      valid += is_call;
      REQUIRE(accepts(either, text) == is_call);
      REQUIRE(accepts(calls, text) == is_call);
    }
    CHECK(valid > 100);
    const GrammarRules any = json_schema_rules(R"({"type": "object"})", written_members);
    CHECK(error_message([&] { answer_rules(form, functions(), false, true, any); }) ==
          (form.is_whole_text ? "a text of the format may begin with {\"name\": \", as this model's calls do"
                              : ""));
    CHECK(error_message([&] { answer_rules(form, functions(), true, true, any); }) == "");
  }
}

TEST_CASE("a call that is cut off keeps its arguments so far, and nothing of it before they begin") {
  for (const std::string* const source : kAll) {
    const CallForm form = form_of(*source).value();
    const std::string whole = form.begin + "add" + form.middle + R"({"a": 3})" + form.end;
    for (std::size_t length = 0; length <= whole.size(); ++length) {
      CAPTURE(length);
      CallSplit split(form);
      const SplitCalls parts = split.push(std::string_view(whole).substr(0, length));
      const std::string rest = split.finish();
      const std::size_t head = form.begin.size() + 3 + form.middle.size();
      CHECK(split.calls() == (length >= head));
      CHECK(rest == (length < form.marker.size() ? whole.substr(0, length) : ""));
      CHECK(parts.content.empty());
      if (length < head) continue;
      REQUIRE(parts.calls.size() == 1);
      CHECK(parts.calls[0].name == "add");
      CHECK(parts.calls[0].arguments == std::string(R"({"a": 3})").substr(0, length - head));
    }
  }
}

TEST_CASE("arguments end with their own brace, whatever brackets and quotes are in them") {
  const CallForm form = plain_call_form();
  for (const std::string arguments : {"{}", R"({"a": [1, 2], "b": [[], {}]})", R"({"a": {"b": {"c": 1}}})",
                                      R"({"a": "}]", "b": "\\"})", R"({"a": "\"}", "[": "{"})"}) {
    CAPTURE(arguments);
    const std::string text = form.begin + "add" + form.middle + arguments + form.end;
    for (const std::size_t piece : {std::size_t{1}, text.size()}) {
      CallSplit split(form);
      std::string read, content;
      for (std::size_t at = 0; at < text.size(); at += piece) {
        const SplitCalls parts = split.push(std::string_view(text).substr(at, piece));
        content += parts.content;
        for (const CallPart& part : parts.calls) read += part.arguments;
      }
      CHECK(read == arguments);
      CHECK(content + split.finish() == "");
    }
  }
}

TEST_CASE("functions reach the template without what is for the server only, and none without a choice") {
  const std::string strict = replaced(kAdd, "\"Adds.\"", "\"Adds.\", \"strict\": true");
  const std::string tools = fmt::format(R"(, "tools": [{}, {}])", strict, kNow);
  const std::string text = prompt(tools);
  CHECK(
      text.find(
          R"({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object")") !=
      text.npos);
  CHECK(text.find(R"({"type": "function", "function": {"name": "now"}})") != text.npos);
  CHECK(text.find("strict") == text.npos);
  const std::string plain = prompt("");
  CHECK(text != plain);
  CHECK(prompt(tools + R"(, "tool_choice": "none")") == plain);
  CHECK(prompt(R"(, "tools": [], "tool_choice": "none", "parallel_tool_calls": false)") == plain);
  CHECK(prompt(R"(, "tools": null, "tool_choice": null, "parallel_tool_calls": null)") == plain);
  for (const char* choice :
       {R"("auto")", R"("required")", R"({"type": "function", "function": {"name": "now"}})"})
    CHECK(prompt(fmt::format(R"({}, "tool_choice": {})", tools, choice)) == text);
}

TEST_CASE("calls and their results go back into the template") {
  const std::string talk = R"({"role": "user", "content": "3 + 4, and the time?"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "c1", "type": "function", "index": 0, "function": {"name": "add", "arguments": "{\"b\":4,  \"a\": 3}"}},
      {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "noon"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "7"})";
  CHECK(prompt("", talk) ==
        "<|im_start|>user\n3 + 4, and the time?<|im_end|>\n<|im_start|>assistant\n"
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 4, \"a\": 3}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
  // What some templates read besides.
  const std::string keys = replaced(kHermes, "{{ m.content }}\n</tool_response>",
                                    "{{ m.content }} {{ m.name }} {{ m.tool_call_id }}\n</tool_response>");
  CHECK(prompt("", talk, keys).find("\n7 add c1\n") != std::string::npos);
  // The next message with calls may use an id again.
  CHECK(refusal("", talk + ", " + talk) == "");
  CHECK(begins_with(refusal("", talk, kLlama), "400 messages: "));  // its template takes one call
  CHECK(refusal("", talk, kLlama).find("one call at once") != std::string::npos);
}

TEST_CASE("what a body says about functions is valid, or is refused with its place") {
  const auto tools = [](const std::string& list) { return fmt::format(R"(, "tools": [{}])", list); };
  const auto function = [&](const std::string& members) {
    return tools(fmt::format(R"({{"type": "function", "function": {{{}}}}})", members));
  };
  const std::string both = tools(kAdd + ", " + kNow);
  for (
      const auto& [more_, message] : std::vector<std::pair<std::string, std::string>>{
          {R"(, "tools": {})", "tools: tools is an object, but it must be a list of functions"},
          {tools("5"), "tools[0]: tools[0] is 5, but it must be an object such as "},
          {tools("{}"), "tools[0].type: tools[0].type is null, but it must be function"},
          {tools(R"({"type": "web_search"})"), "tools[0].type: tools[0].type is \"web_search\", but "},
          {tools(R"({"type": "function"})"),
           "tools[0]: tools[0] is an object, but it must be an object such as "},
          {tools(R"({"type": "function", "name": "f", "function": {"name": "f"}})"),
           "tools[0].name: tools[0].name is not implemented: leave it out"},
          {function(""),
           "tools[0].function.name: tools[0].function.name is null, but it must be 1 to 64 of "},
          {function(R"("name": "")"), "tools[0].function.name: "},
          {function(R"("name": "a b")"), "tools[0].function.name: "},
          {function(R"("name": "é")"), "tools[0].function.name: "},
          {function(fmt::format(R"("name": "{}")", std::string(65, 'a'))), "tools[0].function.name: "},
          {function(R"("name": "f", "description": 5)"), "tools[0].function.description: "},
          {function(R"("name": "f", "strict": "yes")"), "tools[0].function.strict: "},
          {function(R"("name": "f", "parameter": {})"),
           "tools[0].function.parameter: tools[0].function.parameter is not implemented: leave it out"},
          {function(R"("name": "f", "parameters": [])"), "tools[0].function.parameters: "},
          {function(R"("name": "f", "parameters": {})"),
           "tools[0].function.parameters: tools[0].function.parameters is an object, but it must be a JSON "
           "Schema "
           "with \"type\": \"object\""},
          {function(
               R"("name": "f", "parameters": {"type": "object", "properties": {"a": {"multipleOf": 3}}})"),
           "tools: the parameters of f: the schema cannot be used at /properties/a/multipleOf: "},
          {function(
               R"("name": "f", "parameters": {"type": "object", "required": ["a"], "properties": {"a": false}})"),
           "tools: the parameters of f: no JSON value is valid under the schema"},
          {tools(kAdd + ", " + kNow + ", " + kAdd),
           "tools[2].function.name: tools[2].function.name is \"add\", which another tool already has"},
          {both + R"(, "tool_choice": 5)",
           "tool_choice: tool_choice is 5, but it must be none, auto, required or "},
          {both + R"(, "tool_choice": "any")", "tool_choice: tool_choice is \"any\", but it must be none, "},
          {both + R"(, "tool_choice": {"type": "allowed_tools"})", "tool_choice.type: "},
          {both + R"(, "tool_choice": {"type": "function", "function": {"name": "sub"}})",
           "tool_choice: tool_choice names the function \"sub\", which is not among the tools"},
          {both + R"(, "tool_choice": {"type": "function", "function": {"name": "add", "a": 1}})",
           "tool_choice.function.a: "},
          {R"(, "tool_choice": "auto")", "tool_choice: tool_choice needs tools, and there are none"},
          {R"(, "tools": [], "tool_choice": "required")", "tool_choice: tool_choice needs tools, "},
          {both + R"(, "parallel_tool_calls": 1)", "parallel_tool_calls: "},
          {both + R"(, "guided_regex": ".*")",
           "tools: a text of the format may begin with <tool_call>, as this model's calls do"},
          {both + R"(, "ignore_eos": true)", "ignore_eos: tools decides where a text ends, "},
          {both + R"(, "chat_template_kwargs": {"tools": [1]})", "chat_template_kwargs: "}}) {
    const auto& more = more_;  // clang 14 captures no structured binding
    CAPTURE(more);
    const std::string refused = refusal(more);
    CAPTURE(refused);
    CHECK(begins_with(refused, "400 " + message));
  }
  CHECK(refusal(both + R"(, "tool_choice": "none", "response_format": {"type": "json_object"})") == "");
  for (const char* const format : {R"({"type": "text"})", R"({"type": "json_object"})"})
    for (const char* const choice : {"auto", "required", "none"})
      CHECK(refusal(fmt::format(R"({}, "tool_choice": "{}", "response_format": {})", both, choice, format)) ==
            "");
  CHECK(
      refusal(function(fmt::format(R"("name": "{}", "description": null, "parameters": null, "strict": null)",
                                   std::string(64, 'a')))) == "");
  for (const char* const name : {"a", "Z", "0", "_", "-", "get-Time_9"})
    CHECK(refusal(function(fmt::format(R"("name": "{}")", name))) == "");
}

TEST_CASE("requests share a constraint only if their answers may have the same calls") {
  std::set<std::string> names;
  for (const char* const choice : {"auto", "required"})
    for (const char* const parallel : {"true", "false"})
      for (const std::string& functions : {kAdd, kNow, kAdd + ", " + kNow}) {
        const std::string more =
            fmt::format(R"(, "tools": [{}], "tool_choice": "{}", "parallel_tool_calls": {})", functions,
                        choice, parallel);
        TemplatePrompts prompts(kHermes);
        const ChatRequest request(fmt::format(R"({{"messages": [{}]{}}})", kUser, more), model_of(kHermes),
                                  prompts);
        names.insert(request.constraint->name());
      }
  CHECK(names.size() == 12);
}

TEST_CASE("a result belongs to a call that waits for it, and a call has what templates read") {
  const auto calls = [](const std::string& list) {
    return kUser + R"(, {"role": "assistant", "content": "", "tool_calls": )" + list + "}";
  };
  const auto call = [](const std::string& arguments, const std::string& id = "c") {
    return fmt::format(
        R"({{"id": "{}", "type": "function", "function": {{"name": "add", "arguments": {}}}}})", id,
        arguments);
  };
  const std::string good = call(R"("{\"a\": 1}")");
  const std::string result = R"(, {"role": "tool", "tool_call_id": "c", "content": "7"})";
  const std::string place = "messages[1].tool_calls";
  CHECK(refusal("", calls("[" + good + "]") + result) == "");
  for (const auto& [messages_, message] : std::vector<std::pair<std::string, std::string>>{
           {kUser + result,
            "messages[1].tool_call_id: messages[1].tool_call_id is \"c\", but no call before it with this id "
            "waits for "
            "a result"},
           {kUser + R"(, {"role": "tool", "content": "7"})",
            "messages[1].tool_call_id: messages[1].tool_call_id is \"\""},
           {calls("[" + good + "]") + result + result, "messages[3].tool_call_id: "},
           {calls("[" + good + "]") + ", " + calls("[" + call("\"{}\"", "d") + "]") + result,
            "messages[4].tool_call_id: "},
           {calls("[" + good + "]") + R"(, {"role": "tool", "tool_call_id": "c"})", "messages[2].content: "},
           {kUser + R"(, {"role": "tool", "tool_call_id": 5, "content": "7"})", "messages[1].tool_call_id: "},
           {calls("[" + good + ", " + good + "]"),
            place + "[1].id: " + place + "[1].id is \"c\", which another call already has"},
           {calls("{}"), place + ": " + place + " is an object, but it must be a list"},
           {calls("[5]"), place + "[0]: "},
           {calls(R"([{"id": "c", "function": {"name": "add", "arguments": "{}"}}])"), place + "[0]: "},
           {calls(R"([{"id": "", "type": "function", "function": {"name": "add", "arguments": "{}"}}])"),
            place + "[0]: "},
           {calls(R"([{"id": "c", "type": "function"}])"), place + "[0]: "},
           {calls(R"([{"id": "c", "type": "function", "function": 5}])"), place + "[0].function.name: "},
           {calls("[" + call("\"\"") + "]"), place + "[0].function.arguments: "},
           {calls("[" + call("{}") + "]"), place + "[0].function.arguments: "},
           {calls("[" + call("\"[1]\"") + "]"),
            place + "[0].function.arguments: " + place +
                "[0].function.arguments holds an array, but it must be a JSON object"},
           {calls("[" + call("\"{\\\"a\\\": " + std::string(200, '[') + std::string(200, ']') + "}\"") + "]"),
            place + "[0].function.arguments: "},
           {calls("[" + call("\"{" + std::string(20001, ':') + "}\"") + "]"),
            place + "[0].function.arguments: the arguments of "},
           {kUser + R"(, {"role": "user", "content": "a", "tool_calls": [{}]})",
            "messages[1].tool_calls: messages[1].tool_calls is not implemented"},
           {R"({"role": "user", "content": "a", "tool_call_id": "c"})", "messages[0].tool_call_id: "},
           {kUser + R"(, {"role": "assistant", "content": null, "tool_calls": []})",
            "messages[1].content: "}}) {
    const auto& messages = messages_;  // clang 14 captures no structured binding
    CAPTURE(messages);
    const std::string refused = refusal("", messages);
    CAPTURE(refused);
    CHECK(begins_with(refused, "400 " + message));
  }
}

TEST_CASE(
    "the arguments of all calls together have at most 20,000 colons, and may nest as deep as 100 objects") {
  const auto calls = [](const std::vector<std::string>& arguments) {
    json list = json::array();
    for (const std::string& one : arguments)
      list.push_back({{"id", fmt::format("c{}", list.size())},
                      {"type", "function"},
                      {"function", {{"name", "add"}, {"arguments", one}}}});
    return kUser + ", " + json{{"role", "assistant"}, {"content", ""}, {"tool_calls", list}}.dump();
  };
  const auto keys = [](int count) {
    json object = json::object();
    for (int i = 0; i < count; ++i) object[std::to_string(i)] = 0;
    return object.dump();
  };
  const std::string place = "400 messages[1].tool_calls[1].function.arguments: ";
  CHECK(begins_with(refusal("", calls({keys(19'999), keys(2)})),
                    place + "the arguments of all calls have more than 20000 keys"));
  // Then the text is too long.
  CHECK(
      begins_with(refusal("", calls({keys(19'999), keys(1)})), "400 messages: this model's maximum context"));
  const auto nested = [](int depth) {
    std::string text = "0";
    for (int i = 0; i < depth; ++i) text = "{\"a\":" + text + "}";
    return text;
  };
  CHECK(refusal("", calls({nested(100)})) == "");
  CHECK(begins_with(refusal("", calls({"{}", nested(101)})), place));
}

TEST_CASE("for a template without a form, functions, calls and results are texts of messages") {
  const std::string plain = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
  const std::string tools = fmt::format(R"(, "tools": [{}])", kNow);
  const std::string told =
      "You can call functions. These are the functions, in JSON:\n"
      R"({"type":"function","function":{"name":"now"}})"
      "\nTo call one, answer with its name and its arguments in this form:\n"
      "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>\n"
      "A message with <tool_response> then brings the result.";
  CHECK(prompt(tools, kUser, plain) == "[user] " + told + "\n\nHello\n");
  const std::string talk = R"(
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Now"}, {"type": "text", "text": "?"}]},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":4,  \"b\": \"x\"}"}},
      {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c2", "content": "noon"},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]},
    {"role": "user", "content": "And then?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"})";
  const std::string texts =
      "[user] Now\n?\n[assistant] <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":4,\"b\":\"x\"}}\n"
      "</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n"
      "[user] <tool_response>\nnoon\n</tool_response>\n\n<tool_response>\n7\n</tool_response>\n\nAnd then?\n"
      "[assistant] I look.\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n"
      "[user] <tool_response>\none\n</tool_response>\n";
  CHECK(prompt(tools, talk, plain) == "[system] Be kind.\n\n" + told + "\n" + texts);
  CHECK(prompt("", talk, plain) == "[system] Be kind.\n" + texts);  // calls of before, and no functions now
  CHECK(prompt(tools + R"(, "tool_choice": "none")", kUser, plain) == "[user] Hello\n");
  CHECK(prompt(tools, R"({"role": "assistant", "content": "Hi"})", plain) ==
        "[system] " + told + "\n[assistant] Hi\n");
  // A template that knows functions but writes calls in another turn gets none of its own.
  const std::string turns =
      replaced(kHermes, "{{ '\\n' if m.content or not loop.first }}<tool_call>", "<|im_end|>");
  CHECK_FALSE(form_of(turns));
  CHECK(prompt(tools, kUser, turns) ==
        "<|im_start|>user\n" + told + "\n\nHello<|im_end|>\n<|im_start|>assistant\n");
  TemplatePrompts prompts(plain), hermes(kHermes);
  const std::string body = fmt::format(R"({{"messages": [{}]{}}})", kUser, tools);
  CHECK(json::parse(apply_template(body, model_of(plain), prompts))["prompt"] ==
        "[user] " + told + "\n\nHello\n");
  CHECK(json::parse(apply_template(body, model_of(kHermes), hermes))["prompt"] == prompt(tools));
  // The answer is constrained as with Hermes.
  ChatRequest request(body, model_of(plain), prompts);
  CHECK(request.calls->begin == plain_call_form().begin);
  CHECK(request.constraint);
}

TEST_CASE("thoughts may precede calls that are free, in a form that has calls within a text") {
  const std::string thinks = kHermes + "<think>\n";
  const auto tools = [&](const char* more) {
    return fmt::format(R"(, "tools": [{}], "separate_reasoning": true{})", kNow, more);
  };
  CHECK(refusal(tools(""), kUser, thinks) == "");
  CHECK(begins_with(refusal(tools(R"(, "tool_choice": "required")"), kUser, thinks),
                    "400 separate_reasoning: the template lets this answer begin with thoughts"));
  CHECK(refusal(tools(R"(, "tool_choice": "required")")) == "");
  // With a format, the whole answer is constrained, as without functions.
  const char* const format = R"(, "guided_json": {"type": "integer"})";
  CHECK(begins_with(refusal(tools(format), kUser, thinks),
                    "400 separate_reasoning: the template lets this answer begin with thoughts"));
  CHECK(refusal(tools(format)) == "");
  CHECK(refusal(tools(format), kUser, kLlama) == "");
  CHECK(begins_with(refusal(tools(""), kUser, kLlama),
                    "400 separate_reasoning: this model's calls are whole answers"));
}

TEST_CASE("arguments that no one has named are not written, unless the schema lets them in") {
  const auto takes_others = [](const std::string& more) {
    const ordered_json body = ordered_json::parse(
        R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"a": {"type": "integer"}}, "required": ["a"])" +
        more + "}}}]}");
    const Tools tools = read_tools(body);
    // The template shows what the client wrote.
    CHECK(tools.shown[0]["function"]["parameters"] == body["tools"][0]["function"]["parameters"]);
    const CallForm form = form_of(kHermes).value();
    const Grammar grammar(answer_rules(form, tools.functions, true, false));
    const auto is_valid = [&](const std::string& arguments) {
      return grammar.accepts(
          grammar.after(grammar.start(), form.begin + "f" + form.middle + arguments + form.end));
    };
    CHECK(is_valid(R"({"a": 1})"));
    CHECK_FALSE(is_valid(R"({"b": 1})"));
    return is_valid(R"({"a": 1, "b": 2})");
  };
  CHECK_FALSE(takes_others(""));
  CHECK_FALSE(takes_others(
      R"(, "title": "F", "description": "d", "$defs": {}, "definitions": {}, "$schema": "http://json-schema.org/draft-07/schema#")"));
  CHECK_FALSE(takes_others(R"(, "additionalProperties": false)"));
  CHECK(takes_others(R"(, "additionalProperties": true)"));
  CHECK(takes_others(R"(, "additionalProperties": {"type": "integer"})"));
  CHECK(takes_others(R"(, "patternProperties": {"^b$": {"type": "integer"}})"));
  CHECK(takes_others(R"(, "allOf": [{"properties": {"b": {"type": "integer"}}}])"));
  // A name that must be there is never left out.
  CHECK(refusal(R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {}, "required": ["a"]}}}])") == "");
}

TEST_CASE("the tokens offered for an answer are those of its grammar, from the request to the row") {
  const std::string body = fmt::format(R"({{"messages": [{}], "tools": [{}, {}]}})", kUser, kAdd, kNow);
  const ServedModel model = model_of(kHermes);
  TemplatePrompts prompts(kHermes);
  const std::string one = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                    two = one + "\n" + one;
  for (const auto& [choice_, text_, valid] : std::vector<std::tuple<std::string, std::string, bool>>{
           {"", "Hello.", true},
           {"", "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call>", true},
           {"", "<tool_call>\n{\"name\": \"sub\"", false},
           {"\"required\"", "Hello.", false},
           {"\"required\"", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", true},
           {"\"required\"", two, true},
           {R"({"type": "function", "function": {"name": "now"}})", two, false},
           {R"({"type": "function", "function": {"name": "add"}})",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", false},
           {R"({"type": "function", "function": {"name": "add"}})",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call>", true}}) {
    const std::string &choice = choice_, &text = text_;  // clang 14 captures no structured binding
    CAPTURE(choice);
    CAPTURE(text);
    ChatRequest request(
        choice.empty() ? body
                       : replaced(body, "\"tools\"", fmt::format(R"("tool_choice": {}, "tools")", choice)),
        model, prompts);
    CHECK(request.calls.has_value());
    RowOptions options = row_options(request);
    std::vector<int> chosen;
    bool is_allowed = true;
    const auto allows = [&](int token) {
      std::vector<float> logits(static_cast<std::size_t>(model.vocab_size));
      options.edit_raw_logits(logits, chosen);
      return logits[static_cast<std::size_t>(token)] != kMasked;
    };
    for (const int token : tokenizer().encode(text)) {
      is_allowed = is_allowed && allows(token);
      chosen.push_back(token);
      if (!is_allowed) break;
    }
    CHECK((is_allowed && allows(*model.ends.begin())) == valid);
  }
}

TEST_CASE("special tokens are text where the form of calls has them, and in no other constraint") {
  const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  const Tokenizer smol(read_tokenizer_json(read_file(file), file), file);
  const auto mark = [&](const char* name) { return smol.encode_with_special_tokens(name).front(); };
  const int calls = mark("<|im_start|>"), arguments = mark("<|endoftext|>"), end = mark("<|im_end|>");
  const std::string source =
      replaced(replaced(kMinistral, "[TOOL_CALLS]", "<|im_start|>"), "[ARGS]", "<|endoftext|>");
  TemplatePrompts prompts(source);
  ServedModel model("smol", smol,
                    {.vocab_size = smol.vocab_size(), .n_positions = 4096, .end_tokens = EndTokens({end})});
  model.set_call_form(call_form_of(prompts));
  const std::string tools = fmt::format(R"(, "tools": [{}, {}])", kAdd, kNow);
  const auto allowed = [&](const std::string& more, const std::vector<int>& chosen) {
    ChatRequest request(fmt::format(R"({{"messages": [{}]{}}})", kUser, more), model, prompts);
    RowOptions options = row_options(request);
    std::vector<float> logits(static_cast<std::size_t>(model.vocab_size));
    options.edit_raw_logits(logits, chosen);
    std::vector<int> markers;
    for (const int marker : smol.special_tokens())
      if (logits[static_cast<std::size_t>(marker)] != kMasked) markers.push_back(marker);
    return markers;
  };
  const auto said = [&](const std::string& text) { return smol.encode_with_special_tokens(text); };
  CHECK(allowed(tools + R"(, "tool_choice": "required")", {}) == std::vector<int>{calls});
  CHECK(allowed(tools + R"(, "tool_choice": "required")", said("<|im_start|>now[CALL_ID]abcdeFGH9")) ==
        std::vector<int>{arguments});
  CHECK(allowed(tools, said("<|im_start|>now[CALL_ID]abcdeFGH9<|endoftext|>{}")) ==
        std::vector<int>{calls, end});
  CHECK(allowed(R"(, "guided_regex": "[a-z]*")", {}) == std::vector<int>{end});
  CHECK(allowed(R"(, "guided_regex": ".*")", {}) == std::vector<int>{end});
  model.set_call_form({});
  CHECK_FALSE(model.call_tokens);
}

TEST_CASE("a call may end in a special token, also where an answer has only one call") {
  const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  const Tokenizer smol(read_tokenizer_json(read_file(file), file), file);
  const auto ids = [&](const std::string& text) { return smol.encode_with_special_tokens(text); };
  const int close = ids("<|im_start|>").front(), end = ids("<|im_end|>").front();
  // This vocabulary has no spaces.
  const std::string source =
      replaced(replaced(kLlama, "{\"name\": ", "{\"name\":"), "\", \"parameters\": ", "\",\"parameters\":");
  TemplatePrompts prompts(replaced(source, "arguments | tojson }}}", "arguments | tojson }}}<|im_start|>"));
  ServedModel model("smol", smol,
                    {.vocab_size = smol.vocab_size(), .n_positions = 4096, .end_tokens = EndTokens({end})});
  model.set_call_form(call_form_of(prompts));
  REQUIRE(model.call_form.end == "}<|im_start|>");
  REQUIRE(model.call_form.between.empty());
  ChatRequest request(
      fmt::format(R"({{"messages": [{}], "tools": [{}], "tool_choice": "required"}})", kUser, kNow), model,
      prompts);
  RowOptions options = row_options(request);
  const auto allowed = [&](const std::string& chosen) {
    std::vector<float> logits(static_cast<std::size_t>(model.vocab_size));
    options.edit_raw_logits(logits, ids(chosen));
    std::vector<int> kept;
    for (int token = 0; token < std::ssize(logits); ++token)
      if (logits[static_cast<std::size_t>(token)] != kMasked) kept.push_back(token);
    return kept;
  };
  const std::string call = R"({"name":"now","parameters":{}})";
  const std::vector<int> after = allowed(call);
  CHECK(std::ranges::count(after, close) == 1);
  CHECK(allowed(call + "<|im_start|>") == std::vector<int>{end});
}

TEST_CASE("texts that are drawn from the tokens offered are answers, from the moment a call opens") {
  const ServedModel model = model_of(kHermes);
  TemplatePrompts prompts(kHermes);
  std::mt19937 random(1);
  int ended = 0;
  for (int turn = 0; turn < 40; ++turn) {
    ChatRequest request(fmt::format(R"({{"messages": [{}], "tools": [{}, {}]}})", kUser, kAdd, kNow), model,
                        prompts);
    RowOptions options = row_options(request);
    const std::vector<int> opens = tokenizer().encode(turn % 2 == 0 ? "<tool_call>" : "Hi <<tool_call>");
    std::vector<int> chosen;
    std::string text;
    for (int i = 0; i < 300; ++i) {
      std::vector<float> logits(static_cast<std::size_t>(model.vocab_size));
      options.edit_raw_logits(logits, chosen);
      std::vector<int> kept;
      for (int token = 0; token < std::ssize(logits); ++token)
        if (logits[static_cast<std::size_t>(token)] != kMasked) kept.push_back(token);
      const int next = chosen.size() < opens.size() ? opens[chosen.size()] : kept[random() % kept.size()];
      REQUIRE(std::ranges::find(kept, next) != kept.end());
      if (model.ends.contains(next)) {
        const auto answer = read(model.call_form, text);
        CAPTURE(text);
        REQUIRE(answer);
        CHECK(!answer->calls.empty());
        ++ended;
        break;
      }
      chosen.push_back(next);
      text += tokenizer().bytes(next);
    }
  }
  CHECK(ended > 10);
}
