#include <doctest/doctest.h>

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
  CHECK(run.err.find("same tokens") != std::string::npos);
  std::ifstream file(folder.path() / "kv-cache.json");
  return nlohmann::json::parse(file);
}

/// MiB of keys and values of so many positions of tales-6m.
double mebibytes(int positions) {
  const Gpt2Config& config = tales().config();
  return 2.0 * config.n_layer * config.n_embd * positions * 4 / (1 << 20);
}

}  // namespace

TEST_CASE("the benchmark measures each cache over each length, and all of them give the same text") {
  const auto rows = measured("--prompt 'Once upon a time' --benchmark-lengths 20,45");
  REQUIRE(rows.size() == 6);
  const int prompt = 4;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const int length = i < 3 ? 20 : 45;
    CHECK(row["new tokens"] == length);
    CHECK(row["cache"] == std::vector<std::string>{"none", "dynamic", "static"}[i % 3]);
    CHECK(row["same tokens"] == length);
    CHECK(row["tokens/s"] > 0.0);
  }
  CHECK(rows[0]["speed-up"] == 1.0);
  CHECK(rows[0]["cache MiB"] == 0.0);
  CHECK(rows[4]["cache MiB"] == doctest::Approx(mebibytes(prompt + 45 - 1)));
  CHECK(rows[5]["cache MiB"] == doctest::Approx(mebibytes(512)));
  double copied = 0.0;
  for (int length = prompt; length < prompt + 44; ++length) copied += mebibytes(length);
  CHECK(rows[4]["copied MiB"] == doctest::Approx(copied));
  CHECK(rows[5]["copied MiB"] == 0.0);
}

TEST_CASE("beyond the context the growing cache ends and the standing one slides" *
          doctest::skip(kSanitized)) {
  std::string prompt;
  for (int i = 0; i < 500; ++i) prompt += " and";
  const auto rows = measured("--prompt '" + prompt + "' --benchmark-lengths 5,30");
  REQUIRE(rows.size() == 5);
  CHECK(rows[1]["cache"] == "dynamic");
  CHECK(rows[4]["cache"] == "static, slides");
  CHECK(rows[4]["copied MiB"] > 0.0);
}

TEST_CASE("wrong usage of the benchmark is refused") {
  for (const char* wrong : {"--benchmark x --benchmark-lengths 0", "--benchmark x --benchmark-lengths 5,x",
                            "--benchmark x --repetitions 0"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}
