#include "common/server/call_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/text/code_points.h"
#include "common/text/stack_automaton.h"
#include "object_members.h"

namespace staircase {

namespace {

using nlohmann::json;
using Kind = RegexPart::Kind;

const std::vector<CallForm>& known_forms() {
  static const std::vector<CallForm> forms{
      {"<tool_call>", false, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n"},
      {"{\"name\": \"", true, "{\"name\": \"", "\", \"parameters\": ", "}", ""}};
  return forms;
}

/// Whether the template writes calls in this form, and the functions and the results, too.
bool is_form_of(const CallForm& form, ChatPrompts& prompts) {
  std::string expected;
  json calls = json::array(), results = json::array(), tools = json::array();
  for (const std::string name : {"count_sheep", "wake_up"}) {
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", name},
                       {"description", "About " + name},
                       {"parameters", {{"type", "object"}, {"properties", json::object()}}}}}});
    if (!calls.empty() && form.separator.empty()) continue;
    if (!calls.empty()) expected += form.separator;
    expected += form.begin + name + form.middle + R"({"hour": 7})" + form.end;
    calls.push_back({{"id", "of_" + name},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", R"({"hour": 7})"}}}});
    results.push_back({{"role", "tool"}, {"tool_call_id", "of_" + name}, {"content", "result of " + name}});
  }
  json messages{{{"role", "user"}, {"content", "Good night!"}},
                {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}}};
  messages.insert(messages.end(), results.begin(), results.end());
  const auto text = [&](const json& body) { return prompts.render(Conversation(body.dump())).text; };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  try {
    const std::string shown = text({{"messages", {messages[0]}}, {"tools", tools}});
    const std::string said = text({{"messages", messages}, {"tools", tools}});
    return std::ranges::all_of(tools,
                               [&](const json& tool) {
                                 return has(shown, "About " + tool["function"]["name"].get<std::string>());
                               }) &&
           has(said, expected) && std::ranges::all_of(results, [&](const json& result) {
             return has(said, result["content"].get<std::string>());
           });
  } catch (const std::exception&) {
    return false;  // for the template this is no conversation
  }
}

RegexPart sequence(std::vector<RegexPart> parts) {
  return {Kind::kSequence, std::move(parts)};
}

RegexPart rule_part(std::size_t rule) {
  RegexPart part{Kind::kRule};
  part.rule = static_cast<int>(rule);
  return part;
}

/// Lets the part's rules be counted from `first`.
void shift(RegexPart& part, std::size_t first) {
  if (part.kind == Kind::kRule) part.rule += static_cast<int>(first);
  for (RegexPart& one : part.parts) shift(one, first);
}

/// Adds rules to others, and returns the first of them.
std::size_t add_rules(GrammarRules more, GrammarRules& rules) {
  const std::size_t first = rules.size();
  for (GrammarRule& rule : more) {
    shift(rule.part, first);
    rules.push_back(std::move(rule));
  }
  return first;
}

bool may_begin_with(const GrammarRules& rules, std::string_view text) {
  const auto shared = std::make_shared<const GrammarRules>(rules);
  StackAutomaton automaton(shared);
  StackAutomaton::Stacks stacks = automaton.start(shared->front().part);
  for (const char byte : text) stacks = automaton.after(stacks, byte);
  return !stacks.empty();
}

/// Adds rules for what may follow the first 0, 1, 2 … bytes of the marker in a text. Together they are an
/// automaton that finds the marker (Knuth, Morris and Pratt 1977). A text may end everywhere, and after the
/// marker come the calls. Returns the first of the rules.
std::size_t add_text_rules(const CallForm& form, std::size_t calls, GrammarRules& rules) {
  const std::string& marker = form.marker;
  const std::size_t first = rules.size(), any = first + marker.size();
  const auto after = [&](std::size_t read, char byte) {
    const std::string text = marker.substr(0, read) + byte;
    if (form.is_whole_text && text != marker.substr(0, read + 1)) return any;
    std::size_t length = read + 1;
    while (!text.ends_with(marker.substr(0, length))) --length;
    return length == marker.size() ? calls : first + length;
  };
  for (std::size_t read = 0; read <= marker.size(); ++read) {
    RegexPart part{Kind::kChoice, {sequence({})}};
    for (int byte = 0, begin = 0; byte < 256; ++byte) {
      const auto next = [&](int of) {
        return read == marker.size() ? any : after(read, static_cast<char>(of));
      };
      if (byte < 255 && next(byte + 1) == next(byte)) continue;
      RegexPart bytes{Kind::kByte};
      bytes.bytes = {static_cast<unsigned char>(begin), static_cast<unsigned char>(byte)};
      part.parts.push_back(sequence({bytes, rule_part(next(byte))}));
      begin = byte + 1;
    }
    rules.push_back({"text", std::move(part)});
  }
  return first;
}

}  // namespace

std::optional<CallForm> call_form_of(ChatPrompts& prompts) {
  for (const CallForm& form : known_forms())
    if (is_form_of(form, prompts)) return form;
  return {};
}

GrammarRules answer_rules(const CallForm& form, const std::vector<CalledFunction>& functions, bool must_call,
                          bool may_repeat, const GrammarRules& format) {
  constexpr std::size_t kCalls = 1;
  GrammarRules rules{{"root", {}}, {"calls", {}}};
  RegexPart call{Kind::kChoice};
  for (const auto& [name, parameters] : functions) {
    GrammarRules own;
    try {
      own = json_schema_rules(parameters, written_members);
    } catch (const UsageError& error) {
      throw UsageError("the parameters of {}: {}", name, error.what());
    }
    call.parts.push_back(
        sequence({bytes_of(name + form.middle), rule_part(add_rules(std::move(own), rules))}));
  }
  // The marker is read before.
  RegexPart calls = sequence({bytes_of(form.begin.substr(form.marker.size())), call, bytes_of(form.end)});
  if (may_repeat && !form.separator.empty()) {
    RegexPart more{Kind::kRepeat, {sequence({bytes_of(form.separator + form.marker), calls})}};
    more.most = RegexPart::kNoLimit;
    calls = sequence({calls, more});
  }
  rules[kCalls].part = std::move(calls);
  RegexPart marked = sequence({bytes_of(form.marker), rule_part(kCalls)});
  if (must_call) {
    rules[0].part = std::move(marked);
  } else if (format.empty()) {
    rules[0].part = rule_part(add_text_rules(form, kCalls, rules));
  } else {
    if (may_begin_with(format, form.marker))
      throw UsageError("a text of the format may begin with {}, as this model's calls do", form.marker);
    rules[0].part = {Kind::kChoice, {std::move(marked), rule_part(add_rules(format, rules))}};
  }
  return rules;
}

}  // namespace staircase
