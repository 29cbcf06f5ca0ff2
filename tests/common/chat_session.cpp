// A conversation as a person holds it: questions, commands, and what is left of them after a mistake.
#include "common/program/chat_session.h"

#include <doctest/doctest.h>

#include <fstream>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/model/model_folder.h"
#include "common/program/command_line.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;

namespace {

using Messages = std::vector<Message>;

constexpr int kEnd = 4095;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(find_model("tales-6m"));
  return loaded;
}

/// A session whose answers are made here: the words of `reply`, and the end.
struct Talk {
  CommandLine line{"A program."};
  LiveOptions settings{line};
  int top_k = 5;
  std::optional<float> top_p = {};
  float temperature = 1.0f;
  bool do_sample = false;
  std::string reply = "I am a crow.";
  Answer answer = {};
  bool fails = false;
  int tokens_until_interrupt = -1;
  std::function<Clock::time_point(int number)> time = [](int) {
    return Clock::now();
  };  // of an answer's tokens
  std::string printed;
  std::vector<std::string> notes;
  Messages seen;
  ChatSession session;

  explicit Talk(const std::string& system = "", bool notes_use = false, ChatStore store = {})
      : session(
            system, settings, tokenizer(), kEnd,
            [this](const Messages& messages, const OnToken& on_token) {
              seen = messages;
              if (fails) throw Error("no room");
              int number = 0;
              for (const int token : tokenizer().encode(reply))
                on_token({.id = token, .time = time(number++)});
              on_token({.id = kEnd, .time = time(number)});
              return answer;
            },
            {.print = [this](const std::string& text) { printed += text; },
             .note = [this](const std::string& text) { notes.push_back(text); },
             .check =
                 [this] {
                   if (tokens_until_interrupt-- == 0) throw AnswerInterrupted();
                 },
             .notes_use = notes_use},
            std::move(store)) {
    settings.add("--top-k", &top_k, "help", between(1, 50));
    settings.add("--top-p", &top_p, "help", between(0, 1));
    settings.add("--temperature", &temperature, "help", at_least(0));
    settings.add("--do-sample", &do_sample, "help");
    settings.rule([this] {
      if (do_sample && top_k == 1) throw UsageError("--top-k 1 leaves nothing to sample");
    });
  }

  /// The note that a line leads to, the only one.
  std::string note(const std::string& text) {
    notes.clear();
    CHECK(session.take(text));
    CHECK(notes.size() == 1);
    return notes.empty() ? "" : notes[0];
  }
};

const Messages kTwo{{"user", "Who are you?"}, {"assistant", "I am a crow."}};

}  // namespace

TEST_CASE("a question is answered in the terminal and kept in the conversation") {
  Talk talk;
  CHECK(talk.session.take("  Who are you? \n"));
  CHECK(talk.printed == "I am a crow.\n");
  CHECK(talk.seen == Messages{{"user", "Who are you?"}});
  CHECK(talk.session.messages() == kTwo);
  CHECK(talk.session.take("Where?"));
  CHECK(talk.seen == Messages{kTwo[0], kTwo[1], {"user", "Where?"}});
  CHECK(talk.notes.empty());
}

TEST_CASE("a blank line asks nothing") {
  Talk talk;
  for (const std::string blank : {"", "   ", "\n\t\n"}) CHECK(talk.session.take(blank));
  CHECK(talk.session.messages().empty());
  CHECK(talk.printed.empty());
}

TEST_CASE("a question may have many lines, and may begin with a slash that is written twice") {
  Talk talk;
  talk.session.take("one\ntwo");
  CHECK(talk.seen.back().content == "one\ntwo");
  talk.session.take("//etc/passwd");
  CHECK(talk.seen.back().content == "/etc/passwd");
}

TEST_CASE("an interrupted answer stays as far as it got") {
  Talk talk;
  talk.tokens_until_interrupt = 2;
  CHECK(talk.session.take("Who are you?"));
  CHECK(talk.session.messages() == Messages{{"user", "Who are you?"}, {"assistant", "I am"}});
  CHECK(talk.printed == "I am\n");
}

TEST_CASE("an answer stopped before its first token leaves no empty turn") {
  Talk talk;
  talk.session.take("Who are you?");
  talk.tokens_until_interrupt = 0;
  CHECK(talk.session.take("Where?"));
  CHECK(talk.session.messages() == kTwo);
}

TEST_CASE("pasted text is a question, and keeps its slashes and its indentation") {
  for (const std::string text : {"/exit", "//etc", "/* a */", "  if x:\n    y"}) {
    Talk talk;
    CHECK(talk.session.take("\n" + text + "\n", true));
    CHECK(talk.seen.back().content == text);
  }
}

TEST_CASE("a question that cannot be answered leaves the conversation as it was") {
  Talk talk;
  talk.session.take("Who are you?");
  talk.fails = true;
  CHECK(talk.note("Where?") == "no room");
  CHECK(talk.session.messages() == kTwo);
  CHECK_THROWS_AS(talk.session.ask("Where?"), Error);
}

TEST_CASE("/system sets, changes and removes the system message, and /reset keeps it") {
  Talk talk("Be brief.");
  talk.session.take("Who are you?");
  CHECK(talk.seen.front() == Message{"system", "Be brief."});
  talk.session.take("/system Be kind to me.");
  CHECK(talk.session.messages() == Messages{{"system", "Be kind to me."}, kTwo[0], kTwo[1]});
  talk.session.take("/reset");
  CHECK(talk.session.messages() == Messages{{"system", "Be kind to me."}});
  talk.session.take("/system");
  CHECK(talk.session.messages().empty());
}

TEST_CASE("/undo removes the last question and its answer") {
  Talk talk;
  talk.session.take("Who are you?");
  talk.session.take("Where?");
  talk.session.take("/undo");
  CHECK(talk.session.messages() == kTwo);
  talk.session.take("/undo");
  CHECK(talk.session.messages().empty());
  CHECK(talk.note("/undo") == "There is no question to forget.");
}

TEST_CASE("/save and /load keep a conversation in a file") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "talk.json").string();
  Talk talk("Sei kurz: \xf0\x9f\xa6\x8a \"\n");
  talk.session.take("Who are you?");
  CHECK(begins_with(talk.note("/save " + file), "Saved 3 messages in "));
  Talk other;
  CHECK(other.note("/load " + file) == "The conversation has 3 messages.");
  CHECK(other.session.messages() == talk.session.messages());
  CHECK(begins_with(talk.note("/save " + file), "Saved 3 messages"));  // its own file may be written over
}

TEST_CASE("/load answers a question at the end of a conversation, or changes nothing") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "talk.json").string();
  std::ofstream(file) << R"([{"role": "user", "content": "Who are you?"},
                             {"role": "assistant", "content": "I am a crow."}, {"role": "user", "content": "Where?"}])";
  Talk talk;
  CHECK(talk.note("/load " + file) ==
        "The conversation has 3 messages, and the last one waits for an answer: Where?");
  CHECK(talk.printed == "I am a crow.\n");
  CHECK(talk.seen == Messages{kTwo[0], kTwo[1], {"user", "Where?"}});
  CHECK(talk.session.messages() == Messages{kTwo[0], kTwo[1], {"user", "Where?"}, kTwo[1]});

  Talk interrupted;
  interrupted.tokens_until_interrupt = 0;
  interrupted.session.take("/load " + file);
  CHECK(interrupted.session.messages() == kTwo);

  Talk refused("Be brief.");
  refused.fails = true;
  refused.session.take("/load " + file);
  CHECK(refused.notes.back() == "no room; nothing was loaded");
  CHECK(refused.session.messages() == Messages{{"system", "Be brief."}});
}

TEST_CASE("/save overwrites no other file, and /load refuses a file that is not a conversation") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "notes.txt").string();
  Talk talk;
  talk.session.take("Who are you?");
  for (const std::string content :
       {"dear diary", "{}", "[1]", R"([{"role": "user"}])", R"([{"role": 1, "content": "a"}])",
        R"([{"role": "user", "content": null}])"}) {
    std::ofstream(file) << content;
    CHECK(contains(talk.note("/save " + file), " is not a conversation: it needs a list of "));
    CHECK(read_text_file(file) == content);
    CHECK(contains(talk.note("/load " + file), " is not a conversation: it needs a list of "));
  }
  std::ofstream(file) << R"([{"role": "boss", "content": "a"}])";
  CHECK(talk.note("/load " + file).find("a role is boss; it must be system, user or assistant") !=
        std::string::npos);
  CHECK(talk.note("/load /nowhere/talk.json").find("/nowhere/talk.json") != std::string::npos);
  CHECK(talk.note("/save /nowhere/talk.json").find("cannot be written") != std::string::npos);
  std::filesystem::create_symlink("loop", folder.path() / "loop");
  for (const std::string command : {"/save ", "/load "}) {
    CHECK(talk.note(command + (folder.path() / "loop").string())
              .find("/loop cannot be read: Too many levels of symbolic links") != std::string::npos);
  }
  CHECK(talk.note("/save") == "/save needs the name of a file.");
  CHECK(talk.note("/load") == "/load needs the name of a file.");
  CHECK(talk.session.messages() == kTwo);
}

TEST_CASE("/set shows the options and changes one, by the name of the command line") {
  Talk talk;
  talk.session.take("/set");
  CHECK(talk.notes == std::vector<std::string>{"top-k 5", "top-p off", "temperature 1", "do-sample false"});
  talk.notes.clear();
  talk.session.take("/set top-k 7");
  talk.session.take("/set --temperature 0.5");
  talk.session.take("/set do-sample");
  CHECK(talk.notes.empty());
  CHECK(talk.top_k == 7);
  CHECK(talk.temperature == 0.5f);
  CHECK(talk.do_sample);
  talk.session.take("/set do-sample false");
  CHECK_FALSE(talk.do_sample);
  talk.session.take("/set top-p 0.5");
  CHECK(talk.top_p == 0.5f);
  talk.session.take("/set top-p off");
  CHECK_FALSE(talk.top_p);
}

TEST_CASE("an option of any kind is shown as it is typed, and a mistake puts its value back") {
  CommandLine line("A program.");
  LiveOptions settings(line);
  std::optional<int> threads, top = 4;
  std::string folder = "a b";
  std::vector<int> ends{3, 4};
  unsigned seed = 9;
  bool refuses = false;
  settings.add("--threads", NumberOrAuto{&threads}, "help", at_least(1));
  settings.add("--top", &top, "help", at_least(1));
  settings.add("--folder", Path{&folder}, "help");
  settings.add("--ends", &ends, "help", at_least(0));
  settings.add("--seed", &seed, "help");
  settings.rule([&] {
    if (refuses) throw UsageError("no");
  });
  using Lines = std::vector<std::string>;
  CHECK(settings.values() == Lines{"threads auto", "top 4", "folder a b", "ends 3,4", "seed 9"});
  settings.set("threads", "3");
  settings.set("top", "off");
  settings.set("folder", "c");
  settings.set("seed", "1");
  const Lines changed{"threads 3", "top off", "folder c", "ends 3,4", "seed 1"};
  CHECK(settings.values() == changed);
  refuses = true;
  for (const char* name : {"threads", "top", "folder", "ends", "seed"}) {
    CHECK_THROWS_AS(settings.set(name, "7"), UsageError);
    CHECK(settings.values() == changed);
  }
  refuses = false;
  settings.set("threads", "auto");
  CHECK(settings.values()[0] == "threads auto");
  for (const char* name : {"threads", "ends", "seed"})  // only an optional value can be off
    CHECK_THROWS_AS(settings.set(name, "off"), UsageError);
}

TEST_CASE("/set reaches what depends on an option, also if its value stays the same") {
  Talk talk;
  int calls = 0;
  talk.settings.on_set("--top-k", [&] { ++calls; });
  talk.session.take("/set top-k 7");
  talk.session.take("/set top-k 7");
  talk.session.take("/set top-k 70");
  talk.session.take("/set temperature 0.5");
  CHECK(calls == 2);
}

TEST_CASE("a wrong /set names what would be right, and changes nothing") {
  Talk talk;
  CHECK(talk.note("/set top-q 7") ==
        "there is no option top-q; the options are top-k, top-p, temperature, do-sample");
  CHECK(begins_with(talk.note("/set top-k 70"), "top-k is 70, but it must be between 1 and 50"));
  CHECK(talk.note("/set top-k many") ==
        "top-k is many, but it must be a whole number between 1 and 50 (/help lists the commands)");
  CHECK(talk.note("/set top-k off") ==
        "top-k is off, but it must be a whole number between 1 and 50 (/help lists the commands)");
  CHECK(talk.note("/set do-sample 3") == "do-sample is 3, but it must be true or false");
  CHECK(talk.top_k == 5);
  talk.session.take("/set do-sample true");
  CHECK(talk.note("/set top-k 1") == "--top-k 1 leaves nothing to sample");
  CHECK(talk.top_k == 5);
}

TEST_CASE("/help lists every command, and an unknown one is named") {
  Talk talk;
  const std::string help = talk.note("/help");
  for (const std::string name : {"system", "reset", "undo", "save", "load", "set", "exit"})
    CHECK(contains(help, "/" + name));
  CHECK(talk.note("/dance now") == "There is no command /dance; /help lists the commands.");
  CHECK(talk.note("/?") == help);
  for (const char* leave : {"/exit", "/quit", "/bye"}) CHECK_FALSE(talk.session.take(leave));
}

TEST_CASE("a command that stands alone refuses what comes after it") {
  Talk talk;
  talk.session.take("Who are you?");
  for (const std::string command : {"help", "?", "reset", "undo", "exit", "quit", "bye"}) {
    CHECK(talk.note("/" + command + " now") == "/" + command + " takes no text, but now follows it.");
  }
  CHECK(talk.session.messages() == kTwo);
}

TEST_CASE("~ is the own home folder, and no other") {
  Talk talk;
  for (const std::string name : {"~other/talk.json", "~~", "~1"}) {
    CHECK(talk.note("/load " + name).find("works only as ~/, your own home folder") != std::string::npos);
  }
  CHECK(talk.note("/load ~/no/talk.json").find("does not exist") != std::string::npos);
  CHECK(talk.note("/load ~").find("is a folder") != std::string::npos);
  CHECK(talk.note("/load ./~no").find("./~no does not exist") == 0);
}

TEST_CASE("a truncated answer and dropped messages are reported") {
  Talk talk;
  talk.answer = {.finish_reason = FinishReason::kLength};
  CHECK(talk.note("Who?") ==
        fmt::format("The answer was cut off after {} tokens; max-new-tokens allows more.",
                    tokenizer().encode(talk.reply).size() + 1));
  for (const FinishReason reason : {FinishReason::kEos, FinishReason::kStop}) {
    talk.notes.clear();
    talk.answer = {.finish_reason = reason};
    talk.session.take("Who?");
    CHECK(talk.notes.empty());
  }
  talk.answer = {.dropped_messages = 4};
  CHECK(talk.note("Who?") == "The oldest 4 messages no longer fit, and the model did not see them.");
}

TEST_CASE("tokens and times are a line on request") {
  Talk talk("", true);
  talk.answer = {.prompt_tokens = 40, .cached_tokens = 30};
  const std::string note = talk.note("Who?");
  CHECK(begins_with(note, "40 prompt tokens, 30 of them from the cache; first token after "));
  CHECK(note.find(fmt::format("; {} new tokens, ", tokenizer().encode(talk.reply).size() + 1)) !=
        std::string::npos);
}

TEST_CASE("the time to the first token is the first one's, and the speed is of the tokens after it") {
  // The first number of `note` after `words`.
  const auto number_after = [](const std::string& note, const std::string& words) {
    REQUIRE(contains(note, words));
    return std::stod(note.substr(note.find(words) + words.size()));
  };
  Talk talk("", true);
  talk.time = [](int number) { return Clock::now() + std::chrono::seconds(100 * (number + 1)); };
  const double first = number_after(talk.note("Who?"), "first token after ");
  CHECK(first >= 100'000.0);
  CHECK(first < 150'000.0);
  talk.time = [](int) { return Clock::now() - std::chrono::seconds(2); };
  for (int i = 0; i < 40; ++i) talk.reply += " crow";
  const std::string note = talk.note("Who?");
  const int tokens = static_cast<int>(tokenizer().encode(talk.reply).size()) + 1;
  REQUIRE(tokens > 40);
  CHECK(number_after(note, "; " + std::to_string(tokens) + " new tokens, ") <= (tokens - 1) / 2.0);
  CHECK(number_after(note, " new tokens, ") > (tokens - 1) / 20.0);
  talk.reply = "";
  CHECK(ends_with(talk.note("Who?"), "; 1 new tokens, 0.0 tokens/s"));
}

TEST_CASE("a character in several tokens appears whole, and half of one as a mark") {
  Talk talk;
  talk.reply = "\xf0\x9f\xa6\x8a";
  REQUIRE(tokenizer().encode(talk.reply).size() > 1);
  talk.session.take("Who?");
  CHECK(talk.printed == talk.reply + "\n");
  talk.printed.clear();
  talk.tokens_until_interrupt = 2;
  talk.session.take("Who?");
  CHECK(talk.printed == "\uFFFD\n");
}

TEST_CASE("a conversation is stored after each answer and each command that changes it, and only then") {
  std::vector<Messages> stored;
  Talk talk("", false, {.save = [&](const Messages& messages) { stored.push_back(messages); }});
  talk.session.take("Who are you?");
  CHECK(stored == std::vector<Messages>{kTwo});
  for (const char* const line : {"/help", "/set top-k 3", "", "/nothing"}) talk.session.take(line);
  talk.tokens_until_interrupt = 0;
  talk.session.take("Where?");  // has no answer
  CHECK(stored.size() == 1);
  talk.session.take("/system A wood.");
  CHECK(stored.back() == Messages{{"system", "A wood."}, kTwo[0], kTwo[1]});
  talk.session.take("/undo");
  CHECK(stored.back() == Messages{{"system", "A wood."}});
  CHECK(stored.size() == 3);
}

TEST_CASE("an answer that cannot be stored stays in the conversation, and is stored with the next") {
  bool fails = true;
  Messages stored;
  Talk talk("", false, {.save = [&](const Messages& messages) {
              if (fails) throw Error("the disk is full");
              stored = messages;
            }});
  CHECK(talk.note("Who are you?") == "the disk is full");
  CHECK(talk.note("") == "the disk is full");  // it tries again
  CHECK_THROWS_AS(talk.session.store(), Error);
  fails = false;
  talk.session.take("Where?");
  CHECK(stored == Messages{kTwo[0], kTwo[1], {"user", "Where?"}, kTwo[1]});
}

TEST_CASE("a stored conversation goes on, and a given system message replaces its own") {
  const Messages before{{"system", "A wood."}, kTwo[0], kTwo[1]};
  Talk talk("", false, {.messages = before});
  CHECK(talk.session.messages() == before);
  Talk other("A farm.", false, {.messages = before});
  CHECK(other.session.messages() == Messages{{"system", "A farm."}, kTwo[0], kTwo[1]});
  other.session.take("Where?");
  CHECK(other.seen.size() == 4);
}
