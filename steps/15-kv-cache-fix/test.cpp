#include <doctest/doctest.h>

#include "drift.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

std::vector<int> continued(const std::vector<int>& prompt, const GenerateOptions& options) {
  std::mt19937 generator(options.seed);
  return behind(prompt.size(), generate(tales(), prompt, options, generator, [](const Token&) {}).tokens);
}

/// A text that fills the context but for `free` positions, and continues plausibly.
std::vector<int> nearly_full(int free) {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - free);
  return text;
}

/// How many tokens went through the model in each of its passes.
std::vector<std::size_t> passes(const std::vector<int>& prompt, const GenerateOptions& options) {
  std::vector<std::size_t> counts;
  tales().observe([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  continued(prompt, options);
  tales().observe(nullptr);
  return counts;
}

using Counts = std::vector<std::size_t>;

}  // namespace

TEST_CASE("recomputing gives the 600 tokens of Hugging Face's model on the sliding window" *
          doctest::skip(kSanitized)) {
  const auto run = reference("sliding.json");
  const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
  const std::vector<int> got = continued(prompt, {.max_new_tokens = static_cast<int>(want.size()),
                                                  .ignore_eos = true,
                                                  .on_overflow = Overflow::kRecompute});
  CHECK(first_difference(got, want, run["gaps"]) == -1);
}

TEST_CASE("as long as the context lasts, neither rule changes anything") {
  const std::vector<int> prompt = nearly_full(4);
  GenerateOptions options{.max_new_tokens = 5, .ignore_eos = true, .use_cache = false};
  const std::vector<int> want = continued(prompt, options);
  options.use_cache = true;
  CHECK(continued(prompt, options) == want);
  options.on_overflow = Overflow::kRecompute;
  CHECK(continued(prompt, options) == want);
}

TEST_CASE("sliding feeds one token a pass for ever, recomputing the window that --refill allows") {
  const std::vector<int> prompt = nearly_full(2);
  GenerateOptions options{.max_new_tokens = 6, .ignore_eos = true};
  CHECK(passes(prompt, options) == Counts{510, 1, 1, 1, 1, 1});
  options.on_overflow = Overflow::kRecompute;
  CHECK(passes(prompt, options) == Counts{510, 1, 1, 512, 512, 512});
  options.refill = 510;
  CHECK(passes(prompt, options) == Counts{510, 1, 1, 510, 1, 1});
}

TEST_CASE("sliding moves each entry one position to the front and keeps it as it was") {
  StaticKvCache cache(tales());
  tales().next_logits(nearly_full(0), cache);
  const auto entries = [&] {  // of all layers, without the first `from` and last `to` positions
    std::vector<std::vector<float>> all;
    for (int l = 0; l < tales().config().n_layer; ++l) {
      for (const Tensor& tensor : {cache.layer(l).keys, cache.layer(l).values}) {
        tales().device().copy_to_host(tensor, all.emplace_back(tensor.size()));
      }
    }
    return all;
  };
  const auto before = entries();
  cache.slide(0, 3);
  CHECK(cache.length(0) == 509);
  const auto after = entries();
  const std::size_t size = tales().config().head_size(), head = 512 * size;
  for (std::size_t t = 0; t < before.size(); ++t) {
    for (std::size_t first = 0; first < before[t].size(); first += head) {
      CHECK(std::equal(after[t].data() + first, after[t].data() + first + 509 * size,
                       before[t].data() + first + 3 * size));
    }
  }
  CHECK(cache.use().copied == 509 * cache.use().bytes / 512);
}

TEST_CASE("the divergence of two distributions is that of its formula") {
  const std::vector<float> p{0.5f, 0.25f, 0.25f, 0.0f}, q{0.25f, 0.5f, 0.125f, 0.125f};
  CHECK(kl_divergence(p, p) == 0.0);
  CHECK(kl_divergence(p, q) == doctest::Approx(0.5 * std::log(2.0)));
  CHECK(kl_divergence(q, p) > 1.0);  // p excludes what q allows
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

TEST_CASE("--no-use-cache takes no memory for a cache") {
  std::mt19937 generator;
  const GenerateOptions options{.max_new_tokens = 2, .ignore_eos = true, .use_cache = false};
  CHECK(generate(tales(), nearly_full(1), options, generator, [](const Token&) {}).cache.allocated == 0);
}

TEST_CASE("the program compares both rules and plots their drift") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "drift.svg").string();
  std::string prompt;
  for (int i = 0; i < 260; ++i) prompt += " and so";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--prompt - --ignore-eos --max-new-tokens 5 --drift " + file, prompt);
  CHECK(run.err.find("the model sees only the last 512 of them") != std::string::npos);
  CHECK(run.err.find("slide      KL divergence") != std::string::npos);
  CHECK(run.err.find("over 5 tokens") != std::string::npos);
  if (std::system("command -v gnuplot >/dev/null") == 0) {
    CHECK(run.status == 0);
    std::ifstream svg(file);
    CHECK(std::string(std::istreambuf_iterator<char>(svg), {}).find("KL divergence from the exact window") !=
          std::string::npos);
  }
}

TEST_CASE("a plot that cannot be written is refused before any token, and a run that fails leaves no trace") {
  const TemporaryFolder folder;
  const std::string nowhere = (folder.path() / "none" / "drift.svg").string();
  const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, "--drift " + nowhere);
  CHECK(refused.status == 1);
  CHECK(refused.out.empty());
  CHECK(refused.err == "error: " + nowhere + " cannot be written\n");

  const std::filesystem::path old = folder.write("old.svg", "an older plot");
  for (const std::filesystem::path& file : {old, folder.path() / "new.svg"}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 2 --drift " + file.string());
    CHECK(run.status == 1);
    CHECK(run.err.find("nothing to compare") != std::string::npos);
  }
  CHECK(std::filesystem::file_size(old) == 13);
  CHECK(!std::filesystem::exists(folder.path() / "new.svg"));
}

TEST_CASE("impossible options are refused before any token") {
  const std::pair<std::string, std::string> wrong[] = {
      {"--on-overflow grow", "--on-overflow: grow not in {slide,recompute}"},
      {"--on-overflow recompute --refill 0", "--refill is 0, but it must be 1 or more"},
      {"--on-overflow recompute --refill 513", "--refill is 513, but it must be at most the model's 512"},
      {"--drift x.svg --no-use-cache", "--drift compares two texts with a cache"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    CHECK(run.err.find(message) != std::string::npos);
  }
}
