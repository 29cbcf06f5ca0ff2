#include <doctest/doctest.h>

#include "common/base/file.h"
#include "conversation.h"
#include "dropped_turns.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/temporary_folder.h"

using namespace staircase;

namespace {

using Ids = std::vector<int>;
using Messages = std::vector<Message>;

const std::string kTemplate = STAIRCASE_SOURCE_TREE "/models/tales-chat.jinja";

const ChatTemplate& tale() {
  static const ChatTemplate loaded(read_text_file(kTemplate), {}, kTemplate);
  return loaded;
}

/// A conversation and the state that its program keeps.
struct Talk {
  Model& model;
  TextOptions options{.stopping = {.max_new_tokens = 12}};
  Conversation conversation{model, tales_tokenizer(), tale(), options};
  Messages messages = {};
  Ids tokens = {};  // of the last answer
  Answer answer = {};

  explicit Talk(Model& its_model, float temperature = 0, unsigned seed = 3) : model(its_model) {
    options.sampling.do_sample = temperature > 0;
    if (temperature > 0) options.sampling.temperature = temperature;
    options.sampling.seed = seed;
    conversation.reseed();
  }

  void ask(const std::string& question) {
    messages.push_back({"user", question});
    tokens.clear();
    answer = conversation.answer(messages, [&](const Token& token) { tokens.push_back(token.id); });
    Ids text = tokens;
    if (answer.finish_reason == FinishReason::kEos) text.pop_back();
    messages.push_back({"assistant", tales_tokenizer().decode(text)});
  }

  void save(const std::filesystem::path& file) {
    conversation.save(SessionFile(file, model, tale()), messages);
  }

  void restore(const std::filesystem::path& file) {
    auto saved = SessionFile(file, model, tale()).read();
    REQUIRE(saved.has_value());
    messages = conversation.restore(*saved);
  }
};

/// Asks two conversations the same question, and checks that they answer alike and compute as much.
void check_next(Talk& one, Talk& other, const std::string& question) {
  one.ask(question);
  other.ask(question);
  CHECK(one.tokens == other.tokens);
  CHECK(one.messages == other.messages);
  CHECK(one.answer.prompt_tokens == other.answer.prompt_tokens);
  CHECK(one.answer.cached_tokens == other.answer.cached_tokens);
  CHECK(one.answer.dropped_messages == other.answer.dropped_messages);
}

}  // namespace

TEST_CASE("a conversation that is ended after each answer has the tokens of one that never ends") {
  Model model = tales_in(DType::kFloat32);
  for (const DType dtype : cache_dtypes()) {
    CAPTURE(to_string(dtype));
    try {
      model.use_cache_dtype(dtype);
    } catch (const UsageError&) {
      continue;  // a GPU does not support all types
    }
    for (const float temperature : {0.0f, 1.0f, 3.0f}) {
      CAPTURE(temperature);
      const TemporaryFolder folder;
      const auto file = folder.path() / "session";
      Talk whole(model, temperature);
      for (const char* const question : {"Why do you weep?", "Where do you live?", "Who are you?", "Why?"}) {
        Talk next(model, temperature);
        if (!whole.messages.empty()) next.restore(file);
        check_next(whole, next, question);
        CHECK(next.answer.cached_tokens >= static_cast<int>(12 * (whole.messages.size() / 2 - 1)));
        next.save(file);
      }
    }
  }
}

TEST_CASE("the same question again computes one token of the prompt: its logits are needed") {
  const TextOptions options{.stopping = {.max_new_tokens = 12}};
  Conversation conversation(tales(), tales_tokenizer(), tale(), options);
  const Messages messages{{"user", "Why do you weep?"}};
  const Answer first = conversation.answer(messages, [](const Token&) {});
  const Answer again = conversation.answer(messages, [](const Token&) {});
  CHECK(first.cached_tokens == 0);
  CHECK(again.prompt_tokens == first.prompt_tokens);
  CHECK(again.cached_tokens == first.prompt_tokens - 1);
}

TEST_CASE("answers keep their tokens, also those before the last") {
  // At a high temperature, texts have tokens that encoding them would not yield.
  const TemporaryFolder folder;
  Talk whole(tales(), 5);
  for (const char* const question : {"Why?", "Who?", "Where?"}) whole.ask(question);
  whole.save(folder.path() / "session");
  Talk next(tales(), 5);
  next.restore(folder.path() / "session");
  for (Talk* const talk : {&whole, &next}) talk->messages.resize(4);  // as /undo does
  check_next(whole, next, "What do you eat?");
  CHECK(next.answer.cached_tokens > 24);
  Messages alone = next.messages;
  alone.pop_back();
  CHECK(std::ssize(encode_chat(tales_tokenizer(), tale().render(alone))) != next.answer.prompt_tokens);
}

TEST_CASE("a conversation that goes back to an earlier question computes only what differs") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "session";
  Talk before(tales());
  for (const char* const question : {"Why do you weep?", "Where do you live?"}) before.ask(question);
  before.save(file);
  const int first = before.answer.cached_tokens;
  Talk next(tales());
  next.restore(file);
  next.messages.resize(2);
  next.ask("Who is your friend?");
  CHECK(next.answer.cached_tokens >= first);
}

TEST_CASE("rings go on as if the program had never ended, also after a conversation went back") {
  Model model = Model::load(find_model("tales-window-1m"), make_test_device(2));
  const TemporaryFolder folder;
  const auto file = folder.path() / "session";
  Talk whole(model, 1);
  whole.options.stopping = {.max_new_tokens = 60, .ignore_eos = true};
  int most = 0;
  std::mt19937 generator(2);
  for (int round = 0; round < 24; ++round) {
    CAPTURE(round);
    Talk next(model, 1);
    next.options.stopping = whole.options.stopping;
    if (round > 0) next.restore(file);
    std::size_t kept = round > 6 && generator() % 3 == 0 ? generator() % 6 * 2 : 1000;  // as /undo does
    if (round == 5) kept = 6;
    if (round == 6) kept = 2;  // too far back for a ring that has already wrapped around
    for (Talk* const talk : {&whole, &next}) talk->messages.resize(std::min(kept, talk->messages.size()));
    check_next(whole, next, "Why do you weep, and where do you live?");
    if (round == 5) CHECK(next.answer.cached_tokens > 100);
    if (round == 6) CHECK(next.answer.cached_tokens == 0);
    next.save(file);
    most = std::max(most, next.answer.prompt_tokens);
  }
  CHECK(most > 320);  // the positions of a ring
}

TEST_CASE("copies of a file go on from the same beginning, each on its own") {
  const TemporaryFolder folder;
  const auto one = folder.path() / "one", other = folder.path() / "other";
  Talk before(tales());
  before.ask("Why do you weep?");
  before.save(one);
  std::filesystem::copy(one, other);
  for (const auto& file : {one, other}) {
    const std::string question = file == one ? "Where do you live?" : "Who are you?";
    Talk next(tales()), alone(tales());
    next.restore(file);
    alone.ask("Why do you weep?");
    check_next(alone, next, question);
    next.save(file);
  }
  Talk again(tales());
  again.restore(one);
  CHECK(again.messages[2].content == "Where do you live?");
}

TEST_CASE("the oldest turns of a longer conversation are dropped, until half of the context is free") {
  const TextOptions options{.stopping = {.max_new_tokens = 8}};
  const auto turns =
      [](int first) {  // a system message and the turns from `first` to 60, without the last answer
        Messages messages{{"system", "There was a wood."}};
        for (int number = first; number <= 60; ++number) {
          messages.push_back({"user", fmt::format("question {}", number)});
          messages.push_back({"assistant", fmt::format("answer {}", number)});
        }
        messages.pop_back();
        return messages;
      };
  const auto prompt_tokens = [&](int first) {
    return static_cast<int>(encode_chat(tales_tokenizer(), tale().render(turns(first))).size());
  };
  REQUIRE(prompt_tokens(1) > 512);
  Conversation conversation(tales(), tales_tokenizer(), tale(), options);
  const Answer answer = conversation.answer(turns(1), [](const Token&) {});
  const int first = 1 + answer.dropped_messages / 2;
  CHECK(answer.prompt_tokens == prompt_tokens(first));
  CHECK(prompt_tokens(first) + 8 <= 256);
  CHECK(prompt_tokens(first - 1) + 8 > 256);  // it drops no more than it must
}

TEST_CASE("the next question finds all tokens of an answer in the cache, but not the one that ended it") {
  const TextOptions options{.stopping = {.max_new_tokens = 400}};
  Conversation conversation(tales(), tales_tokenizer(), tale(), options);
  Messages messages{{"user", "Why do you weep?"}};
  Ids tokens;
  const Answer first = conversation.answer(messages, [&](const Token& token) { tokens.push_back(token.id); });
  REQUIRE(first.finish_reason == FinishReason::kEos);
  tokens.pop_back();
  messages.push_back({"assistant", tales_tokenizer().decode(tokens)});
  messages.push_back({"user", "Who?"});
  const Answer second = conversation.answer(messages, [](const Token&) {});
  CHECK(second.cached_tokens >= first.prompt_tokens + std::ssize(tokens));
}

TEST_CASE("dropped turns stay dropped, and are not reported again") {
  const TemporaryFolder folder;
  Talk whole(tales());
  int dropped = 0;
  for (int i = 0; i < 40 && dropped == 0; ++i) {
    whole.ask("the king and the queen and the fox and the crow");
    dropped += whole.answer.dropped_messages;
  }
  REQUIRE(dropped > 0);
  whole.save(folder.path() / "session");
  Talk next(tales());
  next.restore(folder.path() / "session");
  CHECK(next.messages.size() == whole.messages.size());
  for (const char* const question : {"Why?", "Who?"}) {
    check_next(whole, next, question);
    CHECK(next.answer.cached_tokens > 30);
    CHECK(next.answer.dropped_messages == 0);
  }
}

TEST_CASE("the dropped turns can be asked for, and given to another") {
  DroppedTurns turns;
  Messages messages{{"system", "s"}, {"user", "1"},      {"assistant", "2"},
                    {"user", "3"},   {"assistant", "4"}, {"user", "5"}};
  const Messages all = messages;
  CHECK(turns.dropped().empty());
  turns.drop_oldest(messages);
  CHECK(turns.dropped() == Messages{{"user", "1"}, {"assistant", "2"}});
  DroppedTurns other(turns.dropped());
  CHECK(other.rest(all) == messages);
  CHECK(other.report() == 0);
  other.drop_oldest(messages);
  CHECK(other.report() == 2);
}

TEST_CASE("random numbers go on, unless another seed is given") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "session";
  Talk before(tales(), 2, 7);
  before.ask("Why do you weep?");
  before.save(file);
  const auto next = [&](unsigned seed) {
    Talk talk(tales(), 2, seed);
    talk.restore(file);
    talk.ask("Where do you live?");
    return talk.tokens;
  };
  before.ask("Where do you live?");
  CHECK(next(7) == before.tokens);
  CHECK(next(8) != before.tokens);
  CHECK(next(8) == next(8));
}

TEST_CASE("a conversation that has no answer yet can be saved") {
  const TemporaryFolder folder;
  Talk before(tales());
  before.messages = {{"system", "There was a wood."}};
  before.save(folder.path() / "session");
  Talk next(tales()), alone(tales());
  next.restore(folder.path() / "session");
  alone.messages = before.messages;
  check_next(alone, next, "Why do you weep?");
}

TEST_CASE("a prompt that is one token shorter than the context gets one token, and a longer one is refused") {
  const int context = tales().config().n_positions;
  Messages messages{{"user", "the"}};
  const auto length = [&] { return std::ssize(encode_chat(tales_tokenizer(), tale().render(messages))); };
  while (length() < context - 1) messages[0].content += " the";
  REQUIRE(length() == context - 1);
  Talk talk(tales());
  int count = 0;
  const auto ask = [&] { talk.conversation.answer(messages, [&](const Token&) { ++count; }); };
  ask();
  CHECK(count == 1);
  messages[0].content += " the";
  REQUIRE(length() == context);
  CHECK(error_message(ask) == fmt::format("the conversation has {0} tokens, and the model sees at most {0}; "
                                          "leave room for an answer",
                                          context));
}

TEST_CASE("the program goes on where another one has ended") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "session").string();
  const std::string usual =
      "--max-new-tokens 20 --do-sample --seed 5 --show-use --chat-template " + kTemplate;
  const auto talk = [&](const std::string& more) {
    return run_program(STAIRCASE_STEP_PROGRAM, usual + more);
  };
  const ProgramRun whole = talk(" --prompt 'Why do you weep?' --prompt 'Where do you live?'");
  const ProgramRun first = talk(" --prompt 'Why do you weep?' --session " + file);
  const ProgramRun second = talk(" --prompt 'Where do you live?' --session " + file);
  CHECK(first.status == 0);
  CHECK(second.status == 0);
  CHECK(first.out + second.out == whole.out);
  CHECK_FALSE(contains(second.err, " 0 of them from the cache"));
  CHECK(
      talk(" --prompt Why? --cache-dtype bfloat16 --session " + file).err ==
      "error: " + file +
          " was saved with --cache-dtype float32, and this program uses bfloat16; choose float32, or another "
          "file\n");
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const ProgramRun cut = talk(" --prompt Why? --session " + file);
  CHECK(cut.status == 1);
  CHECK(begins_with(cut.err, "error: " + file + " is cut off after "));
}
