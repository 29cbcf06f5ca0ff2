#include "common/program/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <thread>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/decoding/constrained_model.h"
#include "common/decoding/object_members.h"
#include "common/program/inputs.h"
#include "common/program/line_editor.h"
#include "common/program/standard_output.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

volatile std::sig_atomic_t interrupted = 0;

constexpr const char* kDecidesTheEnd =
    "--json-schema decides where an answer ends, so leave out --ignore-eos";

/// From now on, Ctrl-C only requests an interruption instead of ending the program.
void catch_interrupts() {
  std::signal(SIGINT, [](int) { interrupted = 1; });
}

/// Text that is safe to show: it contains nothing that a terminal would obey.
std::string shown(const std::string& text) {
  std::string safe;
  std::size_t begin = 0;
  for (std::size_t tab = text.find('\t'); begin <= text.size(); tab = text.find('\t', begin)) {
    const std::size_t end = std::min(tab, text.size());
    safe += printable(text.substr(begin, end - begin), true);
    if (end < text.size()) safe += '\t';
    begin = end + 1;
  }
  return safe;
}

ChatOutput output_to(bool terminal, bool notes_use) {
  ChatOutput output;
  const bool colours = has_colours(stderr);
  output.print = [terminal](const std::string& text) { print(terminal ? shown(text) : text); };
  output.note = [colours](const std::string& line) {
    if (!colours) return say(line);
    std::fputs(("\x1b[2m" + printable(line, true) + "\x1b[0m\n").c_str(), stderr);
  };
  output.check = [] {
    if (interrupted != 0) throw AnswerInterrupted();
  };
  output.notes_use = notes_use;
  return output;
}

void talk(ChatSession& session) {
  catch_interrupts();
  LineEditor editor;
  say("/help lists the commands; Ctrl-D leaves.");
  for (bool goes_on = true; goes_on;) {
    // A program that reads standard output may print on the same terminal. Its last line must come before the
    // prompt.
    if (!platform::is_terminal(stdout)) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const std::optional<Entry> entry = editor.read("> ");
    if (!entry) {
      print("\n");
      return;
    }
    interrupted = 0;
    goes_on = session.take(entry->text, entry->pasted);
  }
}

/// Standard input as an editor would show it: without a byte order mark, and with every line ending in \n
/// only.
std::string read_question() {
  const std::string input = read_input("--prompt", "-");
  std::string text(without_byte_order_mark(input));
  for (std::size_t at = 0; (at = text.find("\r\n", at)) != text.npos; ++at) text.erase(at, 1);
  return text;
}

/// Masks the tokens after which an answer could no longer become valid, before any option edits the logits.
AnswerMessages constrained(const GrammarRules& rules, const Tokenizer& tokenizer, Model& model,
                           const AnswerMessages& answer) {
  const EndTokens ends = model.config().end_tokens;
  const auto constrained = std::make_shared<ConstrainedModel>(
      model, Constraint::of_grammar(rules, std::make_shared<SortedTokens>(tokenizer, ends)));
  return [=](const std::vector<Message>& messages, const OnToken& on_token) {
    constrained->begin();
    bool has_ended = false;
    return answer(messages, [&](const Token& token) {
      if (has_ended) throw Error(kDecidesTheEnd);
      has_ended = ends.contains(token.id);
      on_token(token);
    });
  };
}

}  // namespace

void add_options(Program& program, ChatOptions& options) {
  program.use_generation_config();
  program.add("--prompt", &options.prompts,
              "a question; repeatable, each continues the conversation; - is standard input");
  program.add("--system", Path{&options.system, "TEXT", true},
              "system message that describes the model's role");
  program.add("--chat-template", Path{&options.chat_template, "FILE"},
              "a Jinja template in place of the model's own");
  program.add("--show-use", &options.show_use, "after each answer, show tokens, cache use and times");
  program.add("--json-schema", Path{&options.json_schema, "FILE"},
              "a JSON Schema under which each answer must be valid");
  program.rule([&options] { options.rules = read_json_schema(options.json_schema, written_members); });
  program.refuse_if([&] { return !options.rules.empty() && program.has("--ignore-eos"); }, kDecidesTheEnd);
  program.model_rule([&options](const ModelConfig& config) {
    if (!options.rules.empty() && config.end_tokens.empty())
      throw UsageError("--json-schema needs a model with an end-of-text token, and this one has none");
  });
}

void add_session_option(Program& program, ChatOptions& options) {
  program.add("--session", Path{&options.session, "FILE"},
              "continue the conversation in FILE, and save it there");
}

void hold_conversation(const ChatOptions& options, LiveOptions& settings, const Tokenizer& tokenizer,
                       Model& model, const AnswerMessages& answer) {
  std::vector<std::string> questions = options.prompts;
  const bool at_terminal = questions.empty() && platform::is_terminal(stdin);
  const ChatOutput output = output_to(platform::is_terminal(stdout), options.show_use);
  const std::size_t count = options.store.messages.size();
  ChatSession session(options.system, settings, tokenizer, model.config().end_tokens,
                      options.rules.empty() ? answer : constrained(options.rules, tokenizer, model, answer),
                      output, options.store);
  if (at_terminal) {
    model.check_between_parts(output.check);
    if (count > 0) output.note(fmt::format("The conversation has {} messages.", count));
    talk(session);
    return session.store();
  }
  if (questions.empty()) questions.push_back("-");
  for (const std::string& question : questions) {
    std::string text = question == "-" ? read_question() : question;
    while (text.ends_with('\n')) text.pop_back();
    if (text.empty()) throw Error("the question is empty; it needs a text");
    session.ask(text);
    session.store();
  }
}

}  // namespace staircase
