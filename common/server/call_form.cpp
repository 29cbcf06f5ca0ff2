#include "common/server/call_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
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

const std::string kArguments = R"({"hour": 7})";

/// A sample call for the template to write. Mistral's templates only accept ids of nine letters and digits.
struct SampleCall {
  std::string name, id;
};
const SampleCall kSamples[] = {
    {"count_sheep", "sheep0001"}, {"wake_up", "wakeup002"}, {"make_tea", "maketea03"}};

/// Renders conversations about the sample calls. Its functions throw what the template throws.
class SampleTexts {
 public:
  explicit SampleTexts(ChatPrompts& prompts) : prompts_(prompts) {
    for (const auto& [name, id] : kSamples)
      tools_.push_back({{"type", "function"},
                        {"function",
                         {{"name", name},
                          {"description", "About " + name},
                          {"parameters", {{"type", "object"}, {"properties", json::object()}}}}}});
  }

  /// The text of a question and its answer.
  std::string answer(const std::string& content) const {
    return text({{{"role", "assistant"}, {"content", content}}});
  }

  /// The text of a question and the first `count` calls.
  std::string calls(std::size_t count) const { return text({message(count)}); }

  /// Whether the template shows the functions, and the result of a call.
  bool has_functions_and_results() const {
    const std::string all =
        text({message(1), {{"role", "tool"}, {"tool_call_id", kSamples[0].id}, {"content", "ninety sheep"}}});
    return all.find("ninety sheep") != all.npos && std::ranges::all_of(kSamples, [&](const SampleCall& call) {
             return all.find("About " + call.name) != all.npos;
           });
  }

 private:
  json message(std::size_t count) const {
    json calls = json::array();
    for (std::size_t i = 0; i < count; ++i)
      calls.push_back({{"id", kSamples[i].id},
                       {"type", "function"},
                       {"function", {{"name", kSamples[i].name}, {"arguments", kArguments}}}});
    return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}};
  }

  /// Renders a conversation. Each character of an id becomes a placeholder.
  std::string text(const std::vector<json>& after) const {
    json messages{{{"role", "user"}, {"content", "Good night!"}}};
    for (const json& message : after) messages.push_back(message);
    std::string text =
        prompts_
            .render(Conversation(
                json{{"messages", messages}, {"tools", tools_}, {"add_generation_prompt", false}}.dump()))
            .text;
    for (const auto& [name, id] : kSamples)
      for (std::size_t at = 0; (at = text.find(id, at)) != text.npos;)
        text.replace(at, id.size(), id.size(), CallForm::kOfId);
    return text;
  }

  ChatPrompts& prompts_;
  json tools_ = json::array();
};

bool is_of_name(char byte) {
  return std::isalnum(static_cast<unsigned char>(byte)) || byte == '_' || byte == '-';
}

/// The word in brackets that a text begins with, such as <tool_call> or [TOOL_CALLS]; empty if it has none.
std::string bracketed(std::string_view text) {
  if (text.empty() || (text.front() != '<' && text.front() != '[')) return "";
  const std::size_t end = text.find_first_of("<>[]{}\"' \n\t", 1);
  const bool is_closed = end != text.npos && text[end] == (text.front() == '<' ? '>' : ']');
  return is_closed && end > 1 ? std::string(text.substr(0, end + 1)) : "";
}

/// The texts that the template writes around the names and arguments of calls. Nothing if it writes calls
/// outside an answer, or if the arguments do not follow the name.
std::optional<CallForm> form_in(const SampleTexts& texts) {
  const std::string content = "Good morning.", plain = texts.answer(content), one = texts.calls(1);
  if (plain.find(CallForm::kOfId) != plain.npos) return {};
  const std::size_t at = plain.find(content);
  if (at == plain.npos) return {};
  const std::size_t begin = plain.substr(0, at).find_last_not_of(" \n\t") + 1;  // npos + 1 is 0
  const std::string end = plain.substr(at + content.size());
  const auto answer = [&](const std::string& text) -> std::optional<std::string> {
    if (!text.starts_with(plain.substr(0, begin)) || text.size() < begin + end.size() || !text.ends_with(end))
      return {};
    return text.substr(begin, text.size() - begin - end.size());
  };
  const std::optional<std::string> call = answer(one);
  if (!call) return {};
  const std::size_t first = std::min(call->find_first_not_of(" \n\t"), call->size()),
                    name = call->find(kSamples[0].name), arguments = call->find(kArguments);
  if (name == call->npos || arguments == call->npos || arguments <= name || name <= first) return {};
  CallForm form;
  form.begin = call->substr(first, name - first);
  form.middle = call->substr(name + kSamples[0].name.size(), arguments - name - kSamples[0].name.size());
  form.end = call->substr(arguments + kArguments.size());
  form.is_whole_text = bracketed(form.begin).empty() && (form.begin[0] == '{' || form.begin[0] == '[');
  form.marker = bracketed(form.begin).empty() ? form.begin : bracketed(form.begin);
  if (form.middle.empty() || is_of_name(form.middle[0]) || form.middle[0] == CallForm::kOfId) return {};
  // The text that ends an answer comes after it, so it cannot begin a call.
  if (form.marker.find(CallForm::kOfId) != form.marker.npos || end.starts_with(form.marker)) return {};
  try {
    const std::optional<std::string> all = answer(texts.calls(std::size(kSamples)));
    const std::size_t second = all ? all->find(kSamples[1].name) : std::string::npos;
    if (second == std::string::npos) return form;
    const std::size_t read = all->find(kArguments) + kArguments.size();
    std::string between = all->substr(read, second - read), expected = form.begin;
    for (const auto& [sample, id] : kSamples)
      expected += (&sample == &kSamples[0].name ? "" : between) + sample + form.middle + kArguments;
    if (all->substr(first) == expected + form.end) form.between = std::move(between);
  } catch (const std::exception&) {  // the template accepts only one call
  }
  return form;
}

/// The grammar part for a text of the form.
RegexPart text_part(const std::string& text) {
  RegexPart all{Kind::kSequence};
  for (const char byte : text) {
    RegexPart one{Kind::kByte};
    one.bytes = {static_cast<unsigned char>(byte), static_cast<unsigned char>(byte)};
    if (byte != CallForm::kOfId) {
      all.parts.push_back(std::move(one));
      continue;
    }
    RegexPart& any = all.parts.emplace_back(RegexPart{Kind::kChoice});
    for (const ByteRange& range : {ByteRange{'0', '9'}, ByteRange{'A', 'Z'}, ByteRange{'a', 'z'}}) {
      one.bytes = range;
      any.parts.push_back(one);
    }
  }
  return all;
}

RegexPart sequence(std::vector<RegexPart> parts) {
  return {Kind::kSequence, std::move(parts)};
}

RegexPart rule_part(std::size_t rule) {
  RegexPart part{Kind::kRule};
  part.rule = static_cast<int>(rule);
  return part;
}

/// Adds `first` to the numbers of the part's rules.
void shift(RegexPart& part, std::size_t first) {
  if (part.kind == Kind::kRule) part.rule += static_cast<int>(first);
  for (RegexPart& one : part.parts) shift(one, first);
}

/// Appends `more` to `rules`, and returns the number of the first new rule.
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

/// Adds rules for the text after the first 0, 1, 2 … bytes of the marker. Together they are an automaton that
/// finds the marker (Knuth, Morris and Pratt 1977). A text may end anywhere, and the calls come after the
/// marker. Returns the number of the first rule.
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
  try {
    const SampleTexts texts(prompts);
    return texts.has_functions_and_results() ? form_in(texts) : std::nullopt;
  } catch (const std::exception&) {
    return {};  // the template rejects this conversation
  }
}

CallForm plain_call_form() {
  const std::string begin = "<tool_call>\n{\"name\": \"", end = "}\n</tool_call>";
  return {.marker = "<tool_call>",
          .begin = begin,
          .middle = "\", \"arguments\": ",
          .end = end,
          .between = end + "\n" + begin};
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
        sequence({text_part(name + form.middle), rule_part(add_rules(std::move(own), rules))}));
  }
  RegexPart more{Kind::kRepeat, {sequence({text_part(form.between), call})}};
  more.most = may_repeat && !form.between.empty() ? RegexPart::kNoLimit : 0;
  // The marker has already been read.
  rules[kCalls].part =
      sequence({text_part(form.begin.substr(form.marker.size())), call, more, text_part(form.end)});
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
