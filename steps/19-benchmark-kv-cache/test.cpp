#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "benchmark_kv_cache.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

nlohmann::json measured(const std::string& arguments) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     arguments + " --repetitions 1 --benchmark " + folder.path().string());
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  REQUIRE(run.status == (has_gnuplot ? 0 : 1));
  CHECK(std::filesystem::exists(folder.path() / "kv-cache.csv"));
  if (has_gnuplot) CHECK(std::filesystem::file_size(folder.path() / "kv-cache.svg") > 1000);
  CHECK(contains(run.err, "same tokens"));
  std::ifstream file(folder.path() / "kv-cache.json");
  return nlohmann::json::parse(file);
}

/// MiB of keys and values for that many positions of tales-6m, in numbers of that many bytes.
double mebibytes(int positions, int bytes) {
  const ModelConfig& config = tales().config();
  return 2.0 * config.n_layer * config.n_embd * positions * bytes / (1 << 20);
}

}  // namespace

TEST_CASE("all three ways decode as Hugging Face's model does") {
  for (const char* cache : {"none", "dynamic", "static"}) {
    CAPTURE(cache);
    CHECK(difference_from_greedy([&](const std::vector<int>& prompt, int count) {
            CacheWay way{cache, count};
            tokens_per_second(tales(), way, prompt, count);
            std::vector<int> tokens = tokens_after(prompt.size(), way.tokens);
            // The benchmark continues after the end of the text.
            const auto end = std::ranges::find(tokens, tales().config().eos_token_id);
            if (end != tokens.end()) tokens.erase(end + 1, tokens.end());
            return tokens;
          }) == "");
  }
}

TEST_CASE("every way warms up over the shortest length, and a speed-up compares runs of the same turn" *
          doctest::skip(kSanitized)) {
  // Each run is one pass. These are its milliseconds without a cache and with the static one.
  constexpr int kNone[] = {200, 400, 100}, kStatic[] = {400, 200, 200};  // the medians are equal
  const TemporaryFolder folder;
  int pass = 0;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float>) {
    if (name != "embeddings") return;
    const int turn = pass / 3 - 1, way = pass % 3;
    ++pass;
    if (turn < 0 || turn >= 3 || way == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(way == 0 ? kNone[turn] : kStatic[turn]));
  });
  Table table(std::vector<std::string>{"dtype", "new tokens", "cache", "tokens/s", "low", "high", "speed-up",
                                       "cache MiB", "allocated MiB", "copied MiB", "same tokens"});
  Plot plot;
  measure_caches(tales(), {100}, {.repetitions = 3, .lengths = {1}}, table, plot);
  CHECK(pass == 3 + 3 * 3);
  table.write_json(folder.path() / "t.json");
  std::ifstream file(folder.path() / "t.json");
  CHECK(nlohmann::json::parse(file)[2]["speed-up"] == doctest::Approx(0.5).epsilon(0.2));
  REQUIRE(plot.series.size() == 3);
  CHECK(plot.series[2].name == "float32, static");
  CHECK(plot.series[2].points.size() == 1);
}

TEST_CASE("the turn that warms up has the shortest length") {
  std::vector<int>
      passes;  // of each run; one token goes through the first pass, and through all with a cache
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name != "embeddings") return;
    if (static_cast<int>(values.size()) == tales().config().n_embd) passes.push_back(0);
    ++passes.back();
  });
  Table table(std::vector<std::string>(11));
  Plot plot;
  measure_caches(tales(), {100}, {.repetitions = 1, .lengths = {6, 3}}, table, plot);
  std::erase(passes, 1);  // with a cache
  CHECK(passes == std::vector<int>{3, 3, 6, 3});
}

TEST_CASE("the plots have the figures of the tables, and both ends of their spread") {
  const TemporaryFolder folder;
  const PlotScript script;
  const auto drawn = [&](const std::string& name, const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    arguments + " --prompt 'The wolf' --repetitions 2 --benchmark " + folder.path().string());
    CHECK(run.status == 0);
    std::ifstream file(folder.path() / (name + ".json"));
    return std::pair{nlohmann::json::parse(file), PlotScript::text(folder.path() / (name + ".svg"))};
  };
  const auto [caches, plot] = drawn("kv-cache", "--benchmark-lengths 5,9");
  CHECK(contains(plot, axes("new tokens", "tokens/s")));
  REQUIRE(caches.size() == 3 * 2 * 3);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    CAPTURE(i);
    const std::size_t dtype = i / 6, length = i / 3 % 2, cache = i % 3;
    const auto points = points_of(plot, static_cast<int>(3 * dtype + cache));
    REQUIRE(points.size() == 2);
    const auto& row = caches[i];
    int column = 0;
    for (const char* name : {"new tokens", "tokens/s", "low", "high"})
      CHECK(points[length][column++] == doctest::Approx(row[name].get<double>()));
    CHECK(row["low"] < row["tokens/s"]);
    CHECK(row["tokens/s"] < row["high"]);
  }
  const auto [drafts, speculation] =
      drawn("speculative", "--draft-model tales-1m --max-new-tokens 4 --most-speculative-tokens 1");
  CHECK(contains(speculation, axes("drafted tokens a round", "speed-up")));
  REQUIRE(drafts.size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(drafts[i]["low"] < drafts[i]["tokens/s"]);
    CHECK(drafts[i]["tokens/s"] < drafts[i]["high"]);
    const auto points = points_of(speculation, i);
    REQUIRE(points.size() == 1);
    CHECK(points[0][0] == 1);
    CHECK(points[0][1] == doctest::Approx(drafts[i]["speed-up"].get<double>()));
    CHECK(points[0][2] < points[0][1]);
    CHECK(points[0][1] < points[0][3]);
  }
}

TEST_CASE("beyond the context the growing cache ends and the static one slides" * doctest::skip(kSanitized)) {
  std::string prompt;
  for (int i = 0; i < 508; ++i) prompt += " and";
  const auto rows = measured("--prompt '" + prompt + "' --benchmark-lengths 5,6");  // 508 + 5 = 512 + 1
  REQUIRE(rows.size() == 3 * 5);
  CHECK(rows[1]["cache"] == "dynamic");
  CHECK(rows[4]["cache"] == "static, slides");
  CHECK(rows[4]["copied MiB"] > 0.0);
}

TEST_CASE("the benchmark measures each cache over each length in each dtype, and all give the same text") {
  const auto rows = measured("--prompt 'Once upon a time' --benchmark-lengths 20,45");
  REQUIRE(rows.size() == 18);
  const int prompt = 4;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    CAPTURE(i);
    const int length = i % 6 < 3 ? 20 : 45, bytes = i < 6 ? 4 : 2;
    CHECK(row["dtype"] == std::vector<std::string>{"float32", "float16", "bfloat16"}[i / 6]);
    CHECK(row["new tokens"] == length);
    CHECK(row["cache"] == std::vector<std::string>{"none", "dynamic", "static"}[i % 3]);
    if (bytes == 4) CHECK(row["same tokens"] == length);  // otherwise two tokens may nearly tie
    CHECK(row["same tokens"] > 0);
    CHECK(row["tokens/s"] > 0.0);
    if (i % 3 == 0) {
      CHECK(row["speed-up"] == 1.0);
      CHECK(row["cache MiB"] == 0.0);
      CHECK(row["allocated MiB"] == 0.0);
    } else if (i % 3 == 1) {
      const double at_the_end = mebibytes(prompt + length - 1, bytes);
      double allocated = 0.0;
      for (int held = prompt; held < prompt + length; ++held) allocated += mebibytes(held, bytes);
      CHECK(row["cache MiB"] == doctest::Approx(at_the_end));
      CHECK(row["allocated MiB"] == doctest::Approx(allocated));
      CHECK(row["copied MiB"] == doctest::Approx(allocated - at_the_end));
    } else {
      CHECK(row["cache MiB"] == doctest::Approx(mebibytes(512, bytes)));
      CHECK(row["allocated MiB"] == row["cache MiB"]);
      CHECK(row["copied MiB"] == 0.0);
    }
  }
}

TEST_CASE("the benchmark of the cache refuses options that it would ignore") {
  const TemporaryFolder folder;
  const std::string benchmark =
      " --benchmark-lengths 2 --repetitions 1 --benchmark " + folder.path().string();
  for (const char* wrong : {"--prompt The --prompt Once", "--do-sample", "--no-use-cache",
                            "--do-sample --num-return-sequences 2"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, wrong + benchmark);
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(contains(run.err, "the --benchmark of the cache"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("wrong usage of the benchmark is refused") {
  const std::pair<std::string, std::string> wrong[] = {
      {"--benchmark-lengths 0", "--benchmark-lengths is 0, but it must be 1 or more"},
      {"--benchmark-lengths 5,0", "--benchmark-lengths is 0, but it must be 1 or more"},
      {"--benchmark-lengths 5,x", "--benchmark-lengths is x, but it must be a whole number of 1 or more"},
      {"--repetitions 0", "--repetitions is 0, but it must be 1 or more"},
      {"--draft-model tales-1m --max-new-tokens 0",
       "the --benchmark of a --draft-model needs --max-new-tokens"},
  };
  const TemporaryFolder folder;
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, arguments + " --benchmark " + folder.path().string());
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(contains(run.err, message));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("with a draft model, everything is as in the benchmark of speculation") {
  const TemporaryFolder folder;
  const std::string draft = "--draft-model tales-1m --max-new-tokens 4 ";
  run_program(STAIRCASE_STEP_PROGRAM, draft +
                                          "--prompt A --prompt B --repetitions 1 --most-speculative-tokens 1 "
                                          "--benchmark " +
                                          folder.path().string());
  std::ifstream file(folder.path() / "speculative.json");
  const auto rows = nlohmann::json::parse(file);
  REQUIRE(rows.size() == 3);
  Model smaller = tales().load_beside(find_model("tales-1m"));
  Speculation counts;
  for (const char* prompt : {"A", "B"})
    speculate(tales(), smaller, tales_tokenizer().encode(prompt), {.stopping = {.max_new_tokens = 4}}, 1,
              counts, [](const Token&) {});
  // Of one repetition, and of its warm-up.
  CHECK(rows[0]["acceptance"] == doctest::Approx(1.0 * counts.accepted / counts.drafted));
  CHECK(rows[0]["tokens per pass"] == doctest::Approx(1.0 + 1.0 * counts.accepted / counts.rounds));
  for (const auto& row : rows)
    CHECK(row["speed-up"].get<double>() ==
          doctest::Approx(row["tokens/s"].get<double>() / row["baseline tokens/s"].get<double>())
              .epsilon(0.01));
  CHECK(!std::filesystem::exists(folder.path() / "kv-cache.json"));
  for (const std::string wrong : {"--prompt A --prompt B", "--no-use-cache"}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, draft + wrong);
    CHECK(refused.status == 2);
    CHECK(contains(refused.err, "--draft-model needs the cache, one prompt and one continuation"));
  }
  const ProgramRun two = run_program(STAIRCASE_STEP_PROGRAM, draft + "--draft-model tales-6m");
  CHECK(two.status == 2);
  CHECK(contains(two.err, "but without --benchmark only one can propose"));
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, draft + "--json");
  REQUIRE(plain.status == 0);
  CHECK(plain.json()["stats"].contains("acceptance_rate"));
}
