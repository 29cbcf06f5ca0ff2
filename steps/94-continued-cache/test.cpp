#include <doctest/doctest.h>

#include <stdexcept>

#include "common/base/file.h"
#include "conversation.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Ids = std::vector<int>;
using Messages = std::vector<Message>;

const std::string kTemplate = STAIRCASE_SOURCE_TREE "/models/tales-chat.jinja";

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(find_model("tales-6m"));
  return loaded;
}

const ChatTemplate& tale() {
  static const ChatTemplate loaded(read_text_file(kTemplate), {}, kTemplate);
  return loaded;
}

/// A conversation with the embedded model, and what it answered last.
struct Talk {
  TextOptions options{.stopping = {.max_new_tokens = 12}};
  Conversation conversation{tales(), tokenizer(), tale(), options};
  Messages messages = {};
  Ids tokens = {};

  Answer ask(const std::string& question) {
    messages.push_back({"user", question});
    tokens.clear();
    const Answer answer =
        conversation.answer(messages, [&](const Token& token) { tokens.push_back(token.id); });
    messages.push_back({"assistant", tokenizer().decode(tokens)});
    return answer;
  }
};

/// The greedy answer of a model that sees the whole conversation at once, without a cache.
Ids answer_of(Messages messages, int count) {
  if (messages.back().role == "assistant") messages.pop_back();
  const Ids prompt = encode_chat(tokenizer(), tale().render(messages));
  const TextOptions options{.stopping = {.max_new_tokens = count}};
  std::mt19937 generator(0);
  return tokens_after(prompt.size(),
                      generate(tales(), prompt, options, no_cache(), generator, [](const Token&) {}).tokens);
}

/// How many tokens went through the model while `work` was done.
std::size_t tokens_computed(const std::function<void()>& work) {
  std::size_t count = 0;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") count += values.size() / static_cast<std::size_t>(tales().config().n_embd);
  });
  work();
  return count;
}

}  // namespace

TEST_CASE("every answer equals that of the whole conversation") {
  Talk talk;
  for (const std::string question : {"Why do you weep?", "Where do you live?", "Who is your friend?"}) {
    talk.ask(question);
    CHECK(talk.tokens == answer_of(talk.messages, 12));
  }
}

TEST_CASE("a question computes no token that the cache has") {
  Talk talk;
  Answer first, second;
  const std::size_t before = tokens_computed([&] { first = talk.ask("Why do you weep?"); });
  CHECK(first.cached_tokens == 0);
  CHECK(before == static_cast<std::size_t>(first.prompt_tokens) + talk.tokens.size() - 1);
  const int answered = static_cast<int>(talk.tokens.size());
  const std::size_t after = tokens_computed([&] { second = talk.ask("Where do you live?"); });
  // The newest token was chosen, but has not gone through the model.
  CHECK(second.cached_tokens == first.prompt_tokens + answered - 1);
  CHECK(after ==
        static_cast<std::size_t>(second.prompt_tokens - second.cached_tokens) + talk.tokens.size() - 1);
}

TEST_CASE("the same question again computes one token of the prompt: its logits are needed") {
  Talk talk;
  const Answer first = talk.ask("Why do you weep?");
  const Ids answer = talk.tokens;
  talk.messages.clear();
  const Answer again = talk.ask("Why do you weep?");
  CHECK(again.cached_tokens == first.prompt_tokens - 1);
  CHECK(talk.tokens == answer);
}

TEST_CASE("a conversation that goes another way keeps the common part") {
  Talk talk;
  talk.ask("Why do you weep?");
  const Messages before = talk.messages;
  talk.ask("Where do you live?");
  talk.messages = before;  // as if the last question had not been asked
  const Answer other = talk.ask("Who is your friend?");
  CHECK(talk.tokens == answer_of(talk.messages, 12));
  CHECK(other.cached_tokens > 18);
  talk.messages = {{"system", "There was a wood."}};
  CHECK(talk.ask("Why do you weep?").cached_tokens == 0);
  CHECK(talk.tokens == answer_of(talk.messages, 12));
}

TEST_CASE("a conversation that returns to an earlier way computes again what the cache has lost") {
  Talk talk;
  talk.ask("Why do you weep?");
  const Messages before = talk.messages;
  int cached = 0;
  for (const std::string question : {"Where do you live?", "Who is your friend?", "Where do you live?"}) {
    talk.messages = before;  // as if the last question had not been asked
    cached = talk.ask(question).cached_tokens;
    CHECK(talk.tokens == answer_of(talk.messages, 12));
  }
  talk.messages.push_back({"user", "Who is your friend?"});
  const Answer next = talk.conversation.answer(talk.messages, [](const Token&) {});
  CHECK(next.cached_tokens > cached + std::ssize(talk.tokens));  // the cache holds the whole last branch
}

TEST_CASE("an interrupted answer changes no later one, and its tokens stay in the cache") {
  Talk talk;
  Ids tokens;
  const Messages interrupted{{"user", "Where do you live?"}};
  CHECK_THROWS_AS(talk.conversation.answer(interrupted,
                                           [&](const Token& token) {
                                             tokens.push_back(token.id);
                                             if (tokens.size() == 5) throw std::runtime_error("enough");
                                           }),
                  std::runtime_error);
  CHECK(tokens.size() == 5);
  const auto length = std::ssize(encode_chat(tokenizer(), tale().render(interrupted)));
  talk.messages = {interrupted[0], {"assistant", tokenizer().decode(tokens)}};
  CHECK(talk.ask("Who is your friend?").cached_tokens == length + 4);  // the fifth token was only chosen
  CHECK(talk.tokens == answer_of(talk.messages, 12));
}

TEST_CASE("after an interrupted answer the conversation before it is answered as before") {
  Talk talk;
  talk.ask("Why do you weep?");
  const Ids answer = talk.tokens;
  const auto interrupt = [](const Token&) { throw std::runtime_error("enough"); };
  CHECK_THROWS_AS(
      talk.conversation.answer({{"user", "Where do you live, and who is your friend?"}}, interrupt),
      std::runtime_error);
  talk.messages.clear();
  talk.ask("Why do you weep?");
  CHECK(talk.tokens == answer);
}

TEST_CASE("an answer ends with the context, and a conversation without room for one is refused") {
  Talk talk;
  std::string words = "the king and the queen";
  while (tokenizer().encode(words).size() < 480) words += " and the king and the queen";
  talk.options.stopping = {.max_new_tokens = 100, .ignore_eos = true};
  const Answer answer = talk.ask(words);
  CHECK(answer.finish_reason == FinishReason::kLength);
  CHECK(std::ssize(talk.tokens) == tales().config().n_positions - answer.prompt_tokens);
  Messages long_one{{"user", words + words}};
  const std::string message = error_message([&] { talk.conversation.answer(long_one, [](const Token&) {}); });
  CHECK(begins_with(message, "the conversation has "));
  CHECK(contains(message, " and the model sees at most 512;"));
  talk.messages.clear();
  talk.options.stopping = {.max_new_tokens = 12};
  talk.ask("Why do you weep?");
  CHECK(talk.tokens == answer_of(talk.messages, 12));
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

TEST_CASE("the random numbers go on from answer to answer") {
  Talk talk;
  talk.options.sampling.do_sample = true;
  talk.ask("Why do you weep?");
  const Ids first = talk.tokens;
  talk.messages.clear();
  talk.ask("Why do you weep?");
  CHECK(talk.tokens != first);
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

TEST_CASE("--show-use counts the tokens that came from the cache") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--prompt 'Why do you weep?' --prompt 'Where do you live?' "
                                     "--max-new-tokens 12 --show-use --chat-template " +
                                         kTemplate);
  REQUIRE(run.status == 0);
  Talk talk;
  for (const std::string question : {"Why do you weep?", "Where do you live?"}) {
    const Answer answer = talk.ask(question);
    CHECK(contains(run.err, fmt::format("{} prompt tokens, {} of them from the cache;", answer.prompt_tokens,
                                        answer.cached_tokens)));
  }
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
