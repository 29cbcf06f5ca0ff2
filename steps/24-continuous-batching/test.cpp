#include <doctest/doctest.h>

#include <set>

#include "benchmark_continuous.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

/// Time that passes only where the model works, a second a pass, and what went through it.
struct VirtualTime {
  double now = 0.0;
  std::vector<int> tokens, rows;  ///< of each pass

  VirtualTime() {
    tales().observe([this](std::string_view name, std::span<const float> values) {
      const int count = static_cast<int>(values.size()) / tales().config().n_embd;
      if (name == "embeddings") tokens.push_back(count);
      if (name != "ln_f") return;
      rows.push_back(count);
      now += 1.0;
    });
  }
  ~VirtualTime() { tales().observe(nullptr); }

  Timer timer() {
    return {[this] { return now; }, [this](double time) { now = std::max(now, time); }};
  }
};

struct Load {
  Prompts prompts;
  std::vector<Request> requests;

  void add(double arrival, const std::vector<int>& prompt, const GenerateOptions& options) {
    prompts.push_back(prompt);
    requests.push_back({arrival, options});
  }
};

Service serve(
    const Load& load, const ServingOptions& options, VirtualTime& time,
    const OnRowToken& on_token = [](int, const Token&) {}) {
  StaticKvCache cache(tales(), options.max_batch_size);
  return serve(tales(), load.prompts, load.requests, options, cache, time.timer(), on_token);
}

std::string shown(const Token& token) {
  return token.text.value_or(std::string(tokenizer().bytes(token.id)));
}

/// A prompt of so many tokens, from a text that the model wrote.
std::vector<int> prompt(int length, int first = 0) {
  const auto& run = reference("sliding.json");
  std::vector<int> tokens = run["prompt_ids"].get<std::vector<int>>();
  const std::vector<int> ids = run["ids"];
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  REQUIRE(std::ssize(tokens) >= first + length);
  return {tokens.begin() + first, tokens.begin() + first + length};
}

/// Texts of many lengths, greedy and drawn, with every kind of option.
Load mixed_load() {
  Load load;
  std::mt19937 generator(3);
  for (int i = 0; i < 10; ++i) {
    GenerateOptions options{.max_new_tokens = 1 + static_cast<int>(generator() % 25),
                            .ignore_eos = i % 4 == 0};
    options.seed = generator() % 100;
    if (i % 2 == 1) {
      options.sampling = {.do_sample = true, .frequency_penalty = 0.4f, .temperature = 1.1f};
      if (i % 3 == 0) options.sampling.top_k = 30;
      if (i % 3 == 1) options.sampling.top_p = 0.9f;
    }
    if (i % 5 == 0) options.sampling.repetition_penalty = 1.3f;
    if (i % 3 == 2) options.stop = {{"he", ".\n"}, &tokenizer()};
    if (i % 6 == 5) options.min_new_tokens = options.max_new_tokens;
    const int length =
        i % 4 == 3 ? 60 + static_cast<int>(generator() % 90) : 1 + static_cast<int>(generator() % 20);
    load.add(static_cast<double>(generator() % 12), prompt(length, static_cast<int>(generator() % 300)),
             options);
  }
  // "ending" of the reference would stop early, in the last place where it must not.
  const auto& run = reference("batch.json")["cases"].back();
  const int length = static_cast<int>(run["ids"].size());
  load.add(0.0, run["prompt_ids"], {.max_new_tokens = length + 5, .min_new_tokens = length});
  load.add(1.0, run["prompt_ids"], {.max_new_tokens = length + 5});
  return load;
}

struct Alone {
  Generation generation;
  std::string text;
};

/// What the step before makes of each request alone, the prompt in one pass.
std::vector<Alone> alone(const Load& load) {
  std::vector<Alone> results;
  for (std::size_t i = 0; i < load.prompts.size(); ++i) {
    StaticKvCache cache(tales(), 1);
    Alone& result = results.emplace_back();
    result.generation = generate(tales(), {&load.prompts[i], 1}, load.requests[i].options, &cache,
                                 [&](int, const Token& token) { result.text += shown(token); })[0];
  }
  return results;
}

void check_same(const Load& load, const std::vector<Alone>& want, const ServingOptions& options) {
  VirtualTime time;
  std::vector<std::string> texts(load.prompts.size());
  const Service got =
      serve(load, options, time, [&](int row, const Token& token) { texts[row] += shown(token); });
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(got.served[i].generation.tokens == want[i].generation.tokens);
    CHECK(got.served[i].generation.finish_reason == want[i].generation.finish_reason);
    CHECK(texts[i] == want[i].text);
    CHECK(got.served[i].times.size() == got.served[i].generation.tokens.size() - load.prompts[i].size());
  }
}

using Times = std::vector<double>;

}  // namespace

TEST_CASE("every text is what it is alone, in whatever company and chunks it grows") {
  Load load = mixed_load();
  const std::vector<Alone> want = alone(load);
  for (const Batching batching : {Batching::kContinuous, Batching::kStatic}) {
    for (const int size : {1, 2, 5, 12}) check_same(load, want, {size, {}, batching});
  }
  for (const int chunk : {1, 2, 7, 16, 64, 1000}) check_same(load, want, {5, chunk});
}

TEST_CASE("the order of the arrivals changes no text") {
  Load load = mixed_load();
  const std::vector<Alone> want = alone(load);
  std::mt19937 generator(9);
  for (int round = 0; round < 4; ++round) {
    for (Request& request : load.requests) request.arrival = round == 0 ? 0.0 : generator() % 40 / 2.0;
    check_same(load, want, {3, 5 + round});
  }
}

TEST_CASE("texts that outgrow the context are what they are alone, by both rules") {
  for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
    Load load;
    GenerateOptions options{.max_new_tokens = 20, .ignore_eos = true, .on_overflow = rule, .refill = 100};
    load.add(0.0, prompt(505), options);
    load.add(1.0, prompt(8, 40), options);
    load.add(2.0, prompt(508), options);
    std::vector<int> longer = prompt(520);
    load.add(0.0, longer, options);
    const std::vector<Alone> want = alone(load);
    check_same(load, want, {3, {}});
    check_same(load, want, {3, 48});
  }
}

TEST_CASE("a request joins when a place is free and leaves when it is done") {
  Load load;
  const auto add = [&](double arrival, int count) {
    load.add(arrival, prompt(3), {.max_new_tokens = count, .ignore_eos = true});
  };
  add(0.0, 3);
  add(0.0, 1);
  add(10.0, 1);
  add(0.5, 2);  // before the third, whatever its line
  {
    VirtualTime time;
    const Service got = serve(load, {.max_batch_size = 2}, time);
    CHECK(got.served[0].times == Times{1, 2, 3});
    CHECK(got.served[1].times == Times{1});
    CHECK(got.served[3].joined == 1.0);
    CHECK(got.served[3].times == Times{2, 3});
    CHECK(got.served[2].joined == 10.0);
    CHECK(got.served[2].times == Times{11});
    CHECK(time.rows == std::vector<int>{2, 2, 2, 1});
    CHECK(time.tokens == std::vector<int>{6, 4, 2, 3});
    CHECK(got.passes == 4);
    CHECK(got.rows == 7);
    CHECK(got.served[3].time_to_first_token() == 1.5);
    CHECK(got.served[0].time_per_output_token() == 1.0);
    CHECK(duration(got.served) == 11.0);
  }
  {
    VirtualTime time;
    const Service got = serve(load, {.max_batch_size = 2, .batching = Batching::kStatic}, time);
    CHECK(got.served[0].times == Times{1, 2, 3});
    CHECK(got.served[3].joined == 3.0);
    CHECK(got.served[3].times == Times{4, 5});
    CHECK(got.served[2].times == Times{11});
    CHECK(time.rows == std::vector<int>{2, 1, 1, 1, 1, 1});
  }
}

TEST_CASE("a long prompt in chunks lets the others go on, and the next prompt waits for its turn") {
  Load load;
  const auto add = [&](int length, int count) {
    load.add(0.0, prompt(length), {.max_new_tokens = count, .ignore_eos = true});
  };
  add(2, 5);
  add(10, 2);
  add(1, 1);
  VirtualTime time;
  const Service got = serve(load, {.max_batch_size = 3, .prefill_chunk = 4}, time);
  // 2 + 2 tokens of prompts, 1 + 4, 1 + 4, then one of each, and the first row alone.
  CHECK(time.tokens == std::vector<int>{4, 5, 5, 3, 1});
  CHECK(got.served[0].times == Times{1, 2, 3, 4, 5});
  CHECK(got.served[1].times == Times{3, 4});
  CHECK(got.served[2].joined == 3.0);
  CHECK(got.served[2].times == Times{4});
}

TEST_CASE("no pass has more rows or more of the prompts than it may, and no place stays empty for nothing") {
  std::mt19937 generator(5);
  for (int round = 0; round < 12; ++round) {
    Load load;
    int work = 0;
    for (int i = 0; i < 14; ++i) {
      const int length = 1 + static_cast<int>(generator() % 30),
                count = 1 + static_cast<int>(generator() % 9);
      load.add(generator() % 20, prompt(length), {.max_new_tokens = count, .ignore_eos = true});
      work += length + count - 1;
    }
    const int size = 1 + static_cast<int>(generator() % 5), chunk = 1 + static_cast<int>(generator() % 12);
    VirtualTime time;
    const Service got = serve(load, {size, chunk}, time);
    CHECK(std::ranges::max(time.rows) <= size);
    CHECK(std::accumulate(time.tokens.begin(), time.tokens.end(), 0) == work);
    for (std::size_t i = 0; i < time.tokens.size(); ++i) CHECK(time.tokens[i] <= chunk + time.rows[i] - 1);
    for (const Served& late : got.served) {
      if (late.joined == late.arrival) continue;
      // While it waited all places were taken, or the pass had as much of the prompts as it may.
      for (double pass = std::ceil(late.arrival); pass < late.joined; pass += 1.0) {
        int rows = 0;
        for (const Served& other : got.served) rows += other.joined <= pass && other.times.back() > pass;
        CHECK((rows == size || std::ranges::any_of(got.served, [&](const Served& other) {
                 return other.joined <= pass && other.times.front() > pass;
               })));
      }
    }
  }
}

TEST_CASE("the lanes of the timeline are as many as the batch has rows, and no two bars of one overlap") {
  VirtualTime time;
  const Service got = serve(mixed_load(), {.max_batch_size = 3, .prefill_chunk = 20}, time);
  const std::vector<TimelineBar> all = bars(got.served);
  int decoding = 0;
  for (const Served& served : got.served) decoding += served.times.size() > 1;
  CHECK(std::ranges::count(all, 0u, &TimelineBar::kind) == std::ssize(got.served));
  CHECK(std::ranges::count(all, 1u, &TimelineBar::kind) == decoding);
  for (const TimelineBar& bar : all) {
    CHECK(bar.lane <= 3);
    CHECK(bar.from < bar.to);
    for (const TimelineBar& other : all) {
      CHECK((&other == &bar || other.lane != bar.lane || other.from >= bar.to || other.to <= bar.from));
    }
  }
}

TEST_CASE("real time passes by itself, and sleeping lasts as long as it should") {
  const Timer timer = real_time();
  const double start = timer.now();
  CHECK(start >= 0.0);
  timer.sleep_until(start + 0.02);
  CHECK(timer.now() >= start + 0.02);
  timer.sleep_until(0.0);
}

TEST_CASE("a request of a file is what the same options on the command line make of its prompt") {
  const char* const kLines[][2] = {
      {R"("prompt": "The wolf", "max_new_tokens": 20)", "--prompt 'The wolf' --max-new-tokens 20"},
      {R"("prompt": "", "do_sample": true, "seed": 5, "temperature": 0.8, "top_k": 20, "top_p": 0.9)",
       "--prompt '' --do-sample --seed 5 --temperature 0.8 --top-k 20 --top-p 0.9"},
      {R"("prompt": "Once upon a time", "stop": ["king", "was"], "arrival": 0.05)",
       "--prompt 'Once upon a time' --stop king --stop was"},
      {R"("prompt": "The end.", "ignore_eos": true, "min_new_tokens": 3, "presence_penalty": 0.5)",
       "--prompt 'The end.' --ignore-eos --min-new-tokens 3 --presence-penalty 0.5"},
      {R"("prompt": "A fox", "frequency_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": 2)",
       "--prompt 'A fox' --frequency-penalty 0.5 --repetition-penalty 1.2 --logprobs 2"}};
  std::string file, texts;
  for (const auto& [line, arguments] : kLines) file += fmt::format("{{{}}}\n\n", line);
  const std::string all = " --max-new-tokens 30 --json --threads 1";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --max-batch-size 2 --prefill-chunk 3" + all, file);
  REQUIRE(run.status == 0);
  const auto got = nlohmann::json::parse(run.out);
  REQUIRE(got["sequences"].size() == std::size(kLines));
  for (std::size_t i = 0; i < std::size(kLines); ++i) {
    std::string arguments = kLines[i][1];
    if (i > 0) arguments += " --max-new-tokens 30";
    const ProgramRun one = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --json --threads 1");
    CAPTURE(arguments);
    REQUIRE(one.status == 0);
    CHECK(got["sequences"][i] == nlohmann::json::parse(one.out)["sequences"][0]);
    texts += fmt::format("{}[{}]\n{}", i == 0 ? "" : "\n\n", i + 1,
                         got["sequences"][i]["text"].get<std::string>());
  }
  const auto& stats = got["stats"];
  CHECK(stats["ttft_ms_p50"] <= stats["ttft_ms_p95"]);
  CHECK(stats["tpot_ms_p95"] <= stats["tpot_ms_p99"]);
  CHECK(stats["prefill_ms"] == stats["ttft_ms_p50"]);
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "some.jsonl") << file;
  const ProgramRun printed = run_program(
      STAIRCASE_STEP_PROGRAM, "--max-new-tokens 30 --requests " + (folder.path() / "some.jsonl").string());
  CHECK(printed.out == texts + "\n");
  CHECK(printed.err.find("5 requests in") != std::string::npos);
}

TEST_CASE("tokens/s are all new tokens by the time from the first arrival to the last token, in every line") {
  // The first token of a text counts as well.
  const ProgramRun apart = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 1",
                                       "{\"prompt\": \"The\"}\n{\"prompt\": \"A\", \"arrival\": 0.4}\n");
  REQUIRE(apart.status == 0);
  const double rate = nlohmann::json::parse(apart.out)["stats"]["tokens_per_second"];
  CHECK(rate > 0.5);
  CHECK(rate <= 2 / 0.4);

  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 9",
                                     "{\"prompt\": \"The\"}\n{\"prompt\": \"A\"}\n");
  REQUIRE(run.status == 0);
  const double told = nlohmann::json::parse(run.out)["stats"]["tokens_per_second"];
  const std::string want = fmt::format(" {:.1f} tokens/s", told);
  CAPTURE(run.err);
  const std::size_t first = run.err.find(want);
  REQUIRE(first != std::string::npos);
  CHECK(run.err.find(want, first + 1) != std::string::npos);
}

TEST_CASE("a broken line is named and left out, and the others run") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 4",
                                     "{\"prompt\": \"The wolf\"}\r\n"
                                     "{\"prompt\": \"A\", \"temperatur\": 1}\n"
                                     "{\"prompt\": \"A\", \"temperature\": -1}\n"
                                     "{\"prompt\": \"A\", \"stop\": \"\"}\n"
                                     "\n"
                                     "nonsense\n"
                                     "{\"prompt\": \"A\", \"arrival\": -1}\n"
                                     "{\"prompt\": \"A\", \"max_new_tokens\": 0}\n"
                                     "{\"prompt\": \"The fox\"}");
  CHECK(run.status == 1);
  CHECK(nlohmann::json::parse(run.out)["sequences"].size() == 2);
  for (const char* part :
       {"--requests -, line 2: the line has the key \"temperatur\"", "line 3: --temperature is -1",
        "line 4: --stop is empty", "line 6: the line is not valid JSON", "line 7: arrival is -1",
        "line 8: --max-new-tokens is 0"}) {
    CAPTURE(part);
    CHECK(run.err.find(part) != std::string::npos);
  }
  std::string words;
  for (int i = 0; i < 600; ++i) words += " and";
  const ProgramRun longer = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --max-new-tokens 2",
                                        "{\"prompt\": \"" + words + "\"}");
  CHECK(longer.status == 0);
  CHECK(longer.err.find("the model sees only the last 512") != std::string::npos);
}

TEST_CASE("wrong usage of requests is refused") {
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prefill-chunk 8")
            .err.find("--prefill-chunk does nothing without --requests") != std::string::npos);
  const std::string request = "{\"prompt\": \"The\"}\n";
  for (const char* wrong :
       {"--requests - --prompt a", "--requests - --prompts -", "--requests",
        "--requests - --num-return-sequences 2 --do-sample", "--requests - --no-use-cache",
        "--requests - --draft-model tales-1m", "--requests - --prompt-lookup-num-tokens 4",
        "--requests - --num-beams 2", "--requests - --echo", "--requests - --drift x.svg",
        "--requests - --prefill-chunk 0", "--requests - --max-batch-size 0"}) {
    CAPTURE(wrong);
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, wrong, request);
    CHECK(run.status == 2);
    CHECK(run.err.starts_with("error: "));
    CHECK(run.out == "");
  }
  for (const char* input : {"", "\n \n", "{}\n"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests -", input);
    CHECK(run.status == 1);
    CHECK(run.err.find("there is no request in it") != std::string::npos);
  }
  for (const char* missing : {"--requests /no/such/file", "--requests ''", "--requests /"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, missing).status == 1);
  }
}

TEST_CASE("the benchmark measures each way of batching on the same requests") {
  const TemporaryFolder folder;
  std::string file;
  for (int i = 0; i < 7; ++i) {
    file += fmt::format("{{\"prompt\": \"The wolf and the fox\", \"max_new_tokens\": {}, \"arrival\": {}}}\n",
                        3 + 11 * i % 17, 0.01 * i);
  }
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--requests - --max-batch-size 3 --prefill-chunk 2 --repetitions 2 --benchmark " +
                      folder.path().string(),
                  file);
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  REQUIRE(run.status == (has_gnuplot ? 0 : 1));
  CHECK(std::filesystem::exists(folder.path() / "continuous-batching.csv"));
  if (has_gnuplot) CHECK(std::filesystem::file_size(folder.path() / "continuous-batching.svg") > 1000);
  std::ifstream stream(folder.path() / "continuous-batching.json");
  const auto rows = nlohmann::json::parse(stream);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0]["batching"] == "static");
  CHECK(rows[2]["batching"] == "chunks of 2");
  CHECK(rows[0]["speed-up"] == 1.0);
  for (const auto& row : rows) {
    CHECK(row["same texts"] == 7);
    CHECK(row["tokens/s"] > 0.0);
    CHECK(row["rows a pass"] <= 3.0);
    CHECK(row["TTFT ms p50"] <= row["TTFT ms p99"]);
    CHECK(row["TPOT ms p95"] <= row["TPOT ms p99"]);
    CHECK(row["filled MiB"] < row["cache MiB"]);
  }
}
