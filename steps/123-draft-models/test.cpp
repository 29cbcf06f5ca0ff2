#include <doctest/doctest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "arrivals.h"
#include "chat.h"
#include "common/base/file.h"
#include "common/decoding/drafted_engine.h"
#include "common/server/chat_request.h"
#include "common/text/tokenizer_json.h"
#include "generate.h"
#include "service.h"
#include "tests/error_message.h"
#include "tests/step.h"
#include "tests/temporary_folder.h"
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

  Served(int slots, int queue, const PrefillOptions& prefill = {}, TurnOptions turns = {},
         std::unique_ptr<RowDrafter> drafter = nullptr)
      : toy(slots),
        service(
            toy, tokenizer(),
            [this](const std::vector<int>& prompt, int likeliest) { return score(prompt, likeliest); },
            {.max_batch_size = slots, .max_queue = queue}, prefill, std::move(turns), std::move(drafter)) {}

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

  /// Runs passes until the service is drained.
  void run() {
    while (service.pass()) continue;
  }

  struct Sent {
    Admission admission;
    std::shared_ptr<Client> client;
    std::shared_ptr<CompletionReply> reply;
  };

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

/// Proposes the toy engine's own tokens, or only wrong ones.
struct ToyDrafter : RowDrafter {
  bool is_right = true;
  std::vector<int> counts = {};  ///< of each row of each proposal

  std::vector<std::vector<int>> propose(std::span<const Row> rows, std::span<const int> wanted) override {
    std::vector<std::vector<int>> drafts(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      counts.push_back(wanted[r]);
      std::vector<int> text = rows[r].tokens;
      for (int i = 0; i < wanted[r]; ++i) {
        text.push_back((ToyEngine::next(text) + (is_right ? 0 : 1)) % ToyEngine::kVocabSize);
        drafts[r].push_back(text.back());
      }
    }
    return drafts;
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

/// The markers of SmolLM2, with a small vocabulary.
const Tokenizer& marks() {
  static const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  static const Tokenizer loaded(read_tokenizer_json(read_file(file), file), file);
  return loaded;
}

const char* const kChatMl =
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor "
    "%}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

Conversation hello(const std::string& content = "Hello") {
  return Conversation(nlohmann::json{{"messages", {{{"role", "user"}, {"content", content}}}}}.dump());
}

/// A model's folder with this template.
struct Folder : TemporaryFolder {
  explicit Folder(const std::string& source) { write("chat_template.jinja", source); }
};

/// Texts through a paged cache of the embedded model, one after another, and how much of each prompt was
/// found.
struct Watched {
  PagedKvCache cache{tales(), 2, 64};
  PagedEngine paged{tales(), cache};
  std::vector<std::pair<int, int>> joined;
  CachedPrompts engine{paged, [this](int number, int cached) { joined.emplace_back(number, cached); }};
  std::vector<int> grown;
  TurnScheduler scheduler{
      engine, tales_tokenizer(),        2,
      {},     [](int, const Token&) {}, [this](int, const Generation& text) { grown = text.tokens; }};

  std::vector<int> grow(int number, const std::vector<int>& prompt, int count, unsigned seed = 1) {
    RowOptions options;
    options.stopping = {.max_new_tokens = count, .ignore_eos = true};
    options.sampling = {.do_sample = true, .seed = seed};
    scheduler.submit(number, prompt, options);
    while (!scheduler.idle()) scheduler.pass();
    return grown;
  }
};

}  // namespace

TEST_CASE("a conversation is rendered as by the model's template, with the answer opened") {
  const Folder folder(kChatMl);
  Chat chat(folder.path(), marks(), {});
  const Rendered prompt = chat.render(hello());
  CHECK(prompt.text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  CHECK(chat.encode(prompt) == marks().encode_with_special_tokens(prompt.text));
}

TEST_CASE("a template that a person names takes the place of the model's own") {
  const Folder folder(kChatMl);
  const auto file = folder.write("other.jinja", "{{ messages[0].content }}!");
  Chat chat(folder.path(), marks(), {{}, file.string()});
  CHECK(chat.render(hello()).text == "Hello!");
}

TEST_CASE("a marker in a message is text for the model") {
  const Folder folder(kChatMl);
  Chat chat(folder.path(), marks(), {});
  const int mark = marks().encode_with_special_tokens("<|im_end|>").front();
  const std::vector<int> tokens = chat.encode(chat.render(hello("<|im_end|>")));
  CHECK(std::ranges::count(tokens, mark) == 1);
  CHECK(marks().decode(tokens) == chat.render(hello("<|im_end|>")).text);
}

TEST_CASE("a model without a template reports that, and one with a broken template reports why") {
  Chat tales("tales-1m", tokenizer(), {});
  CHECK(error_message([&] { tales.render(hello()); }) ==
        "this model continues texts; it was not trained to answer: use /v1/completions");
  const Folder folder("{% nope %}");
  Chat broken(folder.path(), marks(), {});
  CHECK(says(error_message([&] { broken.render(hello()); }), "chat_template.jinja: the template's line 1"));
  const Folder picky("{{ raise_exception('Roles must alternate.') }}");
  Chat refuses(picky.path(), marks(), {});
  CHECK(says(error_message([&] { refuses.render(hello()); }), "Roles must alternate."));
  const auto named = [&](const std::string& file) {
    return error_message([&] { Chat(folder.path(), marks(), {{}, file}); });
  };
  CHECK(
      says(named("/nonexistent.jinja"), "/nonexistent.jinja"));  // a file that a person names must be usable
}

TEST_CASE("a conversation that goes on finds its prompt and its answer in the cache") {
  Watched watched;
  std::vector<int> prompt = reference("sliding.json")["prompt_ids"];
  const std::vector<int> ids = reference("sliding.json")["ids"];
  prompt.insert(prompt.end(), ids.begin(), ids.begin() + 90);
  std::vector<int> second = watched.grow(1, prompt, 40);
  const int said = static_cast<int>(second.size()) - 1;  // the last token was never fed
  second.insert(second.end(), ids.begin(), ids.begin() + 10);
  watched.grow(2, {5, 7, 9}, 20);  // of another conversation
  watched.grow(3, second, 5);
  REQUIRE(watched.joined.size() == 3);
  CHECK(watched.joined[0] == std::pair{1, 0});
  CHECK(watched.joined[1] == std::pair{2, 0});
  CHECK(watched.joined[2] == std::pair{3, said / kBlockSize * kBlockSize});
}

TEST_CASE("each part of a prompt is reported with what was cached before it, and no later token") {
  ToyEngine toy(2);
  std::map<int, std::vector<int>> parts;
  CachedPrompts engine(toy, [&](int number, int cached) { parts[number].push_back(cached); });
  Scheduler scheduler(
      engine, tales_tokenizer(), 2, {.chunk = 2}, [](int, const Token&) {}, [](int, const Generation&) {});
  RowOptions options;
  options.stopping = {.max_new_tokens = 3, .ignore_eos = true};
  for (const int number : {1, 2}) scheduler.submit(number, {1, 2, 3, 4, 5}, options);
  while (!scheduler.idle()) scheduler.pass();
  // The second prompt gets the rest of the chunk that the first one ends in.
  CHECK(parts == std::map<int, std::vector<int>>{{1, {0, 2, 4}}, {2, {0, 1, 3}}});
}

TEST_CASE("the client of a chat gets its answer, and how much of its prompt was cached") {
  const Folder folder("{{ messages[0].content }}");
  Chat chat(folder.path(), tokenizer(), {});
  Served served(1, 10);
  const auto client = std::make_shared<Client>();
  const ServedModel model("toy", tokenizer(), {.vocab_size = ToyEngine::kVocabSize, .n_positions = 1000});
  const auto request = std::make_shared<ChatRequest>(
      R"({"messages": [{"role": "user", "content": "A"}], "max_tokens": 5, "temperature": 0, "ignore_eos": true})",
      model, chat);
  const auto reply = std::make_shared<CompletionReply>("id", request, model, client, metrics(), chat_form());
  CHECK(served.service.submit(*request, reply) == Admission::kAccepted);
  served.service.drain();
  served.run();
  const nlohmann::json answer = nlohmann::json::parse(client->answer);
  RowOptions options;
  options.stopping = {.max_new_tokens = 5, .ignore_eos = true};
  std::vector<int> text = ToyEngine::alone(tokenizer().encode("A"), options).tokens;
  text.erase(text.begin(), text.end() - 5);
  CHECK(answer["choices"][0]["message"]["content"] == tokenizer().decode(text));
  CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
}

TEST_CASE("a service that drains with nothing to do ends, even while it waits") {
  Served served(1, 10);
  auto model = std::async(std::launch::async, [&] { return served.service.pass(); });
  served.service.drain();
  CHECK_FALSE(model.get());
  CHECK_FALSE(served.service.pass());
}

TEST_CASE("a client that leaves while the service drains does not keep it from ending") {
  Served served(1, 10);
  const auto sent = served.send(1, 500), waits = served.send(2, 500);
  CHECK(served.service.pass());
  served.service.drain();
  served.service.cancel(waits.reply);
  served.service.cancel(sent.reply);
  int passes = 0;
  while (served.service.pass()) REQUIRE(++passes < 5);
}

TEST_CASE("each client gets the texts that it requested") {
  Served served(2, 10);
  std::vector<Served::Sent> sent;
  for (int i = 1; i <= 5; ++i) sent.push_back(served.send(i, 3 + i));
  const Served::Sent two = served.send(R"({"prompt": [[7], [8]], "n": 2, "max_tokens": 4, "temperature": 0,
                                           "ignore_eos": true})");
  served.service.drain();
  served.run();
  for (int i = 1; i <= 5; ++i) CHECK(text(sent[i - 1]) == alone(i, 3 + i));
  for (int i = 0; i < 4; ++i) CHECK(text(two, i) == alone(i < 2 ? 7 : 8, 4));
}

TEST_CASE("presence and frequency penalties skip the prompt, and count what was sampled") {
  Served served(1, 10);
  std::vector<int> prompt{1, 1};
  while (ToyEngine::next(prompt) != prompt[1]) prompt[prompt[1] == 28 ? 0 : 1]++;
  const auto body = [&](const char* penalty) {
    return fmt::format(R"({{"prompt": [{}, {}], "max_tokens": 9, "temperature": 0, "ignore_eos": true{}}})",
                       prompt[0], prompt[1], penalty);
  };
  const Served::Sent plain = served.send(body(""));
  std::vector<Served::Sent> sent;
  for (const char* penalty : {R"(, "presence_penalty": 2)", R"(, "frequency_penalty": 2)"}) {
    sent.push_back(served.send(body(penalty)));
  }
  served.service.drain();
  served.run();
  std::vector<int> want = prompt;
  while (want.size() < 11) {
    const int next = ToyEngine::next(want);
    const bool sampled = std::find(want.begin() + 2, want.end(), next) != want.end();
    int other = 0;  // the first token that has not been sampled
    while (std::find(want.begin() + 2, want.end(), other) != want.end()) ++other;
    want.push_back(sampled ? other : next);
  }
  const std::string expected = tokenizer().decode(std::vector(want.begin() + 2, want.end()));
  for (const Served::Sent& one : sent) CHECK(text(one) == expected);
  CHECK(begins_with(text(plain), tokenizer().decode(std::vector{prompt[1]})));
}

TEST_CASE(
    "each text of a request is drawn with its own seed, which is one more than that of the text before") {
  const std::string rest = R"("max_tokens": 12, "temperature": 1, "ignore_eos": true)";
  std::vector<std::string> alone;
  for (int seed = 40; seed < 44; ++seed) {
    Served served(1, 10);
    const auto sent = served.send(fmt::format(R"({{"prompt": [[1]], "seed": {}, {}}})", seed, rest));
    served.service.drain();
    served.run();
    alone.push_back(text(sent));
  }
  for (int i = 1; i < 4; ++i) CHECK(alone[i] != alone[i - 1]);
  for (const char* which : {R"("prompt": [[1]], "n": 4)", R"("prompt": [[1], [1]], "n": 2)",
                            R"("prompt": [[1], [1], [1], [1]])"}) {
    CAPTURE(which);
    Served served(3, 10);
    const auto sent = served.send(fmt::format(R"({{{}, "seed": 40, {}}})", which, rest));
    served.service.drain();
    served.run();
    for (int i = 0; i < 4; ++i) CHECK(text(sent, i) == alone[i]);
  }
}

TEST_CASE("a request finds a place until batch and queue are full, and any does while there is no other") {
  const auto admission = [](int first, int second) {
    Served served(2, 3);
    const auto send = [&](int n) {
      return served.send(
          fmt::format(R"({{"prompt": [[1]], "n": {}, "max_tokens": 2, "temperature": 0}})", n));
    };
    if (first > 0) CHECK(send(first).admission == Admission::kAccepted);
    return send(second).admission;
  };
  CHECK(admission(0, 1) == Admission::kAccepted);
  CHECK(admission(0, 6) == Admission::kAccepted);
  CHECK(admission(1, 4) == Admission::kAccepted);
  CHECK(admission(1, 5) == Admission::kFull);
  CHECK(admission(4, 1) == Admission::kAccepted);
  CHECK(admission(5, 1) == Admission::kFull);
  CHECK(admission(6, 1) == Admission::kFull);
}

TEST_CASE("requests arrive from other threads while the model's thread serves") {
  Served served(3, 1000);
  auto model = std::async(std::launch::async, [&] { served.run(); });
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
  for (const auto& client : clients) client.wait();
  served.service.drain();
  model.get();
  for (auto& client : clients) client.get();
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 20; ++i) {
      if (i % 5 == 4 && sent[t][i].client->answer.empty()) continue;
      CHECK(text(sent[t][i]) == alone(1 + (t * 20 + i) % 28, 1 + i));
    }
  }
}

TEST_CASE("a client that leaves is forgotten although no other request follows") {
  Served served(1, 10);
  const auto sent = served.send(1, 500);
  CHECK(served.service.pass());
  served.service.cancel(sent.reply);
  auto model = std::async(std::launch::async, [&] { return served.service.pass(); });
  CHECK(model.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  served.service.drain();
  CHECK(model.get());
}

TEST_CASE("a client that leaves before the model's thread has checked costs no pass") {
  Served served(2, 10);
  const auto sent = served.send(1, 20, R"(, "echo": true, "logprobs": 1)");
  served.service.cancel(sent.reply);
  served.service.drain();
  served.run();
  CHECK(served.toy.rows.empty());
  CHECK(served.scored.empty());
}

TEST_CASE("a service that drains accepts nothing more, and finishes what it has accepted") {
  Served served(1, 10);
  const auto sent = served.send(1, 3), waits = served.send(2, 3);
  CHECK(served.service.pass());
  served.service.drain();
  CHECK(served.send(3, 3).admission == Admission::kShuttingDown);
  for (int pass = 0; pass < 5; ++pass) CHECK(served.service.pass());
  CHECK_FALSE(served.service.pass());
  CHECK(text(sent) == alone(1, 3));
  CHECK(text(waits) == alone(2, 3));
}

TEST_CASE("a part of a prompt is scored before a pass, so the rows wait for no more") {
  Served served(4, 10);
  served.parts = 2;
  const auto grows = served.send(9, 8);
  CHECK(served.service.pass());
  const auto scored = served.send(R"({"prompt": [[1, 2], [3, 4], [5, 6]], "max_tokens": 0, "echo": true,
                                      "logprobs": 2})");
  const auto other = served.send(3, 4);
  served.service.drain();
  served.run();
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
  served.service.drain();
  served.run();
  CHECK(served.scored.size() == 2);
  CHECK(text(grows) == alone(9, 8));
  for (int i = 0; i < 24; ++i) CHECK(text(many, i) == tokenizer().decode(std::vector<int>{0, 0}));
}

TEST_CASE("a stream gets a part for each token, and one for the end") {
  Served served(1, 10);
  const auto sent = served.send(1, 5, R"(, "stream": true)");
  for (int part = 1; part <= 4; ++part) {
    CHECK(served.service.pass());
    CHECK(sent.client->parts == part);
  }
  served.service.drain();
  served.run();
  CHECK(sent.client->parts == 6);
}

TEST_CASE("an urgent request gets its tokens first, and each client its own text") {
  Served served(1, 10);
  const auto patient = served.send(1, 9, R"(, "priority": 3)");
  for (int pass = 0; pass < 3; ++pass) CHECK(served.service.pass());
  const auto urgent = served.send(2, 4), later = served.send(3, 4, R"(, "priority": 1)");
  served.service.drain();
  std::vector<char> ended;
  for (bool goes_on = true; goes_on;) {
    goes_on = served.service.pass();
    for (const auto& [sent, name] : {std::pair{&patient, 'p'}, {&urgent, 'u'}, {&later, 'l'}}) {
      if (!sent->client->answer.empty() && std::ranges::count(ended, name) == 0) ended.push_back(name);
    }
  }
  CHECK(ended == std::vector{'u', 'l', 'p'});
  CHECK(text(patient) == alone(1, 9));
  CHECK(text(urgent) == alone(2, 4));
  CHECK(text(later) == alone(3, 4));
}

TEST_CASE("a patience of 0 makes all requests equal") {
  Served served(1, 10, {}, {.patience = 0});
  const auto first = served.send(1, 9, R"(, "priority": 100)");
  CHECK(served.service.pass());
  const auto second = served.send(2, 4);
  while (first.client->answer.empty()) CHECK(served.service.pass());
  CHECK(second.client->answer.empty());
}

TEST_CASE("a chat may be urgent as well, and a priority that is none is refused with its key") {
  Served served(1, 10);
  for (const char* wrong : {"-1", "101", "1.5", "\"high\"", "[]"}) {
    CAPTURE(wrong);
    std::string message;
    try {
      served.send(1, 1, fmt::format(R"(, "priority": {})", wrong));
    } catch (const HttpError& error) {
      CHECK(error.status == 400);
      message = error.what();
    }
    CHECK(says(message, "priority"));
  }
  const Folder folder(kChatMl);
  Chat chat(folder.path(), tokenizer(), {});
  const ServedModel model("toy", tokenizer(), {.vocab_size = ToyEngine::kVocabSize, .n_positions = 1000});
  const auto request = std::make_shared<ChatRequest>(
      R"({"messages": [{"role": "user", "content": "A"}], "max_tokens": 5, "priority": 101})", model, chat);
  const auto reply = std::make_shared<CompletionReply>("id", request, model, std::make_shared<Client>(),
                                                       metrics(), chat_form());
  CHECK(says(error_message([&] { served.service.submit(*request, reply); }), "priority"));
}

TEST_CASE("with drafts each client gets the same text, while others leave") {
  Served served(3, 100, {}, {.lookup = {.num_tokens = 4, .ngram = 1}});
  std::vector<Served::Sent> sent;
  for (int i = 0; i < 40; ++i) {
    sent.push_back(served.send(1 + i % 28, 20 + i, fmt::format(R"(, "priority": {})", i % 3)));
    if (i % 5 == 4) served.service.cancel(sent.back().reply);
    CHECK(served.service.pass());
  }
  served.service.drain();
  served.run();
  int fed = 0, rows = 0;
  for (const int count : served.toy.tokens) fed += count;
  for (const int count : served.toy.rows) rows += count;
  CHECK(fed > rows);  // the clock decides how many drafts pay off, but the first drafts are free
  for (int i = 0; i < 40; ++i) {
    if (i % 5 != 4) CHECK(text(sent[static_cast<std::size_t>(i)]) == alone(1 + i % 28, 20 + i));
  }
}

TEST_CASE("a text that repeats itself takes fewer passes than it has tokens") {
  PagedKvCache cache(tales(), 1, 32);
  DraftedEngine engine(tales(), cache);
  Service service(engine, tales_tokenizer(), {}, {.max_batch_size = 1, .max_queue = 1}, {},
                  {.lookup = {.num_tokens = 8}});
  std::vector<int> once = reference("sliding.json")["ids"], prompt;
  once.resize(40);
  for (int time = 0; time < 3; ++time) prompt.insert(prompt.end(), once.begin(), once.end());
  prompt.resize(100);
  const ServedModel model("tales", tales_tokenizer(), tales().config());
  const auto client = std::make_shared<Client>();
  const auto request = std::make_shared<CompletionRequest>(
      nlohmann::json{{"prompt", prompt}, {"max_tokens", 20}, {"temperature", 0}, {"ignore_eos", true}}.dump(),
      model);
  const auto reply = std::make_shared<CompletionReply>("id", request, model, client, metrics());
  CHECK(service.submit(*request, reply) == Admission::kAccepted);
  service.drain();
  int passes = 0;
  while (service.pass()) ++passes;
  CHECK(passes < 20);
  RowOptions options;
  options.stopping = {.max_new_tokens = 20, .ignore_eos = true};
  StaticKvCache own(tales(), 1);
  std::vector<int> alone =
      generate(tales(), tales_tokenizer(), {prompt}, 1, options, 1, own, [](int, const Token&) {})[0].tokens;
  alone.erase(alone.begin(), alone.end() - 20);
  CHECK(nlohmann::json::parse(client->answer)["choices"][0]["text"] == tales_tokenizer().decode(alone));
}

TEST_CASE("the drafts of a model that is right save passes, and one that is wrong changes no text") {
  for (const bool is_right : {true, false}) {
    CAPTURE(is_right);
    auto owned = std::make_unique<ToyDrafter>();
    ToyDrafter& drafter = *owned;
    drafter.is_right = is_right;
    Served served(2, 100, {}, {.speculation = {.num_speculative_tokens = 3}}, std::move(owned));
    const auto first = served.send(1, 60), second = served.send(2, 40);
    served.service.drain();
    served.run();
    CHECK(text(first) == alone(1, 60));
    CHECK(text(second) == alone(2, 40));
    REQUIRE_FALSE(drafter.counts.empty());
    CHECK(*std::ranges::max_element(drafter.counts) <= 3);
    CHECK(*std::ranges::max_element(drafter.counts) > 0);
    // The clock decides how many drafts pay off, but the first drafts are free.
    if (is_right) CHECK(served.toy.rows.size() < 60);
    if (!is_right) CHECK(served.toy.rows.size() == 60);
  }
}

TEST_CASE("without a number the drafts have a limit of their own") {
  auto owned = std::make_unique<ToyDrafter>();
  ToyDrafter& drafter = *owned;
  Served served(1, 1, {}, {.speculation = {.num_speculative_tokens = {}}}, std::move(owned));
  const auto sent = served.send(1, 50);
  served.service.drain();
  served.run();
  CHECK(text(sent) == alone(1, 50));
  CHECK(*std::ranges::max_element(drafter.counts) > 4);
  CHECK(*std::ranges::max_element(drafter.counts) <= 16);
}

TEST_CASE("the metrics count what the model has drafted") {
  Served served(1, 1, {}, {}, std::make_unique<ToyDrafter>());
  served.send(1, 50);
  served.service.drain();
  served.run();
  const std::vector<ProgramMetric> metrics = served.service.metrics();
  REQUIRE(metrics.size() == 2);
  CHECK(metrics[0].value() > 0);
  CHECK(metrics[1].value() == metrics[0].value());  // the drafter is always right
}

TEST_CASE("a model and what a text repeats do not draft together") {
  CHECK(error_message([&] {
          Served(1, 1, {}, {.lookup = {.num_tokens = 4}}, std::make_unique<ToyDrafter>());
        }) == "--draft-model and --prompt-lookup-num-tokens both draft: leave one out");
}
