#include <doctest/doctest.h>

#include <map>

#include "common/base/file.h"
#include "conversation.h"
#include "known_tokens.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Ids = std::vector<int>;
using Messages = std::vector<Message>;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(find_model("tales-6m"));
  return loaded;
}

const ChatTemplate& tale() {
  static const std::string file = STAIRCASE_SOURCE_TREE "/models/tales-chat.jinja";
  static const ChatTemplate loaded(read_text_file(file), {}, file);
  return loaded;
}

Ids joined(Ids tokens, const Ids& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

SamplingOptions sampled(float temperature, unsigned seed) {
  SamplingOptions options;
  options.do_sample = true;
  options.temperature = temperature;
  options.seed = seed;
  return options;
}

/// The text in other tokens than those of encode(): letter by letter.
Ids letters(const std::string& text) {
  Ids tokens;
  for (const char letter : text) tokens = joined(tokens, tokenizer().encode(std::string(1, letter)));
  return tokens;
}

/// A conversation of one question that was answered, letter by letter.
struct Answered {
  Rendered prompt = tale().render(Messages{{"user", "Who are you?"}});
  Ids prompt_tokens = encode_chat(tokenizer(), prompt);
  Ids answer = letters("A crow");
  Messages next{{"user", "Who are you?"}, {"assistant", "A crow"}, {"user", "Where do you live?"}};
};

}  // namespace

TEST_CASE("an answer that was chosen in other tokens keeps them") {
  const Answered one;
  REQUIRE(one.answer != tokenizer().encode("A crow"));
  KnownTokens known;
  const Rendered next = tale().render(one.next);
  CHECK(known.encode(tokenizer(), next) == encode_chat(tokenizer(), next));
  known.remember(tokenizer(), one.prompt, one.prompt_tokens, one.answer);
  const Ids tokens = known.encode(tokenizer(), next);
  CHECK(tokens != encode_chat(tokenizer(), next));
  CHECK(tokenizer().decode(tokens) == next.text);
  const Ids begin = joined(one.prompt_tokens, one.answer);
  REQUIRE(tokens.size() > begin.size());
  CHECK(Ids(tokens.begin(), tokens.begin() + std::ssize(begin)) == begin);
  CHECK(tokens[begin.size()] == 4095);  // <|endoftext|>, which ends the answer
}

TEST_CASE("for text that is not a special token, it makes no difference who wrote it") {
  const ChatTemplate roles(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}",
      {}, "roles");
  Messages messages{{"user", "Who are you?"}};
  const Rendered prompt = roles.render(messages);
  const Ids tokens = encode_chat(tokenizer(), prompt), answer = letters("A crow");
  KnownTokens known;
  known.remember(tokenizer(), prompt, tokens, answer);
  messages.push_back({"assistant", "A crow"});  // now the role comes from the message
  messages.push_back({"user", "Why?"});
  const Ids next = known.encode(tokenizer(), roles.render(messages)), begin = joined(tokens, answer);
  CHECK(Ids(next.begin(), next.begin() + std::ssize(begin)) == begin);
}

TEST_CASE("of several known texts the longest one counts") {
  const Answered one;
  KnownTokens known;
  known.remember(tokenizer(), one.prompt, one.prompt_tokens, one.answer);
  const Rendered second = tale().render(one.next);
  const Ids second_tokens = known.encode(tokenizer(), second), second_answer = letters("Here");
  known.remember(tokenizer(), second, second_tokens, second_answer);
  known.remember(tokenizer(), one.prompt, one.prompt_tokens, one.answer);
  Messages third = one.next;
  third.push_back({"assistant", "Here"});
  third.push_back({"user", "Why?"});
  const Ids tokens = known.encode(tokenizer(), tale().render(third)),
            begin = joined(second_tokens, second_answer);
  CHECK(Ids(tokens.begin(), tokens.begin() + std::ssize(begin)) == begin);
}

TEST_CASE(
    "of known texts that are equal the newest counts, and a longer one is never the worse for its age") {
  const Answered one;
  const Ids begin = one.prompt_tokens, usual = tokenizer().encode("A crow");
  const auto encoded = [&](const std::vector<Ids>& answers) {
    KnownTokens known;
    for (const Ids& answer : answers) known.remember(tokenizer(), one.prompt, begin, answer);
    const Ids tokens = known.encode(tokenizer(), tale().render(one.next));
    return Ids(tokens.begin(), tokens.begin() + std::ssize(begin) + std::ssize(answers.back()));
  };
  CHECK(encoded({usual, one.answer}) == joined(begin, one.answer));
  CHECK(encoded({one.answer, usual}) == joined(begin, usual));
}

TEST_CASE("a person who types the text of a conversation gets none of its markers") {
  const ChatTemplate plain("{% for m in messages %}{{ m.content }}{% endfor %}<|endoftext|>C", {}, "plain");
  const ChatTemplate marked("{{ messages[0].content }}<|endoftext|>{{ messages[1].content }}<|endoftext|>",
                            {}, "marked");
  KnownTokens known;
  Rendered prompt = marked.render(Messages{{"user", "A"}, {"user", "B"}});
  const Ids tokens = encode_chat(tokenizer(), prompt);
  CHECK(std::ranges::count(tokens, 4095) == 2);
  known.remember(tokenizer(), prompt, tokens, {});
  const Rendered typed = plain.render(Messages{{"user", "A<|endoftext|>B<|endoftext|>"}});
  REQUIRE(begins_with(typed.text, prompt.text));
  CHECK(std::ranges::count(known.encode(tokenizer(), typed), 4095) == 1);  // the template's own
}

TEST_CASE("the text after a known one without a special token is encoded together with it") {
  const ChatTemplate plain("{% for m in messages %}{{ m.content }}{% endfor %}", {}, "plain");
  KnownTokens known;
  const Rendered begin = plain.render(Messages{{"user", "A cr"}});
  known.remember(tokenizer(), begin, letters("A cr"), {});
  const Rendered all = plain.render(Messages{{"user", "A crow"}});
  CHECK(known.encode(tokenizer(), all) == tokenizer().encode("A crow"));
  CHECK(known.encode(tokenizer(), begin) == tokenizer().encode("A cr"));  // nothing comes after it
}

TEST_CASE("a known text of other words is useless, however similar it is") {
  const ChatTemplate plain("{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}", {}, "plain");
  KnownTokens known;
  known.remember(tokenizer(), {"A fox", std::vector<bool>(5)}, tokenizer().encode("A fox"), {});
  const Rendered both = plain.render(Messages{{"user", "A dog"}, {"user", "Why?"}});
  CHECK(known.encode(tokenizer(), both) == encode_chat(tokenizer(), both));
}

TEST_CASE("the oldest text is dropped when there are too many") {
  const Answered one;
  const Rendered next = tale().render(one.next);
  KnownTokens known(2);
  known.remember(tokenizer(), one.prompt, one.prompt_tokens, one.answer);
  for (const std::string other : {"Where?", "When?"}) {
    CHECK(known.encode(tokenizer(), next) != encode_chat(tokenizer(), next));
    const Rendered prompt = tale().render(Messages{{"user", other}});
    known.remember(tokenizer(), prompt, encode_chat(tokenizer(), prompt), Ids{});
  }
  CHECK(known.encode(tokenizer(), next) == encode_chat(tokenizer(), next));
}

TEST_CASE("with sampled answers the next question computes nothing again") {
  std::map<FinishReason, int> other_tokens;
  for (unsigned seed = 1; seed <= 16; ++seed) {
    const TextOptions options{.stopping = {.max_new_tokens = 60}, .sampling = sampled(1.3f, seed)};
    Conversation conversation(tales(), tokenizer(), tale(), options);
    Messages messages{{"user", "Why do you weep?"}};
    Ids tokens;
    const Answer first =
        conversation.answer(messages, [&](const Token& token) { tokens.push_back(token.id); });
    if (first.finish_reason == FinishReason::kEos) tokens.pop_back();
    const std::string text = tokenizer().decode(tokens);
    if (text.find("\uFFFD") != std::string::npos) continue;  // half a character, whose text differs
    other_tokens[first.finish_reason] += tokenizer().encode(text) != tokens;
    messages.push_back({"assistant", text});
    messages.push_back({"user", "Where do you live?"});
    const Answer second = conversation.answer(messages, [](const Token&) {});
    // The newest token was chosen, but has not gone through the model unless the end followed it.
    const int missing = first.finish_reason == FinishReason::kEos ? 0 : 1;
    CHECK(second.cached_tokens == first.prompt_tokens + std::ssize(tokens) - missing);
  }
  // Otherwise encode_chat() would have been enough.
  CHECK(other_tokens[FinishReason::kLength] > 0);
  CHECK(other_tokens[FinishReason::kEos] > 0);
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

TEST_CASE("the answer to a conversation with kept tokens is that of a model that sees these tokens") {
  const TextOptions options{.stopping = {.max_new_tokens = 15}, .sampling = sampled(1.5f, 2)};
  Conversation conversation(tales(), tokenizer(), tale(), options);
  Messages messages{{"user", "Why do you weep?"}};
  std::mt19937 generator(2);
  KnownTokens known;
  for (int turn = 0; turn < 3; ++turn) {
    Ids tokens;
    conversation.answer(messages, [&](const Token& token) { tokens.push_back(token.id); });
    const Rendered rendered = tale().render(messages);
    const Ids prompt = known.encode(tokenizer(), rendered);
    const Generation alone = generate(tales(), prompt, options, no_cache(), generator, [](const Token&) {});
    CHECK(tokens == tokens_after(prompt.size(), alone.tokens));
    if (alone.finish_reason == FinishReason::kEos) tokens.pop_back();
    known.remember(tokenizer(), rendered, prompt, tokens);
    messages.push_back({"assistant", tokenizer().decode(tokens)});
    messages.push_back({"user", "And then?"});
  }
}

TEST_CASE("a prompt that is one token shorter than the context gets one token, and a longer one is refused") {
  const int context = tales().config().n_positions;
  Messages messages{{"user", "the"}};
  const auto length = [&] { return std::ssize(encode_chat(tokenizer(), tale().render(messages))); };
  while (length() < context - 1) messages[0].content += " the";
  REQUIRE(length() == context - 1);
  const TextOptions options;
  Conversation conversation(tales(), tokenizer(), tale(), options);
  int count = 0;
  const auto ask = [&] { conversation.answer(messages, [&](const Token&) { ++count; }); };
  ask();
  CHECK(count == 1);
  messages[0].content += " the";
  REQUIRE(length() == context);
  CHECK(error_message(ask) == fmt::format("the conversation has {0} tokens, and the model sees at most {0}; "
                                          "leave room for an answer",
                                          context));
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

TEST_CASE("the cache may have another type than the weights") {
  const auto talk = [](const std::string& more) {
    return run_program(
        STAIRCASE_STEP_PROGRAM,
        "--prompt 'Why do you weep?' --max-new-tokens 40 --chat-template " STAIRCASE_SOURCE_TREE
        "/models/tales-chat.jinja" +
            more);
  };
  CHECK(talk(" --cache-dtype int8").status == 0);
  // Rounded keys and values change a long enough text, if only a little.
  CHECK(talk(" --cache-dtype bfloat16 --do-sample --seed 3 --temperature 3").out !=
        talk(" --do-sample --seed 3 --temperature 3").out);
  CHECK(talk(" --cache-dtype int3").status == 2);
}
