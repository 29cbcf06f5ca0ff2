#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <nlohmann/json.hpp>

#include "arrivals.h"
#include "service.h"
#include "tests/toy_engine.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-1m");
  return loaded;
}

const ServedModel& served() {
  static const ServedModel model("toy", tokenizer(),
                                 {.vocab_size = ToyEngine::kVocabSize, .n_positions = 1000});
  return model;
}

/// A client without a network. Posted work is done at once, in the thread that posts it.
class Client : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void send(HttpResponse response) override {
    answer = response.body;
    for (const std::string& piece : response.more) answer += piece;
  }
  void begin_stream(const std::string&, const std::string&) override {}
  void write(const std::string&) override { ++parts; }
  void end_stream() override {}
  void on_left(std::function<void()>) override {}
  void post(std::function<void()> work) override { work(); }
  void post_without_flush(std::function<void()> work) override { work(); }

  std::string answer;  ///< empty until there is an answer
  int parts = 0;       ///< parts of a stream so far

 private:
  HttpRequest request_;
};

Metrics& metrics() {
  static Metrics counted;
  static const bool declared = [] {
    counted.declare_gauge("staircase_texts", "");
    counted.declare_counter("staircase_generated_tokens_total", "");
    counted.declare_histogram("staircase_time_to_first_token_seconds", "", {});
    counted.declare_histogram("staircase_time_per_output_token_seconds", "", {});
    return true;
  }();
  CHECK(declared);
  return counted;
}

/// A service with the toy engine, and what its clients send.
struct Served {
  ToyEngine toy;
  std::vector<int> scored;  ///< numbers of passes after which a part of a prompt was scored
  int parts = 1;            ///< into which a prompt is divided
  Service service;

  Served(int slots, int queue, const PrefillOptions& prefill = {})
      : toy(slots),
        service(
            toy, tokenizer(),
            [this](const std::vector<int>& prompt, int likeliest) { return score(prompt, likeliest); },
            {.max_batch_size = slots, .max_queue = queue}, prefill) {}

  /// Like a scorer: it keeps the last prompt's tokens.
  std::shared_ptr<const std::vector<Token>> score(const std::vector<int>& prompt, int) {
    if (prompt != last_scored) missing = parts;
    last_scored = prompt;
    if (missing == 0) return std::make_shared<std::vector<Token>>(prompt.size());
    --missing;
    scored.push_back(static_cast<int>(toy.rows.size()));
    return nullptr;
  }
  std::vector<int> last_scored;
  int missing = 0;

  struct Sent {
    Admission admission;
    std::shared_ptr<Client> client;
    std::shared_ptr<CompletionReply> reply;
  };

  /// Runs passes until these clients have their answers.
  void run(const std::vector<Sent>& sent) {
    for (int passes = 0; passes < 1000; ++passes) {
      const auto waits = [](const Sent& one) { return one.client->answer.empty(); };
      if (std::ranges::none_of(sent, waits)) return;
      CHECK(service.pass());
    }
    FAIL("a client has no answer");
  }

  Sent send(const std::string& body) {
    const auto client = std::make_shared<Client>();
    const auto request = std::make_shared<CompletionRequest>(body, served());
    const auto reply = std::make_shared<CompletionReply>("id", request, served(), client, metrics());
    return {service.submit(*request, reply), client, reply};
  }

  /// A text after a prompt of one token.
  Sent send(int prompt, int max_tokens, const std::string& more = "") {
    return send(fmt::format(R"({{"prompt": [{}], "max_tokens": {}, "temperature": 0, "ignore_eos": true{}}})",
                            prompt, max_tokens, more));
  }
};

/// The toy engine's answer to the same request, as text, because an answer has no tokens.
std::string alone(int prompt, int max_tokens) {
  RowOptions options;
  options.stopping = {.max_new_tokens = max_tokens, .ignore_eos = true};
  std::vector<int> text = ToyEngine::alone({prompt}, options).tokens;
  text.erase(text.begin());
  return tokenizer().decode(text);
}

std::string text(const Served::Sent& sent, int index = 0) {
  return nlohmann::json::parse(sent.client->answer)["choices"][index]["text"];
}

}  // namespace

TEST_CASE("each client gets the texts that it requested") {
  Served served(2, 10);
  std::vector<Served::Sent> sent;
  for (int i = 1; i <= 5; ++i) sent.push_back(served.send(i, 3 + i));
  const Served::Sent two = served.send(R"({"prompt": [[7], [8]], "n": 2, "max_tokens": 4, "temperature": 0,
                                           "ignore_eos": true})");
  sent.push_back(two);
  served.run(sent);
  for (int i = 1; i <= 5; ++i) CHECK(text(sent[i - 1]) == alone(i, 3 + i));
  for (int i = 0; i < 4; ++i) CHECK(text(two, i) == alone(i < 2 ? 7 : 8, 4));
}

TEST_CASE("alone, a request may have more texts than fit into batch and queue") {
  Served served(1, 1);
  const auto sent = served.send(5, 3, R"(, "n": 4)");
  CHECK(sent.admission == Admission::kAccepted);
  CHECK(served.send(5, 3).admission == Admission::kFull);
  served.run({sent});
  for (int i = 0; i < 4; ++i) CHECK(text(sent, i) == alone(5, 3));
}

TEST_CASE("the texts of a request have seeds in their order, whichever begins first") {
  Served served(1, 100);
  const std::string keys = R"(, "max_tokens": 9, "temperature": 5, "ignore_eos": true)";
  const auto many = served.send(R"({"prompt": [[1], [2], [1]], "n": 2, "seed": 7)" + keys + "}");
  std::vector<Served::Sent> alone;
  for (int i = 0; i < 6; ++i) {
    alone.push_back(
        served.send(fmt::format(R"({{"prompt": [{}], "seed": {}{}}})", i / 2 == 1 ? 2 : 1, 7 + i, keys)));
  }
  served.run(alone);
  served.run({many});
  for (int i = 0; i < 6; ++i) CHECK(text(many, i) == text(alone[i]));
}

TEST_CASE("requests arrive from other threads while the model's thread serves") {
  Served served(3, 1000);
  std::atomic<bool> all_sent = false;
  auto model = std::async(std::launch::async, [&] {
    while (!all_sent) served.service.pass();
  });
  std::vector<std::future<void>> clients;
  std::vector<std::vector<Served::Sent>> sent(4);
  for (int t = 0; t < 4; ++t) {
    clients.push_back(std::async(std::launch::async, [&, t] {
      for (int i = 0; i < 20; ++i) {
        sent[t].push_back(served.send(1 + (t * 20 + i) % 28, 1 + i));
        if (i % 5 == 4) served.service.cancel(sent[t].back().reply);
      }
    }));
  }
  for (auto& client : clients) client.get();
  all_sent = true;
  const Served::Sent last = served.send(1, 1);  // wakes the model's thread
  model.get();
  for (const std::vector<Served::Sent>& of_thread : sent) {
    for (int i = 0; i < 20; ++i) {
      if (i % 5 != 4) served.run({of_thread[i]});
    }
  }
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 20; ++i) {
      if (i % 5 == 4 && sent[t][i].client->answer.empty()) continue;
      CHECK(text(sent[t][i]) == alone(1 + (t * 20 + i) % 28, 1 + i));
    }
  }
}

TEST_CASE("a full queue accepts no more texts, and has room again when one ends or its client leaves") {
  Served served(1, 2);
  CHECK(served.send(1, 2).admission == Admission::kAccepted);
  CHECK(served.send(2, 9).admission == Admission::kAccepted);
  const auto last = served.send(3, 9);
  CHECK(last.admission == Admission::kAccepted);
  CHECK(served.send(4, 9).admission == Admission::kFull);
  for (int pass = 0; pass < 2; ++pass) CHECK(served.service.pass());              // the first text ends
  CHECK(served.send(R"({"prompt": [[4], [5]]})").admission == Admission::kFull);  // all texts, or none
  CHECK(served.send(4, 9).admission == Admission::kAccepted);
  CHECK(served.send(5, 9).admission == Admission::kFull);
  served.service.cancel(last.reply);
  CHECK(served.service.pass());
  CHECK(served.send(5, 9).admission == Admission::kAccepted);
}

TEST_CASE("a client that leaves frees its rows before the next pass, and the others do not change") {
  Served served(3, 10);
  const auto first = served.send(1, 20), second = served.send(2, 20), third = served.send(3, 20);
  const auto waits = served.send(4, 20), fifth = served.send(5, 20);
  for (int pass = 0; pass < 5; ++pass) CHECK(served.service.pass());
  served.service.cancel(second.reply);  // its client leaves while its text grows
  served.service.cancel(waits.reply);   // and this text has no row yet
  CHECK(served.service.pass());
  CHECK(served.toy.rows.back() == 3);    // the last has joined
  CHECK(served.toy.tokens.back() == 3);  // with its prompt of one token
  served.service.cancel(first.reply);
  served.service.cancel(third.reply);
  CHECK(served.service.pass());
  CHECK(served.toy.rows.back() == 1);
  served.run({fifth});
  CHECK(text(fifth) == alone(5, 20));
  for (const auto& left : {first, second, third, waits}) CHECK(left.client->answer.empty());
}

TEST_CASE("a client that leaves is forgotten although no other request follows") {
  Served served(1, 10);
  const auto sent = served.send(1, 500);
  CHECK(served.service.pass());
  served.service.cancel(sent.reply);
  auto model = std::async(std::launch::async, [&] { return served.service.pass(); });
  CHECK(model.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  served.send(2, 1);  // would wake it
  CHECK(model.get());
}

TEST_CASE("a client that leaves before the model's thread has checked costs no pass") {
  Served served(2, 10);
  const auto sent = served.send(1, 20, R"(, "echo": true, "logprobs": 1)");
  served.service.cancel(sent.reply);
  const auto other = served.send(2, 3);
  served.run({other});
  CHECK(served.toy.rows == std::vector<int>{1, 1, 1});
  CHECK(served.scored.empty());
}

TEST_CASE("a client that leaves in the middle of its prompt frees the row as well") {
  Served served(1, 10, {.chunk = 2});
  const auto longer = served.send(R"({"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9], "max_tokens": 5})");
  const auto other = served.send(7, 4);
  CHECK(served.service.pass());
  CHECK(served.service.pass());
  served.service.cancel(longer.reply);
  CHECK(served.service.pass());
  CHECK(served.toy.tokens == std::vector<int>{2, 2, 1});
  served.run({other});
  CHECK(text(other) == alone(7, 4));
}

TEST_CASE("cancelling a finished request changes nothing") {
  Served served(1, 10);
  const auto sent = served.send(1, 1), other = served.send(2, 3);
  CHECK(served.service.pass());
  served.service.cancel(sent.reply);
  served.service.cancel(sent.reply);
  served.run({other});
  CHECK(text(sent) == alone(1, 1));
  CHECK(text(other) == alone(2, 3));
}

TEST_CASE("a part of a prompt is scored before a pass, so the rows wait for no more") {
  Served served(4, 10);
  served.parts = 2;
  const auto grows = served.send(9, 8);
  CHECK(served.service.pass());
  const auto scored = served.send(R"({"prompt": [[1, 2], [3, 4], [5, 6]], "max_tokens": 0, "echo": true,
                                      "logprobs": 2})");
  const auto other = served.send(3, 4);
  served.run({scored, grows, other});
  CHECK(served.scored == std::vector<int>{1, 2, 3, 4, 5, 6});
  CHECK(text(scored, 2) == tokenizer().decode(std::vector<int>{0, 0}));
  CHECK(text(grows) == alone(9, 8));
  CHECK(text(other) == alone(3, 4));
}

TEST_CASE("a prompt is scored once for all of its texts, and for equal prompts of a list") {
  Served served(2, 100);
  const auto grows = served.send(9, 8);
  const auto many = served.send(R"({"prompt": [[1, 2], [3, 4], [1, 2]], "n": 8, "max_tokens": 0, "echo": true,
                                    "logprobs": 0})");
  served.run({grows, many});
  CHECK(served.scored.size() == 2);
  CHECK(text(grows) == alone(9, 8));
  for (int i = 0; i < 24; ++i) CHECK(text(many, i) == tokenizer().decode(std::vector<int>{0, 0}));
}

TEST_CASE("a client that leaves while its prompt is scored costs no further part") {
  Served served(2, 10);
  served.parts = 5;
  const auto sent = served.send(R"({"prompt": [1, 2], "max_tokens": 9, "echo": true, "logprobs": 1})");
  const auto other = served.send(2, 3);
  CHECK(served.service.pass());
  served.service.cancel(sent.reply);
  served.run({other});
  CHECK(served.scored.size() == 1);
  CHECK(text(other) == alone(2, 3));
}
