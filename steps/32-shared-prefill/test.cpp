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

/// Generates `copies` texts of each prompt, `slots` at a time. Checks that each token was reported.
std::vector<Generation> generated(Model& model, const Prompts& prompts, int copies,
                                  const TextOptions& options, int slots, bool use_cache = true) {
  std::optional<StaticKvCache> cache;
  if (use_cache) cache.emplace(model, slots);
  Prompts told;
  for (const std::vector<int>& prompt : prompts) told.insert(told.end(), copies, prompt);
  std::vector<Generation> texts =
      generate(model, prompts, copies, options, slots, cache ? *cache : no_cache(),
               [&](int number, const Token& token) {
                 told[number].push_back(token.id);
                 // Fails immediately if the loop never ends.
                 REQUIRE(tokens_after(prompts[number / copies].size(), told[number]).size() <=
                         static_cast<std::size_t>(options.stopping.max_new_tokens));
               });
  REQUIRE(texts.size() == told.size());
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(texts[i].tokens == told[i]);
  return texts;
}

/// How many tokens go through tales-6m in each pass.
std::vector<std::size_t> passes(const Prompts& prompts, int copies, const TextOptions& options, int slots,
                                bool use_cache = true) {
  const Unobserved at_the_end;
  std::vector<std::size_t> counts;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  generated(tales(), prompts, copies, options, slots, use_cache);
  return counts;
}

const TextOptions kDrawn{.stopping = {.max_new_tokens = 12, .ignore_eos = true},
                         .sampling = {.do_sample = true, .frequency_penalty = 0.4f}};

}  // namespace

TEST_CASE("a batch may have more logits than an int can number") {
  Model model = huge_model();
  const auto texts = generate(model, huge_prompts(), 1, {.stopping = {.max_new_tokens = 1}}, kHugeRows,
                              no_cache(), [](int, const Token&) {});
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row].tokens == std::vector<int>{0, row + 1});
}

TEST_CASE("each text of a prompt is what Hugging Face's model makes of it, however many share the prefill") {
  const auto& cases = reference("batch.json")["cases"];
  Prompts prompts;
  for (const auto& one : cases) prompts.push_back(one["prompt_ids"]);
  const TextOptions options{.stopping = {.max_new_tokens = 40}};
  struct Sizes {
    int copies, slots;
  };
  for (const Sizes sizes : {Sizes{1, 2}, {1, 5}, {2, 2}, {2, 5}, {3, 16}}) {
    const int copies = sizes.copies, slots = sizes.slots;
    for (const bool use_cache : {true, false}) {
      if (!use_cache && slots != 5) continue;  // slow: one number of slots per round
      const auto got = generated(tales(), prompts, copies, options, slots, use_cache);
      for (int i = 0; i < std::ssize(got); ++i) {
        const auto& want = cases[i / copies];
        CAPTURE(want["name"]);
        CAPTURE(copies);
        CHECK(first_difference(tokens_after(prompts[i / copies].size(), got[i].tokens), want["ids"],
                               want["gaps"]) == "");
        CHECK((got[i].finish_reason == FinishReason::kEos) == (want["finish"] == "eos"));
      }
    }
  }
}

TEST_CASE("all texts of a prompt share its prefill, and are those that it begins alone") {
  const Prompts prompts{{321, 1682, 11}, {1294, 259}};
  const auto together = generated(tales(), prompts, 3, kDrawn, 6);
  REQUIRE(together.size() == 6);
  for (unsigned text = 0; text < 6; ++text) {
    TextOptions alone = kDrawn;
    alone.sampling.seed += text;
    CHECK(generated(tales(), {prompts[text / 3]}, 1, alone, 1)[0].tokens == together[text].tokens);
  }
  CHECK(together[0].tokens != together[1].tokens);
  for (const bool use_cache : {true, false}) {
    const auto counts = passes(prompts, 3, kDrawn, 6, use_cache);
    CHECK(counts.size() == 12);
    CHECK(counts[0] == 5);
    CHECK(counts[1] == (use_cache ? 6 : 4 * 3 + 3 * 3));
  }
}

TEST_CASE("a queue gives the same texts for every number of slots and every order of the prompts") {
  // Five tokens, one of them the end of text: many texts end early, and others outgrow the context of 13.
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Model model = Model::load(folder.path(), make_cpu_device(1));
  Prompts prompts{{0, 1, 2}, {3}, {1, 1, 0, 2, 3, 3, 1}, {2, 0}};
  std::size_t ended = 0, ended_at_once = 0, outgrown = 0;
  for (const int copies : {2, 3}) {
    for (const Overflow rule : {Overflow::kSlide, Overflow::kRecompute}) {
      const TextOptions options{.stopping = {.max_new_tokens = 11},
                                .sampling = {.do_sample = true, .frequency_penalty = 0.2f},
                                .overflow = {.on_overflow = rule}};
      std::ranges::sort(prompts);
      do {
        std::vector<Generation> alone;
        for (std::size_t i = 0; i < prompts.size() * copies; ++i) {
          TextOptions own = options;
          own.sampling.seed += static_cast<unsigned>(i);
          alone.push_back(generated(model, {prompts[i / copies]}, 1, own, 1)[0]);
          ended += alone.back().finish_reason == FinishReason::kEos;
          ended_at_once += alone.back().tokens.size() == prompts[i / copies].size() + 1;
          outgrown += alone.back().tokens.size() > 13;
        }
        for (const int slots : {copies, copies + 1, 2 * copies, 2 * copies + 1, 4 * copies}) {
          const auto together = generated(model, prompts, copies, options, slots);
          for (std::size_t i = 0; i < together.size(); ++i) {
            CHECK(together[i].tokens == alone[i].tokens);
            CHECK(together[i].finish_reason == alone[i].finish_reason);
          }
        }
      } while (std::ranges::next_permutation(prompts).found);
    }
  }
  CHECK(ended > 100);
  CHECK(ended_at_once > 10);
  CHECK(outgrown > 100);
}

TEST_CASE("the copies of a prompt wait until there are slots for all of them") {
  const TextOptions options{.stopping = {.max_new_tokens = 3, .ignore_eos = true},
                            .sampling = {.do_sample = true}};
  const Prompts prompts{{321, 1682}, {321, 1682, 11, 5}};
  // Two prompts, three copies: with five slots the second prompt waits, with six it does not.
  CHECK(passes(prompts, 3, options, 3) == std::vector<std::size_t>{2, 3, 3, 4, 3, 3});
  CHECK(passes(prompts, 3, options, 5) == std::vector<std::size_t>{2, 3, 3, 4, 3, 3});
  CHECK(passes(prompts, 3, options, 6) == std::vector<std::size_t>{6, 6, 6});
  CHECK(passes(prompts, 1, options, 1) == std::vector<std::size_t>{2, 1, 1, 4, 1, 1});
}

TEST_CASE("one new token takes one pass for all copies, and none takes none") {
  TextOptions options = kDrawn;
  options.stopping.max_new_tokens = 1;
  CHECK(passes({{321, 1682}, {1294}}, 4, options, 8) == std::vector<std::size_t>{3});
  options.stopping.max_new_tokens = 0;
  CHECK(passes({{321, 1682}, {1294}}, 4, options, 4).empty());
  const auto texts = generated(tales(), {{321, 1682}, {1294}}, 2, options, 2);
  CHECK(texts[1].tokens == std::vector<int>{321, 1682});
  CHECK(texts[3].tokens == std::vector<int>{1294});
  CHECK(texts[3].finish_reason == FinishReason::kLength);
}

TEST_CASE("the first choice of all copies has the same candidates, and the first text comes first") {
  TextOptions options = kDrawn;
  options.sampling.show_candidates = 5;
  options.sampling.presence_penalty = 2.0f;
  options.sampling.repetition_penalty = 1.5f;
  std::vector<int> numbers;
  std::vector<std::vector<int>> candidates;
  StaticKvCache cache(tales(), 4);
  generate(tales(), {{321, 1682, 321}}, 4, options, 4, cache, [&](int number, const Token& token) {
    numbers.push_back(number);
    REQUIRE(numbers.size() <= 48);
    candidates.emplace_back();
    for (const Candidate& candidate : token.candidates) candidates.back().push_back(candidate.token_id);
  });
  REQUIRE(numbers.size() == 48);
  for (int i = 0; i < 4; ++i) {
    CHECK(numbers[i] == i);
    CHECK(candidates[i] == candidates[0]);
    CHECK(candidates[i].size() == 5);
  }
}

TEST_CASE("a copy costs the keys and values of its prompt, and no more") {
  const std::vector<int> prompt(20, 321);
  StaticKvCache cache(tales(), 4);
  int told = 0;
  generate(tales(), {prompt}, 4, kDrawn, 4, cache, [&](int, const Token&) { REQUIRE(++told <= 4 * 12); });
  const std::size_t position = cache.use().bytes / 4 / cache.capacity();
  CHECK(cache.use().copied == 3 * 20 * position);  // all have one length: no row moves when they leave
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--json --prompt 'The wolf' --max-new-tokens 3 --do-sample --num-return-sequences 4");
  REQUIRE(run.status == 0);
  CHECK(run.json()["stats"]["cache_copied_bytes"] == 3 * 2 * position);
}

TEST_CASE("a drawn text of the program does not depend on how many grow at a time") {
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun run = run_program(
        STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 8 --do-sample --seed 5 --prompts - " + arguments,
        "The wolf\n\nThe wolf\n");
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  for (const std::string copies : {"1", "2", "3"}) {
    const auto want = sequences("--num-return-sequences " + copies);
    CHECK(want[0] != want[1]);
    CHECK(want.back()["prompt_token_ids"] == want[0]["prompt_token_ids"]);
    for (const char* most : {"3", "4", "6"}) {
      CHECK(sequences(fmt::format("--num-return-sequences {} --max-batch-size {}", copies, most)) == want);
    }
    CHECK(sequences(fmt::format("--num-return-sequences {} --max-batch-size 3 --no-use-cache", copies)) ==
          want);
  }
}

TEST_CASE("more copies than slots are refused") {
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--do-sample --num-return-sequences 5 --max-batch-size 4",
            "--max-batch-size is 4, but it must be 5 or more, the value of --num-return-sequences\n"},
           {"--do-sample --num-return-sequences 33",
            "--max-batch-size is 32, but it must be 33 or more, the value of --num-return-sequences\n"},
           {"--num-return-sequences 2",
            "--num-return-sequences 2 needs --do-sample: without it all of them would be the same\n"},
           {"--do-sample --prompt a --prompt b --max-batch-size 2147483647 --num-return-sequences 1500000000",
            "error: 2 times 1500000000 texts is too much: the limit is 2147483647\n"}}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(ends_with(refused.err, message));
    CHECK(refused.out.empty());
  }
}
