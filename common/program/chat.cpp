#include "common/program/chat.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/program/inputs.h"
#include "common/program/line_editor.h"
#include "common/program/standard_output.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

volatile std::sig_atomic_t interrupted = 0;

/// From now on Ctrl-C is a request, not the end.
void catch_interrupts() {
  interrupted = 0;
  std::signal(SIGINT, [](int) { interrupted = 1; });
}

/// Text as a terminal may show it: it must obey nothing in it.
std::string shown(const std::string& text) {
  std::string safe;
  std::size_t begin = 0;
  for (std::size_t tab = text.find('\t'); begin <= text.size(); tab = text.find('\t', begin)) {
    const std::size_t end = std::min(tab, text.size());
    safe += harmless(text.substr(begin, end - begin), true);
    if (end < text.size()) safe += '\t';
    begin = end + 1;
  }
  return safe;
}

bool has_colours() {
  const char* const none = std::getenv("NO_COLOR");
  return platform::is_terminal(stderr) && (none == nullptr || *none == '\0');
}

ChatOutput output_to(bool terminal, bool notes_use) {
  ChatOutput output;
  const bool colours = has_colours();
  output.print = [terminal](const std::string& text) { print(terminal ? shown(text) : text); };
  output.note = [colours](const std::string& line) {
    if (!colours) return say(line);
    std::fputs(("\x1b[2m" + harmless(line, true) + "\x1b[0m\n").c_str(), stderr);
  };
  output.check = [] {
    if (interrupted != 0) throw AnswerInterrupted();
  };
  output.notes_use = notes_use;
  return output;
}

void talk(ChatSession& session) {
  LineEditor editor;
  say("/help lists the commands; Ctrl-D leaves.");
  for (bool goes_on = true; goes_on;) {
    const std::optional<std::string> line = editor.read("> ");
    if (!line) {
      print("\n");
      return;
    }
    catch_interrupts();
    goes_on = session.take(*line);
  }
}

}  // namespace

void add_options(OptionSink& sink, ChatOptions& options) {
  sink.add("--prompt", &options.prompts,
           "a question; repeatable, each continues the conversation; - is standard input");
  sink.add("--system", Path{&options.system, "TEXT", true}, "system message: what the model is to be");
  sink.add("--chat-template", Path{&options.chat_template, "FILE"},
           "a Jinja template in place of the model's own");
  sink.add("--show-use", &options.show_use, "after each answer, show tokens, cache use and times");
}

void hold_conversation(const ChatOptions& options, LiveOptions& settings, const Tokenizer& tokenizer,
                       const EndTokens& ends, const AnswerMessages& answer) {
  std::vector<std::string> questions = options.prompts;
  const bool at_terminal = questions.empty() && platform::is_terminal(stdin);
  ChatSession session(options.system, settings, tokenizer, ends, answer,
                      output_to(platform::is_terminal(stdout), options.show_use));
  if (at_terminal) return talk(session);
  if (questions.empty()) questions.push_back("-");
  for (const std::string& question : questions) {
    std::string text = question == "-" ? read_input("--prompt", question) : question;
    while (text.ends_with('\n')) text.pop_back();
    if (text.empty()) throw Error("the question is empty; it needs a text");
    session.ask(text);
  }
}

}  // namespace staircase
