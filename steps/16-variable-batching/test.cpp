#include <doctest/doctest.h>

#include <algorithm>

#include "generate.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Texts = std::vector<std::vector<int>>;

/// The new tokens of each text.
Texts continued(const Texts& prompts, const GenerateOptions& options, bool use_cache = true) {
  const int copies = options.num_return_sequences;
  std::optional<StaticKvCache> cache;
  if (use_cache) cache.emplace(tales(), static_cast<int>(prompts.size()) * copies);
  const auto texts = generate(tales(), prompts, options, cache ? &*cache : nullptr, [](int, const Token&) {});
  Texts result;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    result.push_back(behind(prompts[i / copies].size(), texts[i].tokens));
  }
  return result;
}

/// The prompts of the reference, of many lengths.
Texts reference_prompts() {
  Texts prompts;
  for (const auto& run : reference("batch.json")["cases"]) prompts.push_back(run["prompt_ids"]);
  return prompts;
}

/// What goes through the model in each pass, in tokens.
std::vector<std::size_t> passes(const Texts& prompts, const GenerateOptions& options) {
  std::vector<std::size_t> counts;
  tales().observe([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  continued(prompts, options);
  tales().observe(nullptr);
  return counts;
}

}  // namespace

TEST_CASE("the rows of a batch are what Hugging Face's model makes of each prompt alone, in any order") {
  const auto& cases = reference("batch.json")["cases"];
  std::vector<std::size_t> order(cases.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (int round = 0; round < 3; ++round) {
    Texts prompts;
    for (const std::size_t i : order) prompts.push_back(cases[i]["prompt_ids"]);
    for (const bool use_cache : {true, false}) {
      const Texts got = continued(prompts, {.max_new_tokens = 40}, use_cache);
      for (std::size_t row = 0; row < order.size(); ++row) {
        const auto& want = cases[order[row]];
        CAPTURE(want["name"]);
        CHECK(first_difference(got[row], want["ids"], want["gaps"]) == -1);
      }
    }
    std::rotate(order.begin(), order.begin() + 2, order.end());
    std::swap(order[0], order[1]);
  }
}

TEST_CASE("a sampled text does not depend on its neighbours") {
  GenerateOptions options{.max_new_tokens = 25};
  options.sampling = {.do_sample = true, .frequency_penalty = 0.3f, .top_k = 40};
  const Texts prompts = reference_prompts();
  const Texts together = continued(prompts, options);
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    GenerateOptions alone = options;
    alone.seed += static_cast<unsigned>(row);
    CHECK(continued({prompts[row]}, alone)[0] == together[row]);
  }
}

TEST_CASE("rows that have ended leave the batch, and the others pay no longer for them") {
  // "ending" stops before the others.
  Texts prompts;
  std::size_t longest = 0, tokens = 0;
  for (const auto& run : reference("batch.json")["cases"]) {
    prompts.push_back(run["prompt_ids"]);
    longest = std::max(longest, run["ids"].size());
    tokens += run["ids"].size() + prompts.back().size() - 1;  // the last token is never fed
  }
  const auto counts = passes(prompts, {.max_new_tokens = 40});
  CHECK(counts.size() == longest);
  std::size_t fed = 0;
  for (const std::size_t count : counts) fed += count;
  CHECK(fed == tokens);
  CHECK(counts.back() < prompts.size());
}

TEST_CASE("all texts of a prompt share its prefill, and are those that it begins alone") {
  GenerateOptions options{.max_new_tokens = 12, .ignore_eos = true};
  options.sampling.do_sample = true;
  options.num_return_sequences = 3;
  const Texts prompts{{321, 1682, 11}, {1294, 259}};
  const Texts together = continued(prompts, options);
  REQUIRE(together.size() == 6);
  for (unsigned text = 0; text < 6; ++text) {
    GenerateOptions alone = options;
    alone.num_return_sequences = 1;
    alone.seed += text;
    CHECK(continued({prompts[text / 3]}, alone)[0] == together[text]);
  }
  CHECK(together[0] != together[1]);
  const auto counts = passes(prompts, options);
  CHECK(counts[0] == 5);
  CHECK(counts[1] == 6);
}

TEST_CASE("each row of a full cache makes room for itself") {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - 2);
  for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
    const GenerateOptions options{.max_new_tokens = 6, .ignore_eos = true, .on_overflow = rule};
    const Texts together = continued({{321, 1682}, text, {1294}}, options);
    CHECK(together[0] == continued({{321, 1682}}, options)[0]);
    CHECK(together[1] == continued({text}, options)[0]);
    CHECK(together[2] == continued({{1294}}, options)[0]);
  }
}

TEST_CASE("prompts come from the command line and from the lines of a file, an empty line being a prompt") {
  const auto json = [](const std::string& arguments, const std::string& input = "") {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 4 " + arguments, input);
    REQUIRE(run.status == 0);
    return nlohmann::json::parse(run.out);
  };
  const auto file = json("--prompts -", "The wolf\r\n\nOnce upon a time");
  REQUIRE(file["sequences"].size() == 3);
  CHECK(file["sequences"][1]["prompt_token_ids"] == std::vector<int>{4095});
  CHECK(file["sequences"] ==
        json("--prompt 'The wolf' --prompt '' --prompt 'Once upon a time'")["sequences"]);
  CHECK(file["stats"]["new_tokens"] == 12);
  CHECK(file["sequences"] ==
        json("--prompts - --max-batch-size 2", "The wolf\n\nOnce upon a time\n")["sequences"]);
}

TEST_CASE("a sampled text does not depend on how many grow at a time") {
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 8 --do-sample --seed 5 " + arguments,
                    "The wolf\nThe wolf\nThe wolf\n");
    REQUIRE(run.status == 0);
    return nlohmann::json::parse(run.out)["sequences"];
  };
  for (const std::string copies : {"1", "2"}) {
    const auto want = sequences("--prompts - --num-return-sequences " + copies);
    CHECK(want[0] != want[1]);
    for (const char* most : {"2", "4"}) {
      CHECK(sequences(fmt::format("--prompts - --num-return-sequences {} --max-batch-size {}", copies,
                                  most)) == want);
    }
  }
}

TEST_CASE("a cache can serve one batch after another") {
  const GenerateOptions options{.max_new_tokens = 6, .ignore_eos = true};
  const Texts first{{321, 1682, 11, 5}, {1294}}, second{{1294, 259}, {321, 1682, 11, 5}};
  StaticKvCache cache(tales(), 2);
  generate(tales(), first, options, &cache, [](int, const Token&) {});
  const auto texts = generate(tales(), second, options, &cache, [](int, const Token&) {});
  const Texts want = continued(second, options);
  for (std::size_t i = 0; i < second.size(); ++i) CHECK(behind(second[i].size(), texts[i].tokens) == want[i]);
}

TEST_CASE("a thousand prompts take the memory of the largest batch") {
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "The wolf\n";
  const auto cache_bytes = [&](const std::string& input) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                       "--json --max-new-tokens 1 --max-batch-size 20 --prompts -", input);
    REQUIRE(run.status == 0);
    const auto json = nlohmann::json::parse(run.out);
    CHECK(json["sequences"].size() == input.size() / 9);
    return json["stats"]["cache_bytes"].get<std::size_t>();
  };
  CHECK(cache_bytes(lines) == 20 * cache_bytes("The wolf\n"));
}

TEST_CASE("the texts come out one behind the other, and wrong usage is refused") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 3 --prompt The --prompt Once");
  CHECK(run.out.starts_with("[1]\n"));
  CHECK(run.out.find("\n\n[2]\n") != std::string::npos);
  const TemporaryFolder folder;
  const std::string drift = "--prompt The --prompt Once --drift " + (folder.path() / "drift.svg").string();
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--max-batch-size 0", "--max-batch-size is 0, but it must be 1 or more\n"},
           {"--do-sample --num-return-sequences 5 --max-batch-size 4",
            "--max-batch-size is 4, but it must be 5 or more, the --num-return-sequences\n"},
           {drift, "--drift compares two texts of one prompt, but there are 2 prompts\n"}}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(refused.err.ends_with(message));
    CHECK(refused.out.empty());
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompts /nonexistent").status == 1);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompts -", "").status == 1);
}
