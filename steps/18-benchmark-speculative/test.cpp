#include <doctest/doctest.h>

#include <set>
#include <sstream>

#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

const std::string kShort = "--draft-model tales-1m --ignore-eos --max-new-tokens 8 --repetitions 1 ";

}  // namespace

TEST_CASE("the benchmark measures every number of drafted tokens in every dtype, and writes it three times") {
  const TemporaryFolder folder;
  const std::filesystem::path results = folder.path() / "new" / "results";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  kShort + "--prompt 'The wolf' --prompt Once --most-speculative-tokens 3 --benchmark " +
                      results.string());
  const bool has_gnuplot = std::system("command -v gnuplot >/dev/null") == 0;
  REQUIRE(run.status == (has_gnuplot ? 0 : 1));
  if (has_gnuplot) CHECK(text_of(results / "speculative.svg").find(">bfloat16<") != std::string::npos);

  const auto json = nlohmann::json::parse(text_of(results / "speculative.json"));
  REQUIRE(json.size() == 9);
  std::set<std::pair<std::string, int>> cases;
  for (const auto& row : json) {
    cases.emplace(row["dtype"].get<std::string>(), row["drafted"].get<int>());
    CHECK(row["acceptance"] >= 0.0);
    CHECK(row["acceptance"] <= 1.0);
    CHECK(row["tokens per pass"] >= 1.0);
    CHECK(row["tokens per pass"] <= row["drafted"].get<double>() + 1.0);
    CHECK(row["low"] <= row["tokens/s"]);
    CHECK(row["tokens/s"] <= row["high"]);
    CHECK(row["speed-up"] > 0.0);
  }
  CHECK(cases.size() == 9);

  std::istringstream csv(text_of(results / "speculative.csv"));
  int lines = 0;
  for (std::string line; std::getline(csv, line);) ++lines;
  CHECK(lines == 10);
  CHECK(run.err.find("baseline tokens/s") != std::string::npos);
}

TEST_CASE("acceptance depends on the text and not on the clock") {
  const TemporaryFolder folder;
  std::vector<nlohmann::json> rates;
  for (const char* name : {"one", "two"}) {
    const std::filesystem::path results = folder.path() / name;
    run_program(STAIRCASE_STEP_PROGRAM,
                kShort + "--prompt 'The wolf' --most-speculative-tokens 2 --benchmark " + results.string());
    auto& all = rates.emplace_back(nlohmann::json::array());
    for (const auto& row : nlohmann::json::parse(text_of(results / "speculative.json")))
      all.push_back(row["acceptance"]);
  }
  CHECK(rates[0] == rates[1]);
}

TEST_CASE("wrong usage of the benchmark is refused before it measures") {
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--benchmark x").status == 2);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, kShort + "--benchmark x --most-speculative-tokens 17").status ==
        2);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--draft-model tales-1m --benchmark x --repetitions 0").status ==
        2);
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, kShort + "--benchmark /dev/null/results");
  CHECK(run.status == 1);
  CHECK(run.err.find("/dev/null/results cannot be made") != std::string::npos);
}
