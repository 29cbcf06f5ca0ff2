#include <doctest/doctest.h>

#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "benchmark.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

const std::string kShort = "--draft-model tales-1m --ignore-eos --max-new-tokens 8 --repetitions 1 ";

nlohmann::json measured(const std::filesystem::path& results) {
  return nlohmann::json::parse(text_of(results / "speculative.json"));
}

}  // namespace

TEST_CASE("the target alone speculates nothing, and all runs of a draft are equal") {
  const Prompts prompts{{321, 1682}, {1294}};
  const TextOptions options{.stopping = {.max_new_tokens = 12, .ignore_eos = true}};
  Way way{nullptr, 3};
  CHECK(tokens_per_second(tales(), way, prompts, options) > 0.0);
  CHECK(way.counts.rounds == 0);
  NamedModel draft{"tales-1m", tales().load_beside(find_model("tales-1m"))};
  way.draft = &draft;
  for (int run = 0; run < 3; ++run) tokens_per_second(tales(), way, prompts, options);
  Speculation alone;
  for (const auto& prompt : prompts)
    speculate(tales(), draft.model, prompt, options, 3, alone, [](const Token&) {});
  CHECK(way.counts.rounds == 3 * alone.rounds);
  CHECK(way.counts.drafted == 3 * alone.drafted);
  CHECK(way.counts.accepted == 3 * alone.accepted);
  CHECK(alone.accepted + alone.rounds == 24);
}

TEST_CASE("the benchmark measures every number of drafted tokens in every dtype, and writes it three times") {
  const TemporaryFolder folder;
  const std::filesystem::path results = folder.path() / "new" / "results";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  kShort + "--prompt 'The wolf' --prompt Once --most-speculative-tokens 3 --benchmark " +
                      results.string());
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  REQUIRE(run.status == (has_gnuplot ? 0 : 1));
  if (has_gnuplot) CHECK(contains(text_of(results / "speculative.svg"), ">tales-1m, bfloat16<"));

  const auto json = measured(results);
  REQUIRE(json.size() == 9);
  std::set<std::pair<std::string, int>> cases;
  std::map<std::string, double> baselines;
  for (const auto& row : json) {
    CHECK(row["draft"] == "tales-1m");
    cases.emplace(row["dtype"].get<std::string>(), row["drafted"].get<int>());
    CHECK(row["acceptance"] >= 0.0);
    CHECK(row["acceptance"] <= 1.0);
    CHECK(row["tokens per pass"] >= 1.0);
    CHECK(row["tokens per pass"] <= row["drafted"].get<double>() + 1.0);
    CHECK(row["low"] <= row["tokens/s"]);
    CHECK(row["tokens/s"] <= row["high"]);
    // Of one repetition.
    CHECK(row["speed-up"].get<double>() ==
          doctest::Approx(row["tokens/s"].get<double>() / row["baseline tokens/s"].get<double>())
              .epsilon(0.01));
    CHECK(row["baseline tokens/s"] ==
          baselines.emplace(row["dtype"], row["baseline tokens/s"]).first->second);
  }
  CHECK(cases.size() == 9);

  std::istringstream csv(text_of(results / "speculative.csv"));
  int lines = 0;
  for (std::string line; std::getline(csv, line);) ++lines;
  CHECK(lines == 10);
  CHECK(contains(run.err, "baseline tokens/s"));
}

TEST_CASE("the plot has the speed-up for each number of drafted tokens, and both ends of its spread") {
  const TemporaryFolder folder;
  const PlotScript script;
  const ProgramRun run = run_program(
      STAIRCASE_STEP_PROGRAM,
      "--draft-model tales-1m --ignore-eos --max-new-tokens 8 --repetitions 2 --prompt 'The wolf' "
      "--most-speculative-tokens 2 --benchmark " +
          folder.path().string());
  CHECK(run.status == 0);
  const std::string plot = PlotScript::text(folder.path() / "speculative.svg");
  CHECK(contains(plot, axes("drafted tokens a round", "speed-up")));
  const auto rows = measured(folder.path());
  REQUIRE(rows.size() == 3 * 2);
  for (int i = 0; i < 6; ++i) {
    CAPTURE(i);
    const auto& row = rows[i];
    CHECK(row["low"] < row["tokens/s"]);
    CHECK(row["tokens/s"] < row["high"]);
    const auto points = points_of(plot, i / 2);
    REQUIRE(points.size() == 2);
    const auto [x, y, low, high] = points[i % 2];
    CHECK(x == row["drafted"]);
    CHECK(y == doctest::Approx(row["speed-up"].get<double>()));
    CHECK(low < y);
    CHECK(y < high);
  }
}

TEST_CASE("acceptance depends on the text and not on the clock") {
  const TemporaryFolder folder;
  std::vector<nlohmann::json> rates;
  for (const char* name : {"one", "two"}) {
    const std::filesystem::path results = folder.path() / name;
    run_program(STAIRCASE_STEP_PROGRAM,
                kShort + "--prompt 'The wolf' --most-speculative-tokens 2 --benchmark " + results.string());
    auto& all = rates.emplace_back(nlohmann::json::array());
    for (const auto& row : measured(results)) all.push_back(row["acceptance"]);
  }
  CHECK(rates[0] == rates[1]);
}

TEST_CASE("several draft models are measured against the same target, each as when alone") {
  const TemporaryFolder folder;
  const std::string prompt = "--prompt 'The wolf' --most-speculative-tokens 2 --json --benchmark ";
  const auto weight_bytes = [&](const std::string& arguments, const std::string& results) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, arguments + prompt + (folder.path() / results).string());
    return run.status == 0 ? run.json()["stats"]["weight_bytes"].get<int>() : 0;
  };
  const int one = weight_bytes(kShort, "one");
  const int both = weight_bytes(kShort + "--draft-model tales-6m ", "both");
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  if (has_gnuplot) {
    const auto larger = static_cast<int>(tales().weight_bytes());
    CHECK(one > larger);
    CHECK(both == one + larger);
    const std::string svg = text_of(folder.path() / "both" / "speculative.svg");
    for (const char* draft : {"tales-1m", "tales-6m"}) {
      for (const char* dtype : {"float32", "float16", "bfloat16"})
        CHECK(contains(svg, fmt::format(">{}, {}<", draft, dtype)));
    }
  }

  std::map<std::tuple<std::string, std::string, int>, nlohmann::json> cases;
  std::map<std::string, double> baselines;
  for (const auto& row : measured(folder.path() / "both")) {
    cases[{row["draft"], row["dtype"], row["drafted"]}] = row;
    // Measured once for both.
    CHECK(baselines.emplace(row["dtype"], row["baseline tokens/s"]).first->second ==
          row["baseline tokens/s"]);
    // The target agrees with itself, except for near-ties on a GPU.
    if (row["draft"] == "tales-6m") CHECK(row["acceptance"] > 0.8);
  }
  CHECK(cases.size() == 12);
  CHECK(baselines.size() == 3);
  for (const auto& row : measured(folder.path() / "one")) {
    const auto& same = cases[{row["draft"], row["dtype"], row["drafted"]}];
    CHECK(same["acceptance"] == row["acceptance"]);
    CHECK(same["tokens per pass"] == row["tokens per pass"]);
  }
}

TEST_CASE("each of several draft models must be different and fit, and only the benchmark takes them") {
  // The vocabulary of tales-6m with two tokens swapped.
  const TemporaryFolder other;
  const std::filesystem::path ours = find_model("tales-6m");
  TinyModel(1, 4096).write(other.path());
  std::filesystem::copy(ours / "merges.txt", other.path());
  auto vocabulary = nlohmann::json::parse(text_of(ours / "vocab.json"));
  std::swap(vocabulary["the"], vocabulary["and"]);
  std::ofstream(other.path() / "vocab.json") << vocabulary;

  const TemporaryFolder results;
  const std::string benchmark = " --benchmark " + (results.path() / "none").string();
  const std::tuple<std::string, int, std::string> wrong[] = {
      {"--draft-model tales-1m" + benchmark, 2, "--draft-model tales-1m is given twice"},
      {"--draft-model " + find_model("tales-1m").string() + "/." + benchmark, 2, "is given twice"},
      {"--draft-model nowhere" + benchmark, 1, "--draft-model nowhere"},
      {"--draft-model " + other.path().string() + benchmark, 1, "it cannot propose tokens"},
      {"--draft-model tales-6m", 2, "--draft-model is given 2 times, but without --benchmark only one"},
  };
  for (const auto& [arguments, status, message] : wrong) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, kShort + arguments);
    CAPTURE(run.err);
    CHECK(run.status == status);
    CHECK(run.out.empty());
    CHECK(contains(run.err, message));
    CHECK(run.err.find("error: ") == run.err.rfind("error: "));
    // The estimate of memory may come first.
    CHECK(std::count(run.err.begin(), run.err.end(), '\n') <= 2);
  }
  CHECK(!std::filesystem::exists(results.path() / "none"));
}

TEST_CASE("wrong usage of the benchmark is refused before it measures") {
  const TemporaryFolder results;
  const std::string folder = (results.path() / "none").string(), draft = "--draft-model tales-1m ";
  const std::pair<std::string, std::string> wrong[] = {
      {"", "--benchmark needs a --draft-model, and --max-new-tokens of 1 or more"},
      {draft + "--max-new-tokens 0", "--benchmark needs a --draft-model, and --max-new-tokens of 1 or more"},
      {draft + "--most-speculative-tokens 17",
       "--most-speculative-tokens is 17, but it must be between 1 and 16"},
      {draft + "--most-speculative-tokens 0",
       "--most-speculative-tokens is 0, but it must be between 1 and 16"},
      {draft + "--repetitions 0", "--repetitions is 0, but it must be 1 or more"},
      {draft + "--no-use-cache", "--draft-model needs the cache, one prompt and one continuation"},
      {draft + "--do-sample --num-return-sequences 2",
       "--draft-model needs the cache, one prompt and one continuation"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --benchmark " + folder);
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    CHECK(contains(run.err, "error: " + message));
  }
  CHECK(!std::filesystem::exists(folder));
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, kShort + "--benchmark /dev/null/results");
  CHECK(run.status == 1);
  CHECK(contains(run.err, "/dev/null/results cannot be made"));
}

TEST_CASE("without --benchmark the program is that of speculative decoding") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--json --draft-model tales-1m --max-new-tokens 8 --prompt The");
  REQUIRE(run.status == 0);
  CHECK(run.json()["stats"].contains("acceptance_rate"));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--draft-model tales-1m --prompt A --prompt B").status == 2);
}
