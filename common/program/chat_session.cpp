#include "common/program/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/quoted.h"
#include "common/decoding/text_stream.h"
#include "common/program/command_line.h"
#include "common/program/terminal.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

using nlohmann::ordered_json;

constexpr const char* kHelp =
    "/help             show this list\n/system TEXT      set the system message; without a text, remove "
    "it\n/reset            forget all questions and answers\n/undo             forget the last question "
    "and its answer\n/save FILE        write the conversation as JSON\n/load FILE        continue a saved "
    "conversation\n/set              show the options\n/set NAME VALUE   change one: /set temperature "
    "0.5, /set top-k off\n/exit             leave; Ctrl-D does the same\nCtrl-C ends an answer. A \\ at the "
    "end of a line "
    "continues it, and // begins a question with a slash.";

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

std::string trimmed(const std::string& text) {
  if (is_blank(text)) return "";
  const std::size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  return text.substr(begin, end + 1 - begin);
}

/// Removes blank lines around the text but keeps the indentation of the first line.
std::string indented(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  const std::size_t line = text.find_last_of("\r\n", begin) + 1;  // npos + 1 is 0
  return text.substr(line, end + 1 - line);
}

/// The file with a name that a person typed: ~ is the home folder.
std::filesystem::path file_named(const std::string& name) {
  if (!name.starts_with('~')) return name;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || (name.size() > 1 && name[1] != '/')) {
    throw Error("{}: ~ works only as ~/, your own home folder; write ./~ for a file name that begins with ~",
                typed(name));
  }
  return home + name.substr(1);
}

/// Reads the messages in a file. Throws Error if the file is not a conversation.
std::vector<Message> read_conversation(const std::filesystem::path& path) {
  const std::string file = path.string();
  const ordered_json saved = ordered_json::parse(read_text_file(path), nullptr, false);
  const auto refuse = [&file]() {
    throw Error(R"({} is not a conversation: it needs a list of {{"role": ..., "content": ...}})",
                typed(file));
  };
  if (!saved.is_array()) refuse();
  std::vector<Message> messages;
  for (const ordered_json& one : saved) {
    if (!one.is_object() || !one.contains("role") || !one.contains("content")) refuse();
    if (!one["role"].is_string() || !one["content"].is_string()) refuse();
    messages.push_back({one["role"], one["content"]});
    const std::string& role = messages.back().role;
    if (role != "system" && role != "user" && role != "assistant")
      throw Error("{}: a role is {}; it must be system, user or assistant", typed(file), typed(role));
  }
  return messages;
}

}  // namespace

ChatSession::ChatSession(const std::string& system, LiveOptions& settings, const Tokenizer& tokenizer,
                         EndTokens ends, AnswerMessages answer, ChatOutput output, ChatStore store)
    : settings_(settings),
      tokenizer_(tokenizer),
      ends_(std::move(ends)),
      answer_(std::move(answer)),
      output_(std::move(output)),
      store_(std::move(store)),
      messages_(store_.messages) {
  if (!system.empty()) set_system(system);
}

bool ChatSession::take(const std::string& line, bool pasted) {
  const bool goes_on = obey(line, pasted);
  try {
    store();
  } catch (const Error& error) {
    output_.note(error.what());
  }
  return goes_on;
}

void ChatSession::store() {
  if (!store_.save || messages_ == store_.messages) return;
  store_.save(messages_);
  store_.messages = messages_;
}

bool ChatSession::obey(const std::string& line, bool pasted) {
  const std::string text = trimmed(line);
  if (text.empty()) return true;
  try {
    if (pasted || !text.starts_with('/')) {
      ask(pasted || text.find('\n') != text.npos ? indented(line) : text);
      return true;
    }
    if (text.starts_with("//")) {
      ask(text.substr(1));
      return true;
    }
    const std::size_t space = std::min(text.find_first_of(" \t"), text.size());
    return run_command(text.substr(1, space - 1), trimmed(text.substr(space)));
  } catch (const Error& error) {
    output_.note(error.what());
    return true;
  }
}

void ChatSession::ask(const std::string& question) {
  const std::vector<Message> before = messages_;
  messages_.push_back({"user", question});
  TextStream stream(tokenizer_, ends_);
  std::string text;
  bool shows_candidates = false;  // if so, the text is printed at the end: tables would interrupt it
  const auto show = [&](const std::string& part) {
    text += part;
    if (!part.empty() && !shows_candidates) output_.print(part);
  };
  const auto end = [&](FinishReason reason) {
    show(stream.finish(reason));
    output_.print(shows_candidates ? text + "\n" : "\n");
  };
  const Clock::time_point start = Clock::now();
  std::optional<Clock::time_point> first;
  int tokens = 0;
  try {
    const Answer answer = answer_(messages_, [&](const Token& token) {
      if (!first) first = token.time;
      ++tokens;
      output_.check();
      if (!token.candidates.empty()) {
        shows_candidates = true;
        output_.note(candidate_lines(tokenizer_, token));
      }
      show(stream.push(token));
    });
    end(answer.finish_reason);
    if (answer.finish_reason == FinishReason::kLength)
      output_.note(
          fmt::format("The answer was cut off after {} tokens; max-new-tokens allows more.", tokens));
    if (answer.dropped_messages > 0) {
      output_.note(fmt::format("The oldest {} messages no longer fit, and the model did not see them.",
                               answer.dropped_messages));
    }
    if (output_.notes_use) note_use(answer, start, first.value_or(Clock::now()), tokens);
  } catch (const AnswerInterrupted&) {
    end(FinishReason::kEos);
    if (text.empty()) {
      messages_ = before;
      return;
    }
  } catch (...) {
    if (!text.empty()) output_.print("\n");
    messages_ = before;
    throw;
  }
  messages_.push_back({"assistant", text});
}

void ChatSession::note_use(const Answer& answer, Clock::time_point start, Clock::time_point first,
                           int tokens) const {
  using Seconds = std::chrono::duration<double>;
  const double wait = Seconds(first - start).count(), rest = Seconds(Clock::now() - first).count();
  output_.note(
      fmt::format("{} prompt tokens, {} of them from the cache; first token after {:.0f} ms; {} new "
                  "tokens, {:.1f} tokens/s",
                  answer.prompt_tokens, answer.cached_tokens, 1000 * wait, tokens,
                  tokens > 1 && rest > 0 ? (tokens - 1) / rest : 0.0));
}

bool ChatSession::run_command(const std::string& command, const std::string& argument) {
  if (command == "exit" || command == "quit" || command == "bye") {
    if (argument.empty()) return false;
    throw Error("/{} takes no text, but {} follows it.", command, typed(argument));
  }
  for (const char* const alone : {"help", "?", "reset", "undo"}) {
    if (command == alone && !argument.empty()) {
      throw Error("/{} takes no text, but {} follows it.", command, typed(argument));
    }
  }
  if (command == "help" || command == "?") {
    output_.note(kHelp);
  } else if (command == "system") {
    set_system(argument);
  } else if (command == "reset") {
    reset();
  } else if (command == "undo") {
    undo();
  } else if (command == "save") {
    save(argument);
  } else if (command == "load") {
    load(argument);
  } else if (command == "set") {
    set(argument);
  } else {
    throw Error("There is no command {}; /help lists the commands.", typed("/" + command));
  }
  return true;
}

void ChatSession::set_system(const std::string& text) {
  if (!messages_.empty() && messages_[0].role == "system") messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", text});
}

void ChatSession::reset() {
  std::erase_if(messages_, [](const Message& message) { return message.role != "system"; });
}

void ChatSession::undo() {
  const auto last = std::find_if(messages_.rbegin(), messages_.rend(),
                                 [](const Message& message) { return message.role == "user"; });
  if (last == messages_.rend()) throw Error("There is no question to forget.");
  messages_.erase(std::prev(last.base()), messages_.end());
}

void ChatSession::save(const std::string& name) const {
  if (name.empty()) throw Error("/save needs the name of a file.");
  const std::filesystem::path file = file_named(name);
  if (is_there(file)) read_conversation(file);  // overwrites only conversations
  ordered_json saved = ordered_json::array();
  for (const Message& message : messages_)
    saved.push_back({{"role", message.role}, {"content", message.content}});
  try {
    platform::replace_file(file, saved.dump(2, ' ', false, ordered_json::error_handler_t::replace) + '\n');
  } catch (const std::system_error& fault) {
    throw Error("{} cannot be written: {}", typed(file.string()), fault.code().message());
  }
  output_.note(fmt::format("Saved {} messages in {}.", messages_.size(), typed(file.string())));
}

void ChatSession::load(const std::string& name) {
  if (name.empty()) throw Error("/load needs the name of a file.");
  std::vector<Message> loaded = read_conversation(file_named(name));
  const std::size_t count = loaded.size();
  if (loaded.empty() || loaded.back().role != "user") {
    messages_ = std::move(loaded);
    return output_.note(fmt::format("The conversation has {} messages.", count));
  }
  const std::string question = loaded.back().content;
  loaded.pop_back();
  const std::vector<Message> before = std::exchange(messages_, std::move(loaded));
  output_.note(fmt::format("The conversation has {} messages, and the last one waits for an answer: {}",
                           count, question));
  try {
    ask(question);
  } catch (const Error& error) {
    messages_ = before;
    throw Error("{}; nothing was loaded", error.what());
  }
}

void ChatSession::set(const std::string& argument) {
  if (argument.empty()) {
    for (const std::string& line : settings_.values()) output_.note(line);
    return;
  }
  const std::size_t space = std::min(argument.find_first_of(" \t"), argument.size());
  std::string name = argument.substr(0, space), value = trimmed(argument.substr(space));
  while (name.starts_with('-')) name.erase(0, 1);
  try {
    settings_.set(name, value.empty() ? "true" : value);
  } catch (const UsageError& error) {
    std::string sentence = error.what();
    if (sentence.ends_with(kSeeHelp)) {
      sentence.resize(sentence.size() - kSeeHelp.size());
      sentence += " (/help lists the commands)";
    }
    throw UsageError("{}", sentence);
  }
}

}  // namespace staircase
