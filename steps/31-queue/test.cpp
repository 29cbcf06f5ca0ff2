#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/huge_model.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// Generates all texts, `slots` at a time. Checks that each token was reported.
std::vector<Generation> generated(Model& model, const Prompts& prompts, const TextOptions& options, int slots,
                                  bool use_cache = true) {
  std::optional<StaticKvCache> cache;
  if (use_cache) cache.emplace(model, slots);
  Prompts told = prompts;
  std::vector<Generation> texts = generate(
      model, prompts, options, slots, cache ? *cache : no_cache(), [&](int number, const Token& token) {
        told[number].push_back(token.id);
        // Fails immediately if the loop never ends.
        REQUIRE(tokens_after(prompts[number].size(), told[number]).size() <=
                static_cast<std::size_t>(options.stopping.max_new_tokens));
      });
  REQUIRE(texts.size() == prompts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(texts[i].tokens == told[i]);
  return texts;
}

/// How many tokens go through tales-6m in each pass.
std::vector<std::size_t> passes(const Prompts& prompts, const TextOptions& options, int slots) {
  const Unobserved at_the_end;
  std::vector<std::size_t> counts;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  generated(tales(), prompts, options, slots);
  return counts;
}

/// Counts the same numbers: a waiting text takes a free slot, feeds its prompt and then a token per pass, and
/// leaves at its full length.
std::vector<std::size_t> expected_passes(const std::vector<std::size_t>& prompt_lengths,
                                         const std::vector<std::size_t>& new_tokens, std::size_t slots) {
  std::vector<std::size_t> counts, growing;  // how many tokens each of them still needs
  for (std::size_t waiting = 0; waiting < prompt_lengths.size() || !growing.empty();) {
    std::size_t fed = growing.size();
    for (; waiting < prompt_lengths.size() && growing.size() < slots; ++waiting) {
      fed += prompt_lengths[waiting];
      growing.push_back(new_tokens[waiting]);
    }
    counts.push_back(fed);
    for (std::size_t& left : growing) --left;
    std::erase(growing, 0u);
  }
  return counts;
}

std::size_t sum(const std::vector<std::size_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::size_t{0});
}

}  // namespace

TEST_CASE("a batch may have more logits than an int can number") {
  Model model = huge_model();
  const auto texts = generate(model, huge_prompts(), {.stopping = {.max_new_tokens = 1}}, kHugeRows,
                              no_cache(), [](int, const Token&) {});
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row].tokens == std::vector<int>{0, row + 1});
}

TEST_CASE(
    "the texts are what Hugging Face's model makes of each prompt alone, in any order and with few "
    "slots") {
  const auto& cases = reference("batch.json")["cases"];
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int round = 0; round < 3; ++round) {
    Prompts prompts;
    for (const std::size_t i : order) prompts.push_back(cases[i]["prompt_ids"]);
    for (const int slots : {1, 2, 3, 5, 8}) {
      for (const bool use_cache : {true, false}) {
        if (!use_cache && slots != 2 + round) continue;  // slow: one number of slots per round
        const auto got = generated(tales(), prompts, {.stopping = {.max_new_tokens = 40}}, slots, use_cache);
        for (std::size_t row = 0; row < order.size(); ++row) {
          const auto& want = cases[order[row]];
          CAPTURE(want["name"]);
          CAPTURE(slots);
          CHECK(first_difference(tokens_after(prompts[row].size(), got[row].tokens), want["ids"],
                                 want["gaps"]) == "");
          CHECK((got[row].finish_reason == FinishReason::kEos) == (want["finish"] == "eos"));
        }
      }
    }
    std::rotate(order.begin(), order.begin() + 2, order.end());
    std::swap(order[0], order[1]);
  }
}

TEST_CASE("a queue gives the same texts for every number of slots and every order of the prompts") {
  // Five tokens, one of them the end of text: many texts end early, and others outgrow the context of 13.
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(1));
  Prompts prompts{{0, 1, 2}, {3}, {1, 1, 0, 2, 3, 3, 1}, {2, 0}, {3, 2, 1, 0}};
  std::size_t ended = 0, outgrown = 0;
  for (const bool do_sample : {false, true}) {
    for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
      TextOptions options{.stopping = {.max_new_tokens = 11},
                          .sampling = {.do_sample = do_sample, .frequency_penalty = 0.2f},
                          .overflow = {.on_overflow = rule}};
      std::ranges::sort(prompts);
      do {
        std::vector<Generation> alone;
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          TextOptions own = options;
          own.sampling.seed += static_cast<unsigned>(i);
          alone.push_back(generated(model, {prompts[i]}, own, 1)[0]);
          ended += alone.back().finish_reason == FinishReason::kEos;
          outgrown += alone.back().tokens.size() > 13;
        }
        for (int slots = 1; slots <= 6; ++slots) {
          const auto together = generated(model, prompts, options, slots);
          for (std::size_t i = 0; i < prompts.size(); ++i) {
            CHECK(together[i].tokens == alone[i].tokens);
            CHECK(together[i].finish_reason == alone[i].finish_reason);
          }
        }
      } while (std::ranges::next_permutation(prompts).found);
    }
  }
  CHECK(ended > 100);
  CHECK(outgrown > 100);
}

TEST_CASE("a sampled text depends neither on its neighbours nor on how many grow at a time") {
  TextOptions options{
      .stopping = {.max_new_tokens = 25},
      .sampling = {
          .do_sample = true, .seed = 7, .frequency_penalty = 0.3f, .temperature = 0.9f, .top_k = 40}};
  Prompts prompts;
  for (const auto& run : reference("batch.json")["cases"]) prompts.push_back(run["prompt_ids"]);
  for (const int slots : {2, 5}) {
    const auto together = generated(tales(), prompts, options, slots);
    for (std::size_t row = 0; row < prompts.size(); ++row) {
      TextOptions alone = options;
      alone.sampling.seed += static_cast<unsigned>(row);
      CHECK(generated(tales(), {prompts[row]}, alone, 1)[0].tokens == together[row].tokens);
    }
  }
}

TEST_CASE(
    "presence and frequency penalties count sampled tokens only, the repetition penalty the prompt as well") {
  Prompts prompts{std::vector<int>(static_cast<std::size_t>(tales().config().n_positions), 100)};
  const auto sampled = [&](const SamplingOptions& sampling, int count = 1) {
    const TextOptions options{.stopping = {.max_new_tokens = count, .ignore_eos = true},
                              .sampling = sampling};
    return tokens_after(prompts[0].size(), generated(tales(), prompts, options, 1)[0].tokens);
  };
  const std::vector<int> best = sampled({});
  prompts[0].insert(prompts[0].begin(), best[0]);  // outside the window: the logits stay the same
  REQUIRE(sampled({}) == best);
  CHECK(sampled({.repetition_penalty = 1e30f}) != best);
  for (const SamplingOptions& once :
       {SamplingOptions{.presence_penalty = 1e30f}, SamplingOptions{.frequency_penalty = 1e30f}}) {
    CHECK(sampled(once) == best);
    std::vector<int> tokens = sampled(once, 6);
    std::ranges::sort(tokens);
    CHECK(std::ranges::adjacent_find(tokens) == tokens.end());
  }
}

TEST_CASE("a queue takes as many passes as it must, and feeds each token once") {
  std::vector<std::size_t> prompt_lengths, new_tokens;
  Prompts prompts;
  for (int round = 0; round < 2; ++round) {
    for (const auto& run : reference("batch.json")["cases"]) {
      prompts.push_back(run["prompt_ids"]);
      prompt_lengths.push_back(prompts.back().size());
      new_tokens.push_back(run["ids"].size());
    }
    std::ranges::reverse(prompts);
    std::ranges::reverse(prompt_lengths);
    std::ranges::reverse(new_tokens);
  }
  const TextOptions options{.stopping = {.max_new_tokens = 40}};
  for (const int slots : {1, 2, 3, 4, 10, 16}) {
    CAPTURE(slots);
    const auto counts = passes(prompts, options, slots);
    CHECK(counts == expected_passes(prompt_lengths, new_tokens, slots));
    CHECK(sum(counts) == sum(prompt_lengths) + sum(new_tokens) - prompts.size());
    CHECK(counts.size() * slots >= sum(new_tokens));
    if (slots == 1) CHECK(counts.size() == sum(new_tokens));
    if (slots >= 10) CHECK(counts.size() == 40);
  }
  // The table of the README.
  for (const auto& [slots, want] :
       std::vector<std::pair<int, std::size_t>>{{1, 174}, {2, 94}, {3, 80}, {4, 54}, {5, 40}}) {
    CHECK(passes({prompts.end() - 5, prompts.end()}, options, slots).size() == want);
    CHECK(passes({prompts.begin(), prompts.begin() + 5}, options, slots).size() == want);
  }
  // The README's picture: texts of 2, 6, 3, 4 and 1 tokens in three slots.
  CHECK(expected_passes({1, 1, 1, 1, 1}, {2, 6, 3, 4, 1}, 3) == std::vector<std::size_t>{3, 3, 3, 3, 2, 2});
  // By hand: three texts of one prompt token and four new ones, two slots. The third waits for both.
  CHECK(passes({{321}, {321}, {321}}, {.stopping = {.max_new_tokens = 4, .ignore_eos = true}}, 2) ==
        std::vector<std::size_t>{2, 2, 2, 2, 1, 1, 1, 1});
}

TEST_CASE("no new tokens take no pass, and no prompts give no texts") {
  CHECK(passes({{321, 1682}, {1294}}, {.stopping = {.max_new_tokens = 0}}, 1).empty());
  const auto texts = generated(tales(), {{321, 1682}, {1294}}, {.stopping = {.max_new_tokens = 0}}, 2);
  CHECK(texts[0].tokens == std::vector<int>{321, 1682});
  CHECK(texts[1].tokens == std::vector<int>{1294});
  CHECK(texts[1].finish_reason == FinishReason::kLength);
  CHECK(generated(tales(), {}, {}, 2).empty());
}

TEST_CASE("a cache can serve one queue after another") {
  const TextOptions options{.stopping = {.max_new_tokens = 6, .ignore_eos = true}};
  const Prompts first{{321, 1682, 11, 5}, {1294}, {5}}, second{{1294, 259}, {321, 1682, 11, 5}, {4095}};
  StaticKvCache cache(tales(), 2);
  int told = 0;
  const auto on_token = [&](int, const Token&) { REQUIRE(++told <= 6 * 6); };
  generate(tales(), first, options, 2, cache, on_token);
  const auto texts = generate(tales(), second, options, 2, cache, on_token);
  const auto want = generated(tales(), second, options, 3);
  for (std::size_t i = 0; i < second.size(); ++i) CHECK(texts[i].tokens == want[i].tokens);
}

TEST_CASE("prompts come from the command line and from the lines of a file, and an empty line is a prompt") {
  const auto json = [](const std::string& arguments, const std::string& input = "") {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 4 " + arguments, input);
    REQUIRE(run.status == 0);
    return run.json();
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

TEST_CASE("--max-batch-size changes no text, sampled or not") {
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 8 --seed 5 --prompts - " + arguments,
                    "The wolf\nThe wolf\nThe wolf\n");
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  for (const std::string options : {"", "--do-sample", "--do-sample --num-return-sequences 2"}) {
    const auto want = sequences(options);
    REQUIRE(want.size() == (options.ends_with('2') ? 6 : 3));
    CHECK((want[0] == want[1]) == options.empty());
    for (const char* most : {"1", "2", "4"}) CHECK(sequences(options + " --max-batch-size " + most) == want);
    CHECK(sequences(options + " --max-batch-size 2 --no-use-cache") == want);
  }
}

TEST_CASE("a thousand prompts take the memory of the largest batch") {
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "The wolf\n";
  const auto cache_bytes = [&](const std::string& input) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                       "--json --max-new-tokens 1 --max-batch-size 20 --prompts -", input);
    REQUIRE(run.status == 0);
    const auto json = run.json();
    CHECK(json["sequences"].size() == input.size() / 9);
    return json["stats"]["cache_bytes"].get<std::size_t>();
  };
  CHECK(cache_bytes(lines) == 20 * cache_bytes("The wolf\n"));
}

TEST_CASE("the texts come out one after another, and wrong usage is refused") {
  const ProgramRun one = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 3 --prompt Once");
  for (const char* most : {"1", "2"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    fmt::format("--max-new-tokens 3 --prompt The --prompt Once --max-batch-size {}", most));
    CHECK(begins_with(run.out, "[1]\n"));
    CHECK(ends_with(run.out, "\n\n[2]\n" + one.out));
  }
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--max-batch-size 0", "--max-batch-size is 0, but it must be 1 or more\n"},
           {"--max-batch-size -3", "--max-batch-size is -3, but it must be 1 or more\n"},
           {"--num-return-sequences 2",
            "--num-return-sequences 2 needs --do-sample: without it all of them would be the same\n"}}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(ends_with(refused.err, message));
    CHECK(refused.out.empty());
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompts /nonexistent").status == 1);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompts -", "").status == 1);
}
