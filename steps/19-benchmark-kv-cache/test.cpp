#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "benchmark_kv_cache.h"
#include "common/base/error.h"
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

TEST_CASE("every way warms up over the shortest length, and a speed-up compares runs of the same turn" *
          doctest::skip(kSanitized)) {
  // Each run is one pass. Without a cache and with the standing one they last so many milliseconds.
  constexpr int kNone[] = {200, 400, 100}, kStatic[] = {400, 200, 200};  // the medians are equal
  const TemporaryFolder folder;
  int pass = 0;
  tales().observe([&](std::string_view name, std::span<const float>) {
    if (name != "embeddings") return;
    const int turn = pass / 3 - 1, way = pass % 3;
    ++pass;
    if (turn < 0 || turn >= 3 || way == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(way == 0 ? kNone[turn] : kStatic[turn]));
  });
  try {
    benchmark_kv_cache(tales(), {100}, {folder.path().string(), 3, {1}});
  } catch (const Error&) {  // no plot without gnuplot
  }
  tales().observe(nullptr);
  CHECK(pass == 3 + 3 * 3);
  std::ifstream file(folder.path() / "kv-cache.json");
  CHECK(nlohmann::json::parse(file)[2]["speed-up"] == doctest::Approx(0.5).epsilon(0.2));
}

TEST_CASE("the benchmark of the cache refuses what it would not look at") {
  const TemporaryFolder folder;
  const std::string benchmark =
      " --benchmark-lengths 2 --repetitions 1 --benchmark " + folder.path().string();
  for (const char* wrong : {"--prompt The --prompt Once", "--do-sample", "--no-use-cache", "--drift x.svg"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, wrong + benchmark);
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(run.err.find("the --benchmark of the cache") != std::string::npos);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("wrong usage of the benchmark is refused") {
  for (const char* wrong : {"--benchmark x --benchmark-lengths 0", "--benchmark x --benchmark-lengths 5,x",
                            "--benchmark x --repetitions 0"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}
