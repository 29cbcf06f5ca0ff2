#include <doctest/doctest.h>

#include "drift.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// A text that fills the context except for `free` positions, and continues plausibly.
std::vector<int> nearly_full(int free) {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - free);
  return text;
}

}  // namespace

TEST_CASE("the divergence of two distributions is that of its formula") {
  const std::vector<float> p{0.5f, 0.25f, 0.25f, 0.0f}, q{0.25f, 0.5f, 0.125f, 0.125f};
  CHECK(kl_divergence(p, p) == 0.0);
  CHECK(kl_divergence(p, q) == doctest::Approx(0.5 * std::log(2.0)));
  CHECK(kl_divergence(q, p) > 1.0);  // p excludes what q allows
}

TEST_CASE("a divergence is never below 0, and that of independent pairs is the sum of both") {
  std::mt19937 generator(1);
  const auto some = [&] {
    std::vector<float> logits(4);
    for (float& logit : logits) logit = static_cast<float>(uniform(generator) * 6.0 - 3.0);
    return softmax(logits);
  };
  for (int round = 0; round < 100; ++round) {
    const std::vector<float> p = some(), q = some(), r = some(), s = some();
    std::vector<float> pr, qs;
    for (int i = 0; i < 16; ++i) {
      pr.push_back(p[i / 4] * r[i % 4]);
      qs.push_back(q[i / 4] * s[i % 4]);
    }
    CHECK(kl_divergence(p, q) > 0.0);
    CHECK(kl_divergence(pr, qs) == doctest::Approx(kl_divergence(p, q) + kl_divergence(r, s)).epsilon(1e-4));
  }
}

TEST_CASE("sliding drifts away from the exact window, and recomputing does not") {
  const std::vector<int> text = nearly_full(-4);
  const std::vector<double> sliding = drift(tales(), text, {});
  const std::vector<double> exact = drift(tales(), text, {.on_overflow = Overflow::kRecompute});
  REQUIRE(sliding.size() == 4);
  REQUIRE(exact.size() == 4);
  CHECK(*std::ranges::min_element(sliding) > 1e-6);
  CHECK(*std::ranges::max_element(exact) < 1e-9);
}

TEST_CASE("the drift is the divergence of the slid cache from the exact window") {
  const std::vector<int> text = nearly_full(-1);
  const std::span<const int> all = text, window = all.last(text.size() - 1);
  StaticKvCache cache(tales());
  tales().next_logits(all.first(window.size()), cache);
  cache.slide(0, 1);
  const std::vector<float> slid = softmax(tales().next_logits(all.last(1), cache));
  const std::vector<float> exact = softmax(tales().next_logits(window));
  const double want = kl_divergence(exact, slid);
  REQUIRE(want > 0.0);
  CHECK(drift(tales(), text, {})[0] / want == doctest::Approx(1.0));
}

TEST_CASE("a text that the context holds does not drift") {
  CHECK(drift(tales(), nearly_full(0), {}).empty());
  CHECK(drift(tales(), nearly_full(3), {}).empty());
}

TEST_CASE("the program compares both rules and plots their drift") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "drift.svg").string();
  std::string prompt;
  for (int i = 0; i < 260; ++i) prompt += " and so";
  const PlotScript script;
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--prompt - --ignore-eos --max-new-tokens 5 --drift " + file, prompt);
  CHECK(contains(run.err, "the model sees only the last 512 of them"));
  const TextOptions options{.stopping = {.max_new_tokens = 5, .ignore_eos = true}};
  StaticKvCache cache(tales());
  std::mt19937 generator(0);
  const std::vector<int> text =
      generate(tales(), tales_tokenizer().encode(prompt), options, cache, generator, [](const Token&) {
      }).tokens;
  const std::vector<double> slid = drift(tales(), std::span(text).last(512 + 5), {});
  REQUIRE(slid.size() == 5);
  CHECK(contains(
      run.err,
      fmt::format("slide      KL divergence {:.4f} on average, {:.4f} at most, over 5 tokens",
                  std::accumulate(slid.begin(), slid.end(), 0.0) / 5, *std::ranges::max_element(slid))));
  CHECK(run.status == 0);
  const std::string plot = PlotScript::text(file);
  CHECK(contains(plot, "set title 'KL divergence from the exact window'\n"));
  CHECK(contains(plot, axes("tokens beyond the context", "nats")));
  const auto points = points_of(plot, 0);
  REQUIRE(points.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(points[i][0] == static_cast<double>(i + 1));
    CHECK(points[i][1] == doctest::Approx(slid[i]));
  }
  CHECK(points_of(plot, 1).size() == 5);
}

TEST_CASE("a plot that cannot be written is refused before any token, and a run that fails leaves no trace") {
  const TemporaryFolder folder;
  const std::string nowhere = (folder.path() / "none" / "drift.svg").string();
  const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, "--drift " + nowhere);
  CHECK(refused.status == 1);
  CHECK(refused.out.empty());
  CHECK(ends_with(refused.err, "\nerror: " + nowhere + " cannot be written\n"));

  const std::filesystem::path old = folder.write("old.svg", "an older plot");
  for (const std::filesystem::path& file : {old, folder.path() / "new.svg"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 2 --drift " + file.string());
    CHECK(run.status == 1);
    CHECK(contains(run.err, "nothing to compare"));
  }
  CHECK(std::filesystem::file_size(old) == 13);
  CHECK(!std::filesystem::exists(folder.path() / "new.svg"));
}

TEST_CASE("the two texts are those that each rule gives alone, and the report names where they diverge") {
  const TemporaryFolder folder;
  std::string prompt;
  for (int i = 0; i < 254; ++i) prompt += " and so";
  const auto sequences = [&](const std::string& arguments) {
    const ProgramRun run = run_program(
        STAIRCASE_STEP_PROGRAM,
        "--prompt - --json --ignore-eos --do-sample --seed 3 --max-new-tokens 24 " + arguments, prompt);
    return std::pair{run.out.empty() ? nlohmann::json() : run.json()["sequences"], run.err};
  };
  const auto slide = sequences("").first, recompute = sequences("--on-overflow recompute").first;
  const auto [both, report] = sequences("--drift " + (folder.path() / "drift.svg").string());
  std::ptrdiff_t parting = slide[0]["prompt_token_ids"].size() + 1;
  const std::vector<int> one = slide[0]["token_ids"], other = recompute[0]["token_ids"];
  parting += std::ranges::mismatch(one, other).in1 - one.begin();
  if (one == other) {
    CHECK(contains(report, "[1] slide, [2] recompute: the same text"));
  } else {
    CHECK(contains(report, fmt::format("the texts diverge at token {}\n", parting)));
  }
  if (std::system("command -v gnuplot >/dev/null") == 0) {
    CHECK(both[0]["token_ids"] == one);
    CHECK(both[1]["token_ids"] == other);
  }
}

TEST_CASE("a comparison with options that it would ignore is refused before anything is loaded") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "x.svg").string();
  for (const char* wrong : {"--no-use-cache", "--do-sample --num-return-sequences 2"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, fmt::format("{} --drift {}", wrong, file));
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    CHECK(run.err ==
          "error: --drift compares two texts with a cache: it cannot be combined with "
          "--num-return-sequences or --no-use-cache\n");
  }
  CHECK(!std::filesystem::exists(file));
}
