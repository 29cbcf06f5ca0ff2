#include <doctest/doctest.h>

#include <map>
#include <set>

#include "common/decoding/model_engine.h"
#include "generate.h"
#include "scheduler.h"
#include "tests/huge_model.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

/// What goes through the model: the rows and the tokens of each pass.
struct Passes {
  std::vector<int> rows, tokens;

  Passes() {
    tales().on_stage([this](std::string_view name, std::span<const float> values) {
      const int count = static_cast<int>(values.size()) / tales().config().n_embd;
      if (name == "embeddings") tokens.push_back(count);
      if (name == "ln_f") rows.push_back(count);
    });
  }
  ~Passes() { tales().on_stage(nullptr); }
};

/// A prompt of this many tokens, from a text that the model wrote.
std::vector<int> prompt(int length, int first = 0) {
  const auto& run = reference("sliding.json");
  std::vector<int> tokens = run["prompt_ids"].get<std::vector<int>>();
  const std::vector<int> ids = run["ids"];
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  REQUIRE(std::ssize(tokens) >= first + length);
  return {tokens.begin() + first, tokens.begin() + first + length};
}

RowOptions max_tokens(int count) {
  RowOptions options;
  options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  return options;
}

struct Asked {
  std::vector<int> prompt;
  RowOptions options;
};

/// Texts of many lengths, greedy and sampled, with every kind of option.
std::vector<Asked> mixed_load() {
  std::vector<Asked> load;
  std::mt19937 generator(3);
  for (int i = 0; i < 10; ++i) {
    RowOptions options = max_tokens(1 + static_cast<int>(generator() % 25));
    options.stopping.ignore_eos = i % 4 == 0;
    if (i % 2 == 1) {
      options.sampling = {.do_sample = true, .frequency_penalty = 0.4f, .temperature = 1.1f};
      if (i % 3 == 0) options.sampling.top_k = 30;
      if (i % 3 == 1) options.sampling.top_p = 0.9f;
    }
    options.sampling.seed = generator() % 100;
    if (i % 5 == 0) options.sampling.repetition_penalty = 1.3f;
    if (i % 3 == 2) options.stop = {{"he", ".\n"}};
    if (i % 6 == 5) options.length.min_new_tokens = options.stopping.max_new_tokens;
    if (i % 4 == 2) options.logprobs.count = i % 3;
    const int length =
        i % 4 == 3 ? 60 + static_cast<int>(generator() % 90) : 1 + static_cast<int>(generator() % 20);
    load.push_back({prompt(length, static_cast<int>(generator() % 300)), options});
  }
  // "ending" of the reference stops early; its second copy must not, because of its minimum length.
  const auto& run = reference("batch.json")["cases"].back();
  RowOptions options;
  options.stopping.max_new_tokens = static_cast<int>(run["ids"].size()) + 5;
  load.push_back({run["prompt_ids"], options});
  options.length.min_new_tokens = static_cast<int>(run["ids"].size());
  load.push_back({run["prompt_ids"], options});
  return load;
}

struct Text {
  Generation generation = {};
  std::string shown = {};
  std::vector<std::vector<std::pair<int, float>>> logprobs = {};  ///< of each token: its own, the most likely
  int times_finished = 0;

  void take(const Token& token) {
    shown += token.text.value_or(std::string(tokenizer().bytes(token.id)));
    if (!token.logprobs) return;
    auto& list = logprobs.emplace_back();
    list.emplace_back(token.id, *token.logprobs->own);
    for (const Logprob& other : token.logprobs->likeliest) list.emplace_back(other.token_id, other.logprob);
  }
};

/// The previous step's continuation of a prompt that is alone.
Text alone(const Asked& asked) {
  Text text;
  StaticKvCache cache(tales(), 1);
  text.generation = generate(tales(), tales_tokenizer(), {asked.prompt}, 1, asked.options, 1, cache,
                             [&](int, const Token& token) { text.take(token); })[0];
  return text;
}

/// An engine that has no room for the texts with these numbers.
struct FullEngine : StaticEngine {
  using StaticEngine::StaticEngine;
  std::set<int> without_room = {};
  int slot = -1;  // the last one requested

  bool make_room(const Row& row, int r) override {
    slot = r;
    return !without_room.contains(row.number);
  }
};

/// A scheduler and everything that is reported about its texts, by their numbers.
struct Served {
  StaticKvCache cache;
  FullEngine engine{tales(), cache};
  std::map<int, Text> texts = {};
  Scheduler scheduler;

  explicit Served(int slots)
      : cache(tales(), slots),
        scheduler(
            engine, tales_tokenizer(), slots,
            [this](int number, const Token& token) { texts[number].take(token); },
            [this](int number, Generation text) {
              texts[number].generation = std::move(text);
              ++texts[number].times_finished;
            }) {}

  void run() {
    while (!scheduler.idle()) scheduler.pass();
  }
};

void check_same(const Text& got, const Text& want) {
  CHECK(got.generation.tokens == want.generation.tokens);
  CHECK(got.generation.finish_reason == want.generation.finish_reason);
  CHECK(got.shown == want.shown);
  CHECK(got.times_finished == 1);
  REQUIRE(got.logprobs.size() == want.logprobs.size());
  for (std::size_t i = 0; i < want.logprobs.size(); ++i) {
    REQUIRE(got.logprobs[i].size() == want.logprobs[i].size());
    for (std::size_t k = 0; k < want.logprobs[i].size(); ++k) {
      CHECK(got.logprobs[i][k].first == want.logprobs[i][k].first);
      CHECK(got.logprobs[i][k].second == doctest::Approx(want.logprobs[i][k].second).epsilon(1e-3));
    }
  }
}

}  // namespace

TEST_CASE("a batch may have more logits than an int can number") {
  Model model = huge_model();
  StaticKvCache cache(model, kHugeRows);
  StaticEngine engine(model, cache);
  std::map<int, std::vector<int>> texts;
  Scheduler scheduler(
      engine, tales_tokenizer(), kHugeRows, [](int, const Token&) {},
      [&](int number, Generation text) { texts[number] = std::move(text.tokens); });
  for (int row = 0; row < kHugeRows; ++row) scheduler.submit(row, huge_prompts()[row], max_tokens(1));
  scheduler.pass();
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row] == std::vector<int>{0, row + 1});
}

TEST_CASE("a text joins when a place is free, first come, first served, and leaves when it is done") {
  Served served(2);
  Scheduler& scheduler = served.scheduler;
  CHECK(scheduler.idle());
  scheduler.submit(7, prompt(3), max_tokens(3));
  scheduler.submit(4, prompt(4), max_tokens(1));
  scheduler.submit(9, prompt(5), max_tokens(1));
  scheduler.submit(2, prompt(6), max_tokens(2));
  Passes passes;
  std::vector<std::set<int>> finished;
  while (!scheduler.idle()) {
    scheduler.pass();
    std::set<int>& now = finished.emplace_back();
    for (const auto& [number, text] : served.texts) {
      if (text.times_finished > 0) now.insert(number);
    }
  }
  // 7 and 4 with their prompts; 7 and 9; 7 and 2, with its prompt; 2.
  CHECK(passes.rows == std::vector<int>{2, 2, 2, 1});
  CHECK(passes.tokens == std::vector<int>{7, 6, 7, 1});
  CHECK(finished == std::vector<std::set<int>>{{4}, {4, 9}, {4, 7, 9}, {2, 4, 7, 9}});
  scheduler.pass();
  CHECK(passes.rows.size() == 4);
}

TEST_CASE("a text for which the cache has no room waits, and so do all later ones") {
  Served served(3);
  Passes passes;
  served.engine.without_room = {4};
  for (const int number : {7, 4, 9}) served.scheduler.submit(number, prompt(number), max_tokens(5));
  served.scheduler.pass();
  served.scheduler.pass();
  CHECK(served.engine.slot == 1);
  served.engine.without_room = {};
  served.run();
  CHECK(passes.rows == std::vector<int>{1, 1, 3, 3, 3, 2, 2});
  for (const int number : {7, 4, 9}) check_same(served.texts[number], alone({prompt(number), max_tokens(5)}));
}

TEST_CASE("a text that requests no token is finished immediately, without a pass") {
  Served served(1);
  Passes passes;
  served.scheduler.submit(5, prompt(3), max_tokens(0));
  CHECK(served.scheduler.idle());
  CHECK(served.texts[5].times_finished == 1);
  CHECK(served.texts[5].generation.tokens == prompt(3));
  CHECK(served.texts[5].generation.finish_reason == FinishReason::kLength);
  served.scheduler.pass();
  CHECK(passes.rows.empty());
}

TEST_CASE("every text is the same as alone, in whatever company it grows") {
  const std::vector<Asked> load = mixed_load();
  std::vector<Text> want;
  for (const Asked& asked : load) want.push_back(alone(asked));
  for (const int slots : {1, 2, 5, 12}) {
    Served served(slots);
    for (int i = 0; i < std::ssize(load); ++i) served.scheduler.submit(i, load[i].prompt, load[i].options);
    served.run();
    for (int i = 0; i < std::ssize(load); ++i) {
      CAPTURE(slots);
      CAPTURE(i);
      check_same(served.texts[i], want[i]);
    }
  }
}

TEST_CASE("when a text is submitted, and in which order, changes no text") {
  const std::vector<Asked> load = mixed_load();
  std::vector<Text> want;
  for (const Asked& asked : load) want.push_back(alone(asked));
  std::mt19937 generator(9);
  for (int round = 0; round < 4; ++round) {
    std::vector<int> order(load.size());
    for (int i = 0; i < std::ssize(order); ++i) order[i] = i;
    std::ranges::shuffle(order, generator);
    Served served(3);
    for (const int i : order) {
      served.scheduler.submit(i, load[i].prompt, load[i].options);
      for (unsigned passes = generator() % 8; passes > 0; --passes) served.scheduler.pass();
    }
    served.run();
    for (int i = 0; i < std::ssize(load); ++i) {
      CAPTURE(i);
      check_same(served.texts[i], want[i]);
    }
  }
}

TEST_CASE("texts that outgrow the context are the same as alone, under both rules") {
  for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
    RowOptions options = max_tokens(20);
    options.overflow = {.on_overflow = rule, .refill = 100};
    Served served(3);
    std::vector<Text> want;
    for (const int length : {505, 8, 508, 520}) {
      const Asked asked{prompt(length, length == 8 ? 40 : 0), options};
      served.scheduler.submit(static_cast<int>(want.size()), asked.prompt, asked.options);
      want.push_back(alone(asked));
    }
    served.run();
    for (int i = 0; i < 4; ++i) check_same(served.texts[i], want[i]);
  }
}

TEST_CASE("nothing more is reported of a cancelled text, its place is free, and the others do not change") {
  for (const int cancelled : {0, 1, 2, 3}) {  // in the first slot, in the middle, in the last; waiting
    CAPTURE(cancelled);
    Served served(3);
    std::vector<Text> want;
    for (int i = 0; i < 5; ++i) {
      const Asked asked{prompt(4 + i, 20 * i), max_tokens(6 + i)};
      want.push_back(alone(asked));
      served.scheduler.submit(i, asked.prompt, asked.options);
    }
    served.scheduler.pass();
    served.scheduler.pass();
    const std::string heard = served.texts[cancelled].shown;
    CHECK(heard.empty() == (cancelled == 3));
    served.scheduler.cancel(cancelled);
    served.scheduler.cancel(99);
    Passes passes;
    served.scheduler.pass();
    CHECK(passes.rows == std::vector<int>{3});
    served.run();
    for (int i = 0; i < 5; ++i) {
      CAPTURE(i);
      if (i != cancelled) check_same(served.texts[i], want[i]);
    }
    CHECK(served.texts[cancelled].shown == heard);
    CHECK(served.texts[cancelled].times_finished == 0);
  }
}

TEST_CASE(
    "with texts that come and go, texts are right, rows are few, and no place is empty while one waits") {
  std::mt19937 generator(5);
  for (int round = 0; round < 6; ++round) {
    const int slots = 1 + static_cast<int>(generator() % 4);
    Served served(slots);
    Passes passes;
    std::map<int, Asked> asked;
    std::set<int> cancelled;
    const auto unfinished = [&] {
      int count = 0;
      for (const auto& [number, what] : asked) {
        count += !cancelled.contains(number) && served.texts[number].times_finished == 0;
      }
      return count;
    };
    for (int moment = 0; moment < 40; ++moment) {
      if (generator() % 2 == 0) {
        const int number = static_cast<int>(asked.size());
        asked[number] = {prompt(1 + static_cast<int>(generator() % 9), moment),
                         max_tokens(static_cast<int>(generator() % 7))};
        served.scheduler.submit(number, asked[number].prompt, asked[number].options);
      }
      if (generator() % 8 == 0 && !asked.empty()) {
        const int number = static_cast<int>(generator() % asked.size());
        if (served.texts[number].times_finished == 0) cancelled.insert(number);
        served.scheduler.cancel(number);
      }
      const int waiting = unfinished();
      CHECK(served.scheduler.idle() == (waiting == 0));
      const std::size_t before = passes.rows.size();
      served.scheduler.pass();
      REQUIRE(passes.rows.size() == before + (waiting > 0));
      if (waiting > 0) CHECK(passes.rows.back() == std::min(slots, waiting));
    }
    served.run();
    tales().on_stage(nullptr);
    for (const auto& one : asked) {
      const auto& [number, what] = one;
      CAPTURE(one.first);
      if (!cancelled.contains(number)) check_same(served.texts[number], alone(what));
      if (cancelled.contains(number)) CHECK(served.texts[number].times_finished == 0);
    }
  }
}

TEST_CASE("the texts of a file are in its order, and no batch size changes them") {
  const std::string file =
      "{\"prompt\": \"The wolf\", \"max_new_tokens\": 20}\n"
      "{\"prompt\": \"\", \"do_sample\": true, \"seed\": 5, \"temperature\": 0.8, \"top_k\": 20}\n"
      "{\"prompt\": \"The end.\", \"max_new_tokens\": 0}\n"
      "{\"prompt\": \"Once upon a time\", \"stop\": [\"king\", \"was\"]}\n"
      "{\"prompt\": \"A fox\", \"repetition_penalty\": 1.2, \"min_new_tokens\": 9}\n";
  const auto sequences = [&](int size) {
    const std::string options =
        fmt::format("--requests - --json --threads 1 --max-new-tokens 30 --max-batch-size {}", size);
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, options, file);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  const auto alone = sequences(1);
  REQUIRE(alone.size() == 5);
  CHECK(alone[0]["token_ids"].size() == 20);
  CHECK(alone[2]["token_ids"].empty());
  CHECK(alone[3]["finish_reason"] == "stop");
  for (const int size : {2, 3, 32}) CHECK(sequences(size) == alone);
}

TEST_CASE("the batch has as many rows as allowed, and no more than there are requests") {
  const std::string three = "{\"prompt\": \"A\"}\n{\"prompt\": \"B\"}\n{\"prompt\": \"C\"}\n";
  std::vector<std::size_t> bytes;
  for (const char* size : {"1", "2", "3", "2000000000"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    fmt::format("--requests - --json --max-new-tokens 2 --max-batch-size {}", size), three);
    REQUIRE(run.status == 0);
    bytes.push_back(run.json()["stats"]["cache_bytes"]);
  }
  CHECK(bytes == std::vector<std::size_t>{bytes[0], 2 * bytes[0], 3 * bytes[0], 3 * bytes[0]});
}

TEST_CASE("requests have the cache, and one text each") {
  for (const char* wrong : {"--no-use-cache", "--do-sample --num-return-sequences 2"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--requests - {}", wrong), "{\"prompt\": \"A\"}\n");
    CHECK(run.status == 2);
    CHECK(run.err == "error: --requests cannot be combined with --num-return-sequences or --no-use-cache\n");
  }
}
