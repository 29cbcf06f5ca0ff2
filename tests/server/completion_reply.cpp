// Answers to chats as they grow: what a client gets of them, whole and in streams.
#include "common/server/completion_reply.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/base/file.h"
#include "common/server/chat_request.h"
#include "common/server/reasoning.h"
#include "common/text/tokenizer_json.h"
#include "tests/error_message.h"

using namespace staircase;
using nlohmann::json;

namespace {

const Tokenizer& tokenizer() {
  static const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  static const Tokenizer loaded(read_tokenizer_json(read_file(file), file), file);
  return loaded;
}

int mark(const char* text) {
  return tokenizer().encode_with_special_tokens(text).front();
}

const ServedModel& model() {
  static const ServedModel served = [] {
    ServedModel one("smol", tokenizer(),
                    {.vocab_size = tokenizer().vocab_size(),
                     .n_positions = 64,
                     .end_tokens = EndTokens({mark("<|im_end|>")})});
    one.call_form = CallForm{.marker = "<tool_call>",
                             .begin = "<tool_call>\n{\"name\": \"",
                             .middle = "\", \"arguments\": ",
                             .end = "}\n</tool_call>",
                             .between = "}\n</tool_call>\n<tool_call>\n{\"name\": \""};
    return one;
  }();
  return served;
}

class Prompts : public ChatPrompts {
 public:
  explicit Prompts(std::string text) : text_(std::move(text)) {}

  Rendered render(const Conversation&) override { return {text_, std::vector<bool>(text_.size())}; }
  std::vector<int> encode(const Rendered&) override { return {5, 6, 7}; }

 private:
  std::string text_;
};

/// A client without a network. Posted work is done at once, in the thread that posts it.
class Client : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void send(HttpResponse response) override {
    std::string all = response.body;
    for (const std::string& piece : response.more) all += piece;
    answer = json::parse(all);
    ++sent;
  }
  void begin_stream(const std::string&, const std::string&) override { ++begun; }
  void write(const std::string& part) override { stream += part; }
  void end_stream() override { has_ended = true; }
  void on_left(std::function<void()>) override {}
  void post(std::function<void()> work) override { work(); }
  void post_without_flush(std::function<void()> work) override { work(); }

  /// The events of the stream; the last must be its end.
  std::vector<json> events() const {
    std::vector<json> all;
    std::size_t begin = 0;
    for (std::size_t end; (end = stream.find("\n\n", begin)) != stream.npos; begin = end + 2) {
      const std::string event = stream.substr(begin, end - begin);
      REQUIRE(begins_with(event, "data: "));
      if (event == "data: [DONE]") {
        CHECK(end + 2 == stream.size());
        return all;
      }
      all.push_back(json::parse(event.substr(6)));
    }
    FAIL("the stream does not end");
    return all;
  }

  json answer;
  std::string stream;
  int sent = 0, begun = 0;
  bool has_ended = false;

 private:
  HttpRequest request_;
};

/// An answer to a chat with these options.
struct Answer {
  Prompts prompts;
  Metrics metrics;
  std::shared_ptr<Client> client = std::make_shared<Client>();
  std::vector<std::vector<int>> handed_on;
  std::shared_ptr<CompletionReply> reply;

  explicit Answer(const std::string& more, const std::string& prompt = "a") : prompts(prompt) {
    metrics.declare_gauge("staircase_texts", "");
    metrics.declare_counter("staircase_generated_tokens_total", "");
    metrics.declare_histogram("staircase_time_to_first_token_seconds", "", {});
    metrics.declare_histogram("staircase_time_per_output_token_seconds", "", {});
    const std::string body = R"({"messages": [{"role": "user", "content": "Hello"}])" + more + "}";
    reply = std::make_shared<CompletionReply>(
        "id", std::make_shared<ChatRequest>(body, model(), prompts), model(), client, metrics, chat_form(),
        [this](const std::vector<int>& tokens) { handed_on.push_back(tokens); });
    reply->begin();
  }

  Answer& add(const std::vector<int>& ids, int text = 0) {
    for (const int id : ids) {
      Token token{.id = id};
      token.logprobs = Logprobs{-0.5f, {{id, -0.5f}, {5, -1.5f}}};
      reply->add_token(text, token);
    }
    return *this;
  }

  /// As one token each.
  Answer& add_texts(const std::vector<std::string>& pieces, int text = 0) {
    for (const std::string& piece : pieces) {
      Token token{.id = 5};
      token.text = piece;
      token.logprobs = Logprobs{-0.5f, {}};
      reply->add_token(text, token);
    }
    return *this;
  }

  Answer& end(FinishReason reason = FinishReason::kEos, int text = 0) {
    reply->end_text(text, reason);
    return *this;
  }
};

std::vector<int> with_end(const std::string& text) {
  std::vector<int> ids = tokenizer().encode(text);
  ids.push_back(mark("<|im_end|>"));
  return ids;
}

}  // namespace

TEST_CASE("an answer as a whole has a message, the reason of its end, and the use of tokens") {
  Answer answer("");
  answer.reply->add_cached(0, 2);
  const std::vector<int> ids = with_end("Hithere.");
  answer.add(ids).end();
  const json& whole = answer.client->answer;
  CHECK(whole["id"] == "id");
  CHECK(whole["object"] == "chat.completion");
  CHECK(whole["model"] == "smol");
  CHECK(whole["choices"] ==
        json::parse(R"([{"index": 0, "message": {"role": "assistant", "content": "Hithere.", "refusal": null},
                         "logprobs": null, "finish_reason": "stop"}])"));
  CHECK(whole["usage"] == json{{"prompt_tokens", 3},
                               {"completion_tokens", ids.size()},
                               {"total_tokens", 3 + ids.size()},
                               {"prompt_tokens_details", {{"cached_tokens", 2}}}});
}

TEST_CASE("an end token that ends no text has log-probabilities, whatever ends the text then") {
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kStop, FinishReason::kEos}) {
    CAPTURE(static_cast<int>(reason));
    Answer answer(R"(, "logprobs": true, "top_logprobs": 1)");
    const std::vector<int> ids = with_end("Hithere.");
    answer.add(ids).end(reason);
    CHECK(answer.client->answer["choices"][0]["logprobs"]["content"].size() ==
          ids.size() - (reason == FinishReason::kEos ? 1 : 0));
  }
}

TEST_CASE("of several texts the client gets those with the highest mean log-probability, the best first") {
  Answer answer(R"(, "best_of": 4, "n": 2)");
  const std::vector<std::vector<float>> logprobs = {{-1.0f}, {-0.4f, -0.9f, -0.5f}, {-2.0f}, {-0.5f, -0.8f}};
  for (int text : {3, 1, 0, 2}) {  // they end in any order
    for (const float logprob : logprobs[static_cast<std::size_t>(text)]) {
      Token token{.id = 5};
      token.text = std::string(1, static_cast<char>('A' + text));
      token.logprobs = Logprobs{logprob, {}};
      answer.reply->add_token(text, token);
    }
    CHECK(answer.client->sent == 0);
    answer.end(FinishReason::kLength, text);
  }
  const json& choices = answer.client->answer["choices"];
  REQUIRE(choices.size() == 2);
  CHECK(choices[0]["message"]["content"] == "BBB");
  CHECK(choices[0]["index"] == 0);
  CHECK(choices[1]["message"]["content"] == "DD");
  CHECK(choices[1]["index"] == 1);
  CHECK(choices[0]["logprobs"] == nullptr);
  CHECK(!choices[0].contains("votes"));
  CHECK(answer.client->answer["usage"]["completion_tokens"] == 7);
  CHECK(answer.handed_on.size() == 2);
}

TEST_CASE("a vote counts answers without their thoughts, and an empty answer has none") {
  Answer answer(R"(, "best_of": 6, "best_by": "vote", "separate_reasoning": true)", "<think>");
  const std::vector<std::string> texts = {"one</think>red",      "two</think>blue",  "three</think>",
                                          "four</think> blue\n", "five, not closed", "six</think>"};
  for (int i = 0; i < 6; ++i)
    answer.add_texts({texts[static_cast<std::size_t>(i)]}, i).end(FinishReason::kEos, i);
  const json& choices = answer.client->answer["choices"];
  REQUIRE(choices.size() == 1);
  CHECK(choices[0]["message"]["content"] == "blue");
  CHECK(choices[0]["message"]["reasoning_content"] == "two");
  CHECK(choices[0]["votes"] == 2);
  CHECK(answer.handed_on.size() == 1);
}

TEST_CASE("answers with equal calls are one vote, and so are those that only white space tells apart") {
  const auto winner = [](const std::vector<std::string>& texts) {
    Answer answer(
        R"(, "best_of": 3, "best_by": "vote", "tools": [{"type": "function", "function": {"name": "now"}}])");
    for (int i = 0; i < 3; ++i)
      answer.add_texts({texts[static_cast<std::size_t>(i)]}, i).end(FinishReason::kEos, i);
    const json choice = answer.client->answer["choices"][0];
    CHECK(choice["votes"] == 2);
    return choice["message"];
  };
  const auto call = [](int hour) {
    return fmt::format("<tool_call>\n{{\"name\": \"now\", \"arguments\": {{\"hour\": {}}}}}\n</tool_call>",
                       hour);
  };
  CHECK(winner({call(1), call(2), call(2)})["tool_calls"][0]["function"]["arguments"] == "{\"hour\": 2}");
  CHECK(winner({"red", "\t blue\r\n", "blue"})["content"] == "\t blue\r\n");
}

TEST_CASE("a stream begins with the role, ends with the reason alone, and counts tokens without a choice") {
  Answer answer(R"(, "stream": true, "stream_options": {"include_usage": true})");
  answer.add(with_end("Hithere.")).end();
  const std::vector<json> events = answer.client->events();
  REQUIRE(events.size() > 4);
  std::string text;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json& event = events[i];
    CHECK(event["object"] == "chat.completion.chunk");
    CHECK(event["created"] == events[0]["created"]);
    CHECK(event["id"] == events[0]["id"]);
    CHECK(event["usage"] == nullptr);
    const json& choice = event["choices"][0];
    const bool is_last = i + 2 == events.size();
    CHECK(choice["finish_reason"] == (is_last ? json("stop") : json(nullptr)));
    CHECK(choice["delta"].contains("role") == (i == 0));
    if (is_last) {
      CHECK(choice["delta"] == json::object());
    } else {
      text += choice["delta"]["content"];
    }
  }
  CHECK(text == "Hithere.");
  CHECK(events.back()["choices"] == json::array());
  CHECK(events.back()["usage"]["prompt_tokens"] == 3);
  CHECK(answer.client->begun == 1);
  CHECK(answer.client->has_ended);
}

namespace {

void declare(Metrics& metrics) {
  metrics.declare_gauge("staircase_texts", "");
  metrics.declare_counter("staircase_generated_tokens_total", "");
  metrics.declare_histogram("staircase_time_to_first_token_seconds", "", {50.0});
  metrics.declare_histogram("staircase_time_per_output_token_seconds", "", {2.0});
}

}  // namespace

TEST_CASE("the metrics have the time to each text's first token, and the mean time of those after it") {
  Metrics counted;
  declare(counted);
  auto client = std::make_shared<Client>();
  const auto request =
      std::make_shared<CompletionRequest>(R"({"prompt": [5], "n": 3, "max_tokens": 5})", model());
  const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
  const Clock::time_point begin = Clock::now() + std::chrono::seconds(100);
  for (int i = 0; i < 4; ++i) reply->add_token(0, {.id = 5, .time = begin + std::chrono::seconds(2 * i)});
  reply->end_text(0, FinishReason::kLength);
  reply->add_token(1, {.id = 5, .time = begin});
  reply->end_text(1, FinishReason::kLength);
  reply->add_token(2, {.id = 5, .time = begin});
  reply->add_token(2, {.id = 5, .time = begin + std::chrono::seconds(6)});
  reply->end_text(2, FinishReason::kLength);
  const std::string text = counted.text();
  CAPTURE(text);
  CHECK(counted.value("staircase_texts") == -3);  // the server adds those that it accepts
  CHECK(contains(text, "staircase_generated_tokens_total 7\n"));
  CHECK(contains(text, "staircase_time_per_output_token_seconds_sum 8\n"));
  CHECK(contains(text, "staircase_time_per_output_token_seconds_count 2\n"));
  CHECK(contains(text, R"(staircase_time_per_output_token_seconds_bucket{le="2"} 1)"));
  CHECK(contains(text, "staircase_time_to_first_token_seconds_count 3\n"));
  CHECK(contains(text, R"(staircase_time_to_first_token_seconds_bucket{le="50"} 0)"));
  const std::string sum = "staircase_time_to_first_token_seconds_sum ";
  REQUIRE(contains(text, sum));
  CHECK(std::stod(text.substr(text.find(sum) + sum.size())) == doctest::Approx(300.0).epsilon(0.05));
}

TEST_CASE("a client that leaves takes its unfinished texts along, and nothing is written after that") {
  Metrics counted;
  declare(counted);
  auto client = std::make_shared<Client>();
  const auto request = std::make_shared<CompletionRequest>(
      R"({"prompt": [5], "n": 3, "max_tokens": 5, "stream": true})", model());
  const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
  reply->begin();
  for (int text = 0; text < 3; ++text) reply->add_token(text, {.id = 5});
  reply->end_text(0, FinishReason::kLength);
  CHECK(counted.value("staircase_texts") == -1);
  const std::string before = client->stream;
  reply->leave();
  CHECK(counted.value("staircase_texts") == -3);
  for (int text = 1; text < 3; ++text) {
    reply->add_token(text, {.id = 5});
    reply->end_text(text, FinishReason::kLength);
  }
  CHECK(counted.value("staircase_texts") == -3);
  CHECK(client->stream == before);
  CHECK_FALSE(client->has_ended);
}

TEST_CASE("a text that finds no way through its constraint ends its request with one error") {
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    Metrics counted;
    declare(counted);
    auto client = std::make_shared<Client>();
    const auto request = std::make_shared<CompletionRequest>(
        fmt::format(
            R"-({{"prompt": [5], "n": 2, "guided_regex": "(fox ){{9}}(a?){{2100}}b", "stream": {}}})-",
            stream),
        model());
    std::vector<float> logits(static_cast<std::size_t>(model().vocab_size));
    row_options(*request).edit_raw_logits(logits, tokenizer().encode("fox fox fox fox fox fox fox fox fox "));
    const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
    for (const int text : {0, 1}) reply->end_text(text, FinishReason::kEos);
    CHECK(counted.value("staircase_texts") == -2);
    reply->leave();
    CHECK(counted.value("staircase_texts") == -2);
    if (stream) {
      const std::vector<json> events = client->events();
      REQUIRE(events.size() == 1);
      CHECK(events[0]["error"]["param"] == "guided_regex");
      CHECK(client->begun == 1);
      CHECK(client->has_ended);
    } else {
      CHECK(client->answer["error"]["param"] == "guided_regex");
      CHECK(client->sent == 1);
    }
  }
}

TEST_CASE("what a text has before its constraint fails is sent before the error, and once") {
  /// Work waits until the test does it.
  struct Waiting : Client {
    void post(std::function<void()> work) override { waiting = std::move(work); }
    std::function<void()> waiting;
  };
  Metrics counted;
  declare(counted);
  auto client = std::make_shared<Waiting>();
  const auto request = std::make_shared<CompletionRequest>(
      R"-({"prompt": [5], "guided_regex": "(fox ){9}(a?){2100}b", "stream": true})-", model());
  std::vector<float> logits(static_cast<std::size_t>(model().vocab_size));
  row_options(*request).edit_raw_logits(logits, tokenizer().encode("fox fox fox fox fox fox fox fox fox "));
  const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
  for (const char* text : {"fox ", "fo"}) {
    Token token{.id = 5};
    token.text = text;
    reply->add_token(0, token);
  }
  reply->end_text(0, FinishReason::kEos);
  std::exchange(client->waiting, nullptr)();  // which holds the reply, and that the client
  std::string text;
  const std::vector<json> events = client->events();
  for (std::size_t i = 0; i + 1 < events.size(); ++i)
    text += events[i]["choices"][0]["text"].get<std::string>();
  CHECK(text == "fox fo");
  CHECK(events.back().contains("error"));
}

TEST_CASE("each prompt of a request is echoed before its own texts") {
  Metrics counted;
  declare(counted);
  auto client = std::make_shared<Client>();
  const auto request = std::make_shared<CompletionRequest>(
      R"({"prompt": [[5], [6]], "n": 2, "max_tokens": 0, "echo": true, "logprobs": 0})", model());
  const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
  for (const int prompt : {0, 1}) {
    Token token{.id = 5 + prompt};
    token.logprobs = Logprobs{};
    const auto tokens = std::make_shared<const std::vector<Token>>(1, token);
    for (const int text : {2 * prompt, 2 * prompt + 1}) {
      CHECK(reply->add_prompt(text, tokens));
      reply->end_text(text, FinishReason::kLength);
    }
  }
  const json& choices = client->answer["choices"];
  REQUIRE(choices.size() == 4);
  for (int text = 0; text < 4; ++text)
    CHECK(choices[text]["text"] == tokenizer().decode(std::vector{5 + text / 2}));
}

TEST_CASE(
    "other clients have their turn after 4,096 numbers: those of tokens, of a prompt, and their likeliest") {
  struct Waiting : Client {
    void post(std::function<void()> work) override { waiting = std::move(work); }
    void post_without_flush(std::function<void()> work) override {
      ++turns;
      waiting = std::move(work);
    }
    std::function<void()> waiting;
    int turns = 0;
  };
  const auto turns = [](int prompt, int tokens) {
    Metrics counted;
    declare(counted);
    auto client = std::make_shared<Waiting>();
    const auto request = std::make_shared<CompletionRequest>(
        R"({"prompt": [5], "max_tokens": 5, "echo": true, "logprobs": 3})", model());
    const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
    Token token{.id = 5};
    token.logprobs = Logprobs{};
    if (prompt > 0) reply->add_prompt(0, std::make_shared<const std::vector<Token>>(prompt, token));
    for (int i = 0; i < tokens; ++i) reply->add_token(0, token);
    reply->end_text(0, FinishReason::kLength);
    while (client->waiting) std::exchange(client->waiting, nullptr)();
    CHECK(client->answer["choices"].size() == 1);
    return client->turns;
  };
  CHECK(turns(0, 1023) == 0);
  CHECK(turns(0, 1024) == 1);
  CHECK(turns(0, 2100) == 2);
  CHECK(turns(1023, 0) == 0);
  CHECK(turns(1024, 0) == 1);
}

TEST_CASE(
    "a completion's log-probabilities have the chosen token beside the likeliest, and bytes spelled out") {
  auto client = std::make_shared<Client>();
  Metrics counted;
  declare(counted);
  const auto request =
      std::make_shared<CompletionRequest>(R"({"prompt": [5], "logprobs": 1, "max_tokens": 2})", model());
  const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
  const int half = tokenizer().encode("\xe2").front(), whole = tokenizer().encode("a").front();
  REQUIRE(tokenizer().bytes(half) == "\xe2");
  for (const int id : {half, whole}) {
    Token token{.id = id};
    token.text = "é";
    token.logprobs = Logprobs{-1.5f, {{whole, -0.5f}}};
    reply->add_token(0, token);
  }
  reply->end_text(0, FinishReason::kLength);
  const json told = client->answer["choices"][0]["logprobs"];
  CHECK(told["text_offset"] == json{0, 1});  // in characters
  CHECK(told["tokens"] == json{"bytes:\\xe2", "a"});
  CHECK(told["top_logprobs"] == json{{{"a", -0.5}, {"bytes:\\xe2", -1.5}}, {{"a", -1.5}}});
}

TEST_CASE("tokens that a stop sequence takes begin where the shown text ends, counted in characters") {
  auto client = std::make_shared<Client>();
  Metrics counted;
  declare(counted);
  const auto request =
      std::make_shared<CompletionRequest>(R"({"prompt": [5], "logprobs": 0, "stop": "ab"})", model());
  const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
  std::vector<int> ids = tokenizer().encode("é");
  const std::size_t shown = ids.size();
  for (const char* const taken : {"a", "b"}) ids.push_back(tokenizer().encode(taken).front());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Token token{.id = ids[i]};
    token.text = i + 1 == shown ? "é" : "";
    token.logprobs = Logprobs{-1.0f, {}};
    reply->add_token(0, token);
  }
  reply->end_text(0, FinishReason::kStop);
  std::vector<int> expected(shown, 0);
  expected.insert(expected.end(), {1, 1});
  CHECK(client->answer["choices"][0]["logprobs"]["text_offset"] == json(expected));
}

TEST_CASE("a part without tokens adds no comma to the log-probabilities") {
  LogprobJson whole;
  for (const char* part : {"", "1", "", "2", ""}) whole.add({part, part, part, part});
  for (const std::string& list : {whole.tokens, whole.token_logprobs, whole.top_logprobs, whole.text_offset})
    CHECK(list == "1,2");
}

TEST_CASE("the cached tokens of each prompt count once, for the first of its texts") {
  const auto told = [](const std::vector<int>& texts, int n) {
    auto client = std::make_shared<Client>();
    Metrics counted;
    declare(counted);
    const auto request = std::make_shared<CompletionRequest>(
        json{{"prompt", {{5, 6}, {7, 8, 9}}}, {"n", n}, {"max_tokens", 1}}.dump(), model());
    const auto reply = std::make_shared<CompletionReply>("id", request, model(), client, counted);
    for (const int text : texts) reply->add_cached(text, 2);
    for (int i = 0; i < 2 * n; ++i) reply->end_text(i, FinishReason::kLength);
    const json& use = client->answer["usage"];
    return use.contains("prompt_tokens_details") ? use["prompt_tokens_details"]["cached_tokens"] : json();
  };
  for (const int n : {1, 2, 3}) {
    for (int text = 0; text < 2 * n; ++text) {
      CAPTURE(n);
      CAPTURE(text);
      CHECK(told({text}, n) == (text == 0 || text == n ? json(2) : json()));
    }
    CHECK(told({0, n}, n) == 4);
    CHECK(told({0, n, 0, n, n}, n) == 4);  // the rest are later parts of the prompts
  }
}

TEST_CASE("an empty answer still has its role") {
  Answer answer(R"(, "stream": true)");
  answer.add({mark("<|im_end|>")}).end();
  const std::vector<json> events = answer.client->events();
  REQUIRE(events.size() == 2);
  CHECK(events[0]["choices"][0]["delta"] == json{{"role", "assistant"}, {"content", ""}});
  CHECK(events[1]["choices"][0]["delta"] == json::object());
  CHECK(events[1]["choices"][0]["finish_reason"] == "stop");
}

TEST_CASE("each text of a stream has its own role and end") {
  Answer answer(R"(, "stream": true, "n": 2)");
  answer.add(with_end("One"), 1).end(FinishReason::kEos, 1);
  answer.add(tokenizer().encode("Two")).end(FinishReason::kLength);
  std::map<int, std::string> texts, ends;
  std::map<int, int> roles;
  for (const json& event : answer.client->events()) {
    const json& choice = event["choices"][0];
    texts[choice["index"]] += choice["delta"].value("content", "");
    roles[choice["index"]] += choice["delta"].contains("role");
    if (!choice["finish_reason"].is_null()) ends[choice["index"]] = choice["finish_reason"];
  }
  CHECK(texts == std::map<int, std::string>{{0, "Two"}, {1, "One"}});
  CHECK(ends == std::map<int, std::string>{{0, "length"}, {1, "stop"}});
  CHECK(roles == std::map<int, int>{{0, 1}, {1, 1}});
}

TEST_CASE("log-probabilities are of the tokens that are shown, with their true bytes") {
  const std::vector<int> half = tokenizer().encode("\xf0\x9f\xa6\x8a!");  // a fox
  REQUIRE(half.size() > 2);
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    Answer answer(fmt::format(R"(, "logprobs": true, "top_logprobs": 2, "stream": {})", stream));
    std::vector<int> ids = half;
    ids.push_back(mark("<|im_end|>"));
    answer.add(ids).end();
    json told = json::array();
    if (stream) {
      for (const json& event : answer.client->events()) {
        const json& logprobs = event["choices"][0]["logprobs"];
        if (!logprobs.is_null())
          told.insert(told.end(), logprobs["content"].begin(), logprobs["content"].end());
      }
    } else {
      told = answer.client->answer["choices"][0]["logprobs"]["content"];
    }
    REQUIRE(told.size() == half.size());  // without the end
    std::string bytes;
    for (const json& token : told) {
      for (const int byte : token["bytes"]) bytes += static_cast<char>(byte);
      CHECK(token["logprob"] == -0.5);
      REQUIRE(token["top_logprobs"].size() == 2);
      CHECK(token["top_logprobs"][0]["bytes"] == token["bytes"]);
      CHECK(token["top_logprobs"][1]["token"] == tokenizer().decode(std::vector<int>{5}));
    }
    CHECK(bytes == "\xf0\x9f\xa6\x8a!");
    CHECK(contains(told[0]["token"].get<std::string>(), "\xEF\xBF\xBD"));
  }
  Answer begun(R"(, "logprobs": true, "stream": true)");
  begun.add({half[0]});  // it completes no character, but nothing can take it back
  CHECK(contains(begun.client->stream, "\"logprob\":-0.5"));
}

TEST_CASE("log-probabilities that wait for the end come before its reason, and once") {
  Answer answer(R"(, "logprobs": true, "stream": true)");
  Token cut{.id = tokenizer().encode(" STOP").front()};
  cut.text = "";  // a stop sequence has taken it
  cut.logprobs = Logprobs{-0.5f, {}};
  answer.add({tokenizer().encode("Hi").front()});
  answer.reply->add_token(0, cut);
  answer.end(FinishReason::kStop);
  const std::vector<json> events = answer.client->events();
  REQUIRE(events.size() >= 2);
  const json reason = events.back()["choices"][0], before = events[events.size() - 2]["choices"][0];
  CHECK(before["delta"]["content"] == "");
  CHECK(before["logprobs"]["content"].size() == 1);
  CHECK(reason["finish_reason"] == "stop");
  CHECK(reason["logprobs"].is_null());
}

TEST_CASE("an end marker that ends nothing is text, with its log-probabilities") {
  Answer answer(R"(, "logprobs": true)");
  std::vector<int> ids = with_end("a");
  for (const int id : with_end("b")) ids.push_back(id);
  answer.add(ids).end(FinishReason::kLength);
  const json& choice = answer.client->answer["choices"][0];
  CHECK(choice["message"]["content"] == "a<|im_end|>b<|im_end|>");
  CHECK(choice["logprobs"]["content"].size() == 4);
  CHECK(choice["logprobs"]["content"][1]["token"] == "<|im_end|>");
}

TEST_CASE("what can be no marker is sent at once, and a marker alone is no text") {
  ReasoningSplit split(true);
  CHECK(split.push("Well").reasoning == "Well");
  CHECK(split.push(" then<").reasoning == " then");
  CHECK(split.push("/thin").reasoning == "");
  CHECK(split.push("g").reasoning == "</thing");
  for (const bool begins_within : {false, true}) {
    ReasoningSplit marker(begins_within);
    CHECK(marker.push("<think>").content == "");
    const SplitText rest = marker.finish();
    CHECK(rest.reasoning + rest.content == "");
  }
}

TEST_CASE("a token is sent with its text, even while a stop sequence may take what comes after it") {
  Answer answer(R"(, "logprobs": true, "stream": true)");
  const auto add = [&](const char* bytes, const char* text) {
    Token token{.id = tokenizer().encode(bytes).front()};
    token.text = text;
    token.logprobs = Logprobs{-0.5f, {}};
    answer.reply->add_token(0, token);
  };
  const auto sent = [&] {
    int count = 0;
    for (std::size_t at = 0; (at = answer.client->stream.find("\"logprob\":", at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  add("a", "a");
  CHECK(sent() == 1);
  add("b", "");
  CHECK(sent() == 1);
  add("a", "b");
  CHECK(sent() == 2);
}

TEST_CASE("a completion's token has its likeliest once, and none where nothing was computed") {
  const ReplyForm& form = completion_form();
  CHECK(form.formats_end());
  CHECK_FALSE(chat_form().formats_end());
  const int a = tokenizer().encode("a").front(), b = tokenizer().encode("b").front();
  Token token{.id = a};
  token.logprobs = Logprobs{-0.5f, {{a, -0.5f}, {b, -1.5f}}};
  LogprobJson lists = form.format(tokenizer(), token, 3);
  CHECK(lists.tokens == "\"a\"");
  CHECK(lists.token_logprobs == "-0.5");
  CHECK(lists.top_logprobs == "{\"a\":-0.5,\"b\":-1.5}");
  CHECK(lists.text_offset == "3");
  token.logprobs = Logprobs{};  // the first token of an echoed prompt
  lists = form.format(tokenizer(), token, 0);
  CHECK(lists.token_logprobs == "null");
  CHECK(lists.top_logprobs == "null");
}

TEST_CASE("reasoning is separated from the content on request, wherever tokens cut the markers") {
  struct Case {
    std::string text, reasoning, content;
    bool begins_within = false;  // the template wrote the marker
  };
  const std::vector<Case> cases{
      {"<think>\nA fox?\n</think>\n\nYes.", "A fox?", "Yes."},
      {"A fox?\n</think>\n\nYes.", "A fox?", "Yes.", true},
      {"\n <think>a</think>b", "a", "b"},
      {"<think>a</think>b", "a", "b", true},  // the model repeats it
      {"<think>a", "a", ""},                  // never closed
      {"a", "a", "", true},
      {"a\n</thin", "a\n</thin", "", true},
      {"<think>a </ < b</think>c", "a </ < b", "c"},
      {"<think>a<think>b</think>c", "a<think>b", "c"},
      {"<think>a</think>b <think>c</think> d", "a", "b <think>c</think> d"},  // once
      {"<think>\n\n</think>\n\nYes.", "", "Yes."},
      {"  Yes, <think> is a marker.", "", "  Yes, <think> is a marker."},
      {"<thin", "", "<thin"},
      {"<thin", "<thin", "", true},
      {"</think>a", "", "</think>a"},
      {"</think>a", "", "a", true},
      {" ", "", " "},
      {"", "", ""}};
  for (const auto& [text_, reasoning, content, begins_within] : cases) {
    const auto& text = text_;  // clang 14 captures no structured binding
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      std::vector<std::string> pieces{text.substr(0, cut), text.substr(cut)};
      if (cut == text.size()) {
        pieces.clear();
        for (const char byte : text) pieces.emplace_back(1, byte);
      }
      const std::string prompt = begins_within ? "a<think>\n" : "<think></think>";
      CAPTURE(text);
      CAPTURE(cut);
      Answer whole(R"(, "separate_reasoning": true, "logprobs": true)", prompt),
          parts(R"(, "separate_reasoning": true, "logprobs": true, "stream": true)", prompt);
      whole.add_texts(pieces).end(FinishReason::kLength);
      parts.add_texts(pieces).end(FinishReason::kStop);
      const json& choice = whole.client->answer["choices"][0];
      CHECK(choice["message"] == json{{"role", "assistant"},
                                      {"content", content},
                                      {"refusal", nullptr},
                                      {"reasoning_content", reasoning.empty() ? json() : json(reasoning)}});
      CHECK(choice["finish_reason"] == "length");
      std::string said, thought;
      std::size_t told = 0;
      for (const json& event : parts.client->events()) {
        const json& delta = event["choices"][0]["delta"];
        said += delta.value("content", "");
        thought += delta.value("reasoning_content", "");
        const bool thinks = delta.contains("reasoning_content");
        CHECK((!thinks || said.empty()));  // in their order, each in an event of its own
        CHECK((!thinks || !delta.contains("content")));
        const json& logprobs = event["choices"][0]["logprobs"];
        if (!logprobs.is_null()) told += logprobs["content"].size();
      }
      CHECK(said == content);
      CHECK(thought == reasoning);
      CHECK(told == pieces.size());
    }
  }
}

TEST_CASE("each text has its own reasoning, and without a request it stays in the content") {
  Answer both(R"(, "separate_reasoning": true, "n": 2)", "<think>");
  both.add_texts({"a</think>", "b"}, 1).end(FinishReason::kStop, 1);
  both.add_texts({"c"}, 0).end(FinishReason::kLength, 0);
  const json& choices = both.client->answer["choices"];
  CHECK(choices[0]["message"]["reasoning_content"] == "c");
  CHECK(choices[1]["message"]["reasoning_content"] == "a");
  CHECK(choices[1]["message"]["content"] == "b");
  for (const char* more : {"", R"(, "separate_reasoning": false)", R"(, "separate_reasoning": null)"}) {
    Answer plain(more, "<think>");
    plain.add_texts({"a</think>", "b"}).end();
    CHECK(plain.client->answer["choices"][0]["message"] ==
          json{{"role", "assistant"}, {"content", "a</think>b"}, {"refusal", nullptr}});
  }
}

TEST_CASE("calls are separated from the content, wherever tokens cut them, whole and in streams") {
  struct Case {
    std::string text;
    json content;
    std::vector<std::pair<std::string, std::string>> calls = {};  // names and arguments
  };
  const std::string add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"é}\"}}\n</tool_call>";
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const std::vector<Case> cases{{"Hello. <tool", "Hello. <tool"},
                                {"", ""},
                                {add, nullptr, {{"add", "{\"a\": \"é}\"}"}}},
                                {"I add.\n" + add, "I add.", {{"add", "{\"a\": \"é}\"}"}}},
                                {add + "\n" + now, nullptr, {{"add", "{\"a\": \"é}\"}"}, {"now", "{}"}}}};
  const std::string tools =
      R"(, "logprobs": true, "tools": [{"type": "function", "function": {"name": "now"}}])";
  for (const Case& one : cases) {
    const std::string& text = one.text;
    const json& content = one.content;
    const auto& calls = one.calls;
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      std::vector<std::string> pieces{text.substr(0, cut), text.substr(cut)};
      if (cut == text.size()) {
        pieces.clear();
        for (const char byte : text) pieces.emplace_back(1, byte);
      }
      CAPTURE(text);
      CAPTURE(cut);
      const char* const end = calls.empty() ? "stop" : "tool_calls";
      Answer whole(tools), parts(tools + R"(, "stream": true)");
      whole.add_texts(pieces).end();
      parts.add_texts(pieces).end();
      const json& choice = whole.client->answer["choices"][0];
      CHECK(choice["finish_reason"] == end);
      const json& chosen = choice["logprobs"];
      CHECK((chosen.is_null() ? 0 : chosen["content"].size()) == pieces.size());
      const json& message = choice["message"];
      CHECK(message["content"] == content);
      CHECK(message.contains("tool_calls") == !calls.empty());
      std::set<std::string> ids;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const json& call = message["tool_calls"][i];
        CHECK(call["type"] == "function");
        CHECK(call["function"] == json{{"name", calls[i].first}, {"arguments", calls[i].second}});
        CHECK(ids.insert(call["id"]).second);
        CHECK(call.size() == 3);
      }
      json said, made = json::array();
      std::size_t told = 0;
      const std::vector<json> events = parts.client->events();
      for (const json& event : events) {
        const json& delta = event["choices"][0]["delta"];
        if (delta.contains("content") && !delta["content"].is_null())
          said = said.is_null() ? delta["content"]
                                : json(said.get<std::string>() + delta["content"].get<std::string>());
        for (const json& call : delta.value("tool_calls", json::array())) {
          CHECK(delta.size() == 1);
          if (call.contains("id")) {
            CHECK(call["index"] == made.size());
            CHECK(call["type"] == "function");
            CHECK(ids.insert(call["id"]).second);
            made.push_back(call["function"]);
          } else {
            CHECK(call["index"] == made.size() - 1);
            CHECK(call.size() == 2);
            made.back()["arguments"] = made.back()["arguments"].get<std::string>() +
                                       call["function"]["arguments"].get<std::string>();
          }
        }
        const json& logprobs = event["choices"][0]["logprobs"];
        if (!logprobs.is_null()) told += logprobs["content"].size();
      }
      CHECK(events.front()["choices"][0]["delta"] == json{{"role", "assistant"}, {"content", nullptr}});
      CHECK(events.back()["choices"][0]["finish_reason"] == end);
      CHECK(told == pieces.size());
      CHECK((said.is_null() ? "" : said.get<std::string>()) ==
            (content.is_null() ? "" : content.get<std::string>()));
      CHECK(made.size() == calls.size());
      for (std::size_t i = 0; i < made.size(); ++i)
        CHECK(made[i] == json{{"name", calls[i].first}, {"arguments", calls[i].second}});
    }
  }
}

TEST_CASE("a call that reaches max_tokens ends there, and each text has its own calls") {
  Answer both(R"(, "n": 2, "tools": [{"type": "function", "function": {"name": "now"}}])");
  both.add_texts({"<tool_call>\n{\"name\": \"now\", \"arguments\": {"}, 1).end(FinishReason::kLength, 1);
  both.add_texts({"Hello."}, 0).end(FinishReason::kStop, 0);
  const json& choices = both.client->answer["choices"];
  CHECK(choices[0]["message"] == json{{"role", "assistant"}, {"content", "Hello."}, {"refusal", nullptr}});
  CHECK(choices[0]["finish_reason"] == "stop");
  CHECK(choices[1]["message"]["tool_calls"][0]["function"] == json{{"name", "now"}, {"arguments", "{"}});
  CHECK(choices[1]["finish_reason"] == "length");
  // Without functions, the same text is content.
  Answer plain("");
  plain.add_texts({"<tool_call>"}).end();
  CHECK(plain.client->answer["choices"][0]["message"]["content"] == "<tool_call>");
}

TEST_CASE("an answer is passed on with its tokens, except the end-of-text tokens and those that were cut") {
  Answer answer("");
  answer.add(with_end("Hithere.")).end();
  REQUIRE(answer.handed_on.size() == 1);
  CHECK(answer.handed_on[0] == tokenizer().encode("Hithere."));

  Answer stopped("");
  std::vector<int> kept = tokenizer().encode("Hi");
  std::vector<int> ids = kept;
  for (const int id : tokenizer().encode(" STOP")) ids.push_back(id);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Token token{.id = ids[i]};
    token.text = i < kept.size() ? std::string(tokenizer().bytes(ids[i])) : "";
    stopped.reply->add_token(0, token);
  }
  stopped.end(FinishReason::kStop);
  REQUIRE(stopped.handed_on.size() == 1);
  CHECK(stopped.handed_on[0] == kept);

  Answer broken("");  // half a character is shown as U+FFFD, which is other bytes
  const std::vector<int> fox = tokenizer().encode("a \xf0\x9f\xa6\x8a");
  broken.add({fox.begin(), fox.end() - 1}).end(FinishReason::kLength);
  CHECK(broken.handed_on[0] == tokenizer().encode("a "));
}

TEST_CASE("an end marker among stop sequences ends an answer quietly, and is shown once if it does not") {
  Answer quiet(R"(, "stop": "<|im_end|>")");
  Token end{.id = mark("<|im_end|>")};
  end.text = "";  // it was found
  quiet.reply->add_token(0, end);
  quiet.end(FinishReason::kStop);
  CHECK(quiet.client->answer["choices"][0]["message"]["content"] == "");

  Answer shown(R"(, "stop": "x", "ignore_eos": true)");
  end.text = "<|im_end|>";
  shown.reply->add_token(0, end);
  shown.reply->add_token(0, end);
  shown.end(FinishReason::kLength);
  CHECK(shown.client->answer["choices"][0]["message"]["content"] == "<|im_end|><|im_end|>");
}
