#include <doctest/doctest.h>

#include <map>

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
  std::mt19937 generator{0};
  Messages messages = {};
  Ids tokens = {};

  Answer ask(const std::string& question) {
    messages.push_back({"user", question});
    tokens.clear();
    const Answer result = answer(tales(), tokenizer(), tale(), options, generator, messages,
                                 [&](const Token& token) { tokens.push_back(token.id); });
    messages.push_back({"assistant", tokenizer().decode(tokens)});
    return result;
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

}  // namespace

TEST_CASE("every answer equals that of the whole conversation") {
  Talk talk;
  for (const std::string question : {"Why do you weep?", "Where do you live?", "Who is your friend?"}) {
    talk.ask(question);
    CHECK(talk.tokens == answer_of(talk.messages, 12));
  }
}

TEST_CASE("the penalties of an answer count its own tokens, not those of the turns before") {
  Talk talk;
  talk.options.sampling = {.presence_penalty = 1.0f, .frequency_penalty = 0.5f};
  for (const std::string question : {"Why do you weep?", "Why do you weep?", "Why?"}) {
    talk.ask(question);
    Ids text = encode_chat(tokenizer(), tale().render({talk.messages.begin(), talk.messages.end() - 1}));
    std::map<int, int> counts;
    for (const int token : talk.tokens) {
      std::vector<float> logits = copy_of(tales().next_logits(text));
      for (const auto& [sampled, count] : counts) logits[sampled] -= 1.0f + 0.5f * static_cast<float>(count);
      REQUIRE(token == argmax(logits));
      text.push_back(token);
      ++counts[token];
    }
  }
}

TEST_CASE("an answer ends with the context, and a conversation without room for one is refused") {
  Talk talk;
  std::string words = "the king and the queen";
  while (tokenizer().encode(words).size() < 480) words += " and the king and the queen";
  talk.options.stopping = {.max_new_tokens = 100, .ignore_eos = true};
  const Answer result = talk.ask(words);
  CHECK(result.finish_reason == FinishReason::kLength);
  CHECK(std::ssize(talk.tokens) == tales().config().n_positions - result.prompt_tokens);
  Messages long_one{{"user", words + words}};
  const std::string message = error_message([&] {
    answer(tales(), tokenizer(), tale(), talk.options, talk.generator, long_one, [](const Token&) {});
  });
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
  const auto ask = [&] {
    answer(tales(), tokenizer(), tale(), talk.options, talk.generator, messages,
           [&](const Token&) { ++count; });
  };
  ask();
  CHECK(count == 1);
  messages[0].content += " the";
  REQUIRE(length() == context);
  CHECK(error_message(ask) == fmt::format("the conversation has {0} tokens, and the model sees at most {0}; "
                                          "leave room for an answer",
                                          context));
}

TEST_CASE("a template that writes nothing is refused") {
  const ChatTemplate nothing("", {}, "nothing");
  std::mt19937 generator(0);
  const auto ask = [&] {
    answer(tales(), tokenizer(), nothing, {}, generator, {{"user", "Hello"}}, [](const Token&) {});
  };
  CHECK(error_message(ask) == "the chat template turns this conversation into an empty text");
}

TEST_CASE("several --prompt are the questions of one conversation") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--prompt 'Why do you weep?' --prompt 'Where do you live?' --max-new-tokens 12 "
                  "--show-use --chat-template " +
                      kTemplate);
  REQUIRE(run.status == 0);
  Talk talk;
  std::string out;
  for (const std::string question : {"Why do you weep?", "Where do you live?"}) {
    const Answer result = talk.ask(question);
    out += tokenizer().decode(talk.tokens) + "\n";
    CHECK(contains(run.err, fmt::format("{} prompt tokens, {} of them from the cache;", result.prompt_tokens,
                                        result.cached_tokens)));
  }
  CHECK(run.out == out);
}

TEST_CASE("the input of a pipe is one question") {
  const ProgramRun run = run_program(
      STAIRCASE_STEP_PROGRAM, "--max-new-tokens 12 --chat-template " + kTemplate, "Why do you\nweep?\n");
  REQUIRE(run.status == 0);
  Talk talk;
  talk.ask("Why do you\nweep?");
  CHECK(run.out == tokenizer().decode(talk.tokens) + "\n");
}

TEST_CASE("an empty question and a model that was not trained to answer are refused") {
  const ProgramRun empty = run_program(STAIRCASE_STEP_PROGRAM, "--chat-template " + kTemplate, "\n");
  CHECK(empty.status == 1);
  CHECK(contains(empty.err, "error: the question is empty; it needs a text\n"));
  const ProgramRun base = run_program(STAIRCASE_STEP_PROGRAM, "--prompt Hello");
  CHECK(base.status == 1);
  CHECK(contains(base.err, "error: tales-6m has no chat template"));
}
