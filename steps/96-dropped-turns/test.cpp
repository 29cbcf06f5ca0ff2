#include <doctest/doctest.h>

#include "common/base/file.h"
#include "conversation.h"
#include "dropped_turns.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Ids = std::vector<int>;
using Messages = std::vector<Message>;

const std::string kTemplate = STAIRCASE_SOURCE_TREE "/models/tales-chat.jinja";
const Message kSystem{"system", "There was a wood."};

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(find_model("tales-6m"));
  return loaded;
}

const ChatTemplate& tale() {
  static const ChatTemplate loaded(read_text_file(kTemplate), {}, kTemplate);
  return loaded;
}

/// Question `number` and its answer.
Messages turn(int number) {
  return {{"user", fmt::format("question {}", number)}, {"assistant", fmt::format("answer {}", number)}};
}

Messages turns(int first, int last) {
  Messages messages{kSystem};
  for (int number = first; number <= last; ++number) {
    const Messages one = turn(number);
    messages.insert(messages.end(), one.begin(), one.end());
  }
  messages.pop_back();  // the last question waits for its answer
  return messages;
}

struct Talk {
  TextOptions options{.stopping = {.max_new_tokens = 8}};
  Conversation conversation{tales(), tokenizer(), tale(), options};

  Answer ask(const Messages& messages, Ids* tokens = nullptr) {
    return conversation.answer(messages, [&](const Token& token) {
      if (tokens != nullptr) tokens->push_back(token.id);
    });
  }
};

int prompt_tokens(const Messages& messages) {
  return static_cast<int>(encode_chat(tokenizer(), tale().render(messages)).size());
}

}  // namespace

TEST_CASE("a question is dropped together with its answer, and the system message stays") {
  DroppedTurns dropped;
  Messages messages = turns(1, 3);
  CHECK(dropped.drop_oldest(messages));
  CHECK(messages == turns(2, 3));
  CHECK(dropped.drop_oldest(messages));
  CHECK(messages == turns(3, 3));
  CHECK(dropped.count() == 4);
  CHECK_FALSE(dropped.drop_oldest(messages));
  CHECK(messages == turns(3, 3));
}

TEST_CASE(
    "a question without an answer, several answers and a conversation that begins with an answer are "
    "dropped too") {
  DroppedTurns dropped;
  Messages messages{{"assistant", "Hi"}, {"user", "1"},      {"user", "2"},
                    {"assistant", "3"},  {"assistant", "4"}, {"user", "5"}};
  CHECK(dropped.drop_oldest(messages));
  CHECK(messages.front() == Message{"user", "1"});
  CHECK(dropped.drop_oldest(messages));
  CHECK(messages.front() == Message{"user", "2"});
  CHECK(dropped.drop_oldest(messages));
  CHECK(messages == Messages{{"user", "5"}});
  Messages none;
  CHECK_FALSE(dropped.drop_oldest(none));
}

TEST_CASE("dropped turns stay dropped while the conversation goes on, and only then") {
  DroppedTurns dropped;
  Messages messages = turns(1, 3);
  dropped.drop_oldest(messages);
  CHECK(dropped.rest(turns(1, 4)) == turns(2, 4));
  CHECK(dropped.count() == 2);
  CHECK(dropped.rest(turns(5, 9)) == turns(5, 9));  // another conversation
  CHECK(dropped.count() == 0);
  messages = turns(1, 3);
  dropped.drop_oldest(messages);
  dropped.drop_oldest(messages);
  CHECK(dropped.rest(turns(1, 1)) == turns(1, 1));  // the newest questions were taken back
  messages = turns(1, 3);
  dropped.drop_oldest(messages);
  Messages answered = turns(1, 1);
  answered.push_back(turn(1)[1]);
  CHECK(dropped.rest(answered) == answered);  // nothing of the conversation would be left
}

TEST_CASE("a conversation that fits is seen whole") {
  Talk talk;
  const Answer answer = talk.ask(turns(1, 5));
  CHECK(answer.dropped_messages == 0);
  CHECK(answer.prompt_tokens == prompt_tokens(turns(1, 5)));
}

TEST_CASE("a conversation that fills the context together with its answer is seen whole") {
  Messages messages = turns(1, 15);
  const auto dropped = [&](int length) {
    while (prompt_tokens(messages) < length) messages.back().content += " the";
    REQUIRE(prompt_tokens(messages) == length);
    return Talk().ask(messages).dropped_messages;
  };
  CHECK(dropped(512 - 8) == 0);
  CHECK(dropped(512 - 7) > 0);
}

TEST_CASE("the oldest turns of a longer one are dropped, until half of the context is free") {
  Talk talk;
  const Messages all = turns(1, 60);
  REQUIRE(prompt_tokens(all) > 512);
  Ids tokens, alone;
  const Answer answer = talk.ask(all, &tokens);
  REQUIRE(answer.dropped_messages > 0);
  CHECK(answer.dropped_messages % 2 == 0);
  const int first = 1 + answer.dropped_messages / 2;
  CHECK(answer.prompt_tokens == prompt_tokens(turns(first, 60)));
  CHECK(answer.prompt_tokens + 8 <= 256);
  CHECK(prompt_tokens(turns(first - 1, 60)) + 8 > 256);  // it drops no more than it must
  Talk fresh;
  fresh.ask(turns(first, 60), &alone);
  CHECK(tokens == alone);
}

TEST_CASE("the same question again computes one token of the prompt: its logits are needed") {
  const TextOptions options{.stopping = {.max_new_tokens = 12}};
  Conversation conversation(tales(), tokenizer(), tale(), options);
  const Messages messages{{"user", "Why do you weep?"}};
  const Answer first = conversation.answer(messages, [](const Token&) {});
  const Answer again = conversation.answer(messages, [](const Token&) {});
  CHECK(first.cached_tokens == 0);
  CHECK(again.prompt_tokens == first.prompt_tokens);
  CHECK(again.cached_tokens == first.prompt_tokens - 1);
}

TEST_CASE("after that the next questions find the cache again") {
  Talk talk;
  const Answer first = talk.ask(turns(1, 60));
  REQUIRE(first.dropped_messages > 0);
  const Answer second = talk.ask(turns(1, 61));
  CHECK(second.dropped_messages == 0);  // no more messages are dropped
  CHECK(second.cached_tokens >= first.prompt_tokens - 1);
  CHECK(second.prompt_tokens < 512);
}

TEST_CASE("each answer reports only the messages that were dropped for it") {
  Talk talk;
  const Answer first = talk.ask(turns(1, 60)), second = talk.ask(turns(1, 120));
  REQUIRE(second.dropped_messages > 0);
  const int dropped = first.dropped_messages + second.dropped_messages;
  CHECK(second.prompt_tokens == prompt_tokens(turns(1 + dropped / 2, 120)));
}

TEST_CASE(
    "after an interrupted answer the cache has its text, and the next answer reports what was dropped") {
  Ids alone;
  Talk fresh;
  const Answer whole = fresh.ask(turns(1, 60), &alone);
  for (const int most : {0, 3}) {
    Talk talk;
    int tokens = 0;
    const auto interrupt = [&](const Token&) {
      if (tokens++ == most) throw AnswerInterrupted();
    };
    CHECK_THROWS_AS(talk.conversation.answer(turns(1, 60), interrupt), AnswerInterrupted);
    Ids again;
    const Answer next = talk.ask(turns(1, 60), &again);
    CHECK(next.dropped_messages == whole.dropped_messages);
    CHECK(next.prompt_tokens == whole.prompt_tokens);
    CHECK(next.cached_tokens == whole.prompt_tokens - 1);
    CHECK(again == alone);
    CHECK(talk.ask(turns(1, 61)).dropped_messages == 0);  // once
    // Another conversation is not affected by what this one has dropped.
    CHECK(talk.ask(turns(70, 129)).dropped_messages == Talk().ask(turns(70, 129)).dropped_messages);
  }
}

TEST_CASE("a long allowed answer takes no more than a quarter of the context from the conversation") {
  Talk talk;
  talk.options.stopping = {.max_new_tokens = 100'000, .ignore_eos = true};
  Messages messages = turns(1, 2);
  const Answer answer = talk.ask(messages);
  CHECK(answer.dropped_messages == 0);
  CHECK(answer.finish_reason == FinishReason::kLength);
  messages = turns(1, 10);
  const auto dropped = [&](int length) {
    while (prompt_tokens(messages) < length) messages.back().content += " the";
    REQUIRE(prompt_tokens(messages) == length);
    return talk.ask(messages).dropped_messages;
  };
  CHECK(dropped(512 - 128) == 0);
  CHECK(dropped(512 - 127) > 0);
}

TEST_CASE("one question that is too long is refused, and the next one is answered") {
  Talk talk;
  std::string words;
  while (tokenizer().encode(words).size() < 600) words += " the king and the queen";
  Messages messages = turns(1, 3);
  messages.back().content = words;
  const std::string message = error_message([&] { talk.ask(messages); });
  CHECK(begins_with(message, "the conversation has "));
  CHECK(contains(message, "at most 512"));
  CHECK(talk.ask(turns(1, 3)).prompt_tokens == prompt_tokens(turns(1, 3)));
}

TEST_CASE("a prompt that is one token shorter than the context gets one token, and a longer one is refused") {
  const int context = tales().config().n_positions;
  Messages messages{{"user", "the"}};
  const auto length = [&] { return std::ssize(encode_chat(tokenizer(), tale().render(messages))); };
  while (length() < context - 1) messages[0].content += " the";
  REQUIRE(length() == context - 1);
  Talk talk;
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

TEST_CASE(
    "the next question finds all but the newest token of an answer, and the same question all but its last") {
  Talk talk;
  Ids tokens, again;
  const Messages question{{"user", "Why do you weep?"}};
  const Answer first = talk.ask(question, &tokens);
  CHECK(talk.ask(question, &again).cached_tokens == first.prompt_tokens - 1);
  CHECK(again == tokens);
  REQUIRE(first.finish_reason == FinishReason::kLength);
  Messages next = question;
  next.push_back({"assistant", tokenizer().decode(tokens)});
  next.push_back({"user", "Where do you live?"});
  CHECK(talk.ask(next).cached_tokens == first.prompt_tokens + std::ssize(tokens) - 1);
}

TEST_CASE("with layers that see a window, every answer is that of a model that computes all of it again") {
  Model windowed = Model::load(find_model("tales-window-1m"), make_test_device(2));
  TextOptions options{.stopping = {.max_new_tokens = 8, .ignore_eos = true}};
  Conversation conversation(windowed, tokenizer(), tale(), options);
  int asked = 0, dropped = 0, cached = 0;
  const auto check = [&](int last, bool goes_on) {
    const int number = ++asked;
    CAPTURE(number);
    Ids tokens;
    std::mt19937 generator;
    const Answer answer =
        conversation.answer(turns(1, last), [&](const Token& token) { tokens.push_back(token.id); });
    dropped += answer.dropped_messages;
    const Ids prompt = encode_chat(tokenizer(), tale().render(turns(1 + dropped / 2, last)));
    const Ids want = generate(windowed, prompt, options, no_cache(), generator, [](const Token&) {}).tokens;
    CHECK(tokens == tokens_after(prompt.size(), want));
    CHECK((answer.cached_tokens > 0) == goes_on);
    cached = answer.cached_tokens;
  };
  check(5, false);
  check(6, true);
  check(14, true);  // more than 320 tokens: the rings have wrapped around
  check(14, true);  // and go back by an answer
  CHECK(cached > 330);
  check(2, false);  // but not by twelve turns
  check(14, true);
  check(60, false);  // the oldest turns are dropped
  CHECK(dropped > 0);
  check(61, true);
}

TEST_CASE("the seed of the options can begin the random numbers again") {
  const auto answer_of_seed = [](unsigned seed) {
    TextOptions options{.stopping = {.max_new_tokens = 12}};
    options.sampling.do_sample = true;
    Conversation conversation(tales(), tokenizer(), tale(), options);
    Ids tokens;
    for (int i = 0; i < 2; ++i) {  // as /set seed does
      options.sampling.seed = seed;
      conversation.reseed();
      tokens.clear();
      conversation.answer({{"user", "Why do you weep?"}},
                          [&](const Token& token) { tokens.push_back(token.id); });
    }
    return tokens;
  };
  CHECK(answer_of_seed(1) == answer_of_seed(1));
  CHECK(answer_of_seed(1) != answer_of_seed(2));
}

TEST_CASE("a template that writes nothing is refused") {
  const ChatTemplate nothing("", {}, "nothing");
  const TextOptions options;
  Conversation conversation(tales(), tokenizer(), nothing, options);
  const auto ask = [&] { conversation.answer({{"user", "Hello"}}, [](const Token&) {}); };
  CHECK(error_message(ask) == "the chat template turns this conversation into an empty text");
}

TEST_CASE("the program prints how many messages were dropped") {
  std::string arguments = "--max-new-tokens 1 --chat-template " + kTemplate;
  for (int i = 0; i < 30; ++i)
    arguments += fmt::format(" --prompt 'the king and the queen and the fox and the crow {}'", i);
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  REQUIRE(run.status == 0);
  const std::size_t first = run.err.find(" messages no longer fit, and the model did not see them.\n");
  CHECK(first != std::string::npos);
}

TEST_CASE("a truncated model is refused in one sentence") {
  const TemporaryFolder folder;
  const auto model = folder.path() / "model";
  std::filesystem::copy(find_model("tales-1m"), model);
  std::filesystem::resize_file(model / "model.safetensors", 100'000);
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--prompt Hello --model {}", model.string()));
  CHECK(run.status == 1);
  CHECK(begins_with(run.err, "error: " + model.string() + "/model.safetensors: the tensor "));
}

TEST_CASE("the cache may have another type than the weights") {
  const auto talk = [](const std::string& more) {
    return run_program(STAIRCASE_STEP_PROGRAM,
                       "--prompt 'Why do you weep?' --max-new-tokens 40 --chat-template " + kTemplate + more);
  };
  CHECK(talk(" --cache-dtype int8").status == 0);
  // Rounded keys and values change a long enough text, if only a little.
  CHECK(talk(" --cache-dtype bfloat16 --do-sample --seed 3 --temperature 3").out !=
        talk(" --do-sample --seed 3 --temperature 3").out);
  CHECK(talk(" --cache-dtype int3").status == 2);
}
