#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "generate.h"
#include "tests/huge_model.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// Generates all texts, which begin together. Checks that each token was reported.
std::vector<Generation> generated(Model& model, const Prompts& prompts, const TextOptions& options,
                                  KvCache& cache) {
  Prompts told = prompts;
  std::vector<Generation> texts =
      generate(model, prompts, options, cache, [&](int number, const Token& token) {
        told[number].push_back(token.id);
        // Fails immediately if a row never leaves.
        REQUIRE(tokens_after(prompts[number].size(), told[number]).size() <=
                static_cast<std::size_t>(options.stopping.max_new_tokens));
      });
  REQUIRE(texts.size() == prompts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(texts[i].tokens == told[i]);
  return texts;
}

std::vector<Generation> generated(Model& model, const Prompts& prompts, const TextOptions& options) {
  StaticKvCache cache(model, std::max(1, static_cast<int>(prompts.size())));
  return generated(model, prompts, options, cache);
}

/// How many tokens go through tales-6m in each pass.
std::vector<std::size_t> passes(const Prompts& prompts, const TextOptions& options) {
  const Unobserved at_the_end;
  std::vector<std::size_t> counts;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  generated(tales(), prompts, options);
  return counts;
}

/// Counts the same numbers: rows feed their prompts, then a token per pass each until their full length.
std::vector<std::size_t> expected_passes(const std::vector<std::size_t>& prompt_lengths,
                                         const std::vector<std::size_t>& new_tokens) {
  std::vector<std::size_t> counts(std::ranges::max(new_tokens));
  for (std::size_t i = 0; i < new_tokens.size(); ++i) {
    counts[0] += prompt_lengths[i];
    for (std::size_t pass = 1; pass < new_tokens[i]; ++pass) ++counts[pass];
  }
  return counts;
}

std::size_t sum(const std::vector<std::size_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::size_t{0});
}

}  // namespace

TEST_CASE("a batch may have more logits than an int can number") {
  Model model = huge_model();
  const auto texts = generate(model, huge_prompts(), {.stopping = {.max_new_tokens = 1}}, no_cache(),
                              [](int, const Token&) {});
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row].tokens == std::vector<int>{0, row + 1});
}

TEST_CASE("whichever rows leave, the others stay with their keys and values, and none moves twice") {
  const int size = 5;
  for (unsigned finished = 0; finished < 1u << size; ++finished) {
    for (const bool use_cache : {true, false}) {
      CAPTURE(finished);
      StaticKvCache cache(tales(), size);
      std::vector<Row> rows;
      std::vector<int> stay, leave, left;
      for (int number = 0; number < size; ++number) {
        rows.push_back({std::vector<int>(number + 1, 321), {}, number});
        cache.append(number, number + 1);  // so the length of a row of the cache identifies it
        const bool leaves = (finished >> number & 1) == 1;
        if (leaves) rows.back().finished = FinishReason::kLength;
        (leaves ? leave : stay).push_back(number);
      }
      std::size_t bytes_to_move = 0;  // rows that stay and are past the last remaining row
      for (const int number : stay) {
        if (number >= std::ssize(stay))
          bytes_to_move += cache.use().bytes / size / cache.capacity() * (number + 1);
      }
      const auto move_row = [&](int from, int to) {
        if (use_cache) cache.copy_row(from, to);
      };
      remove_finished(rows, move_row, [&](Row& row) {
        CHECK(std::ssize(row.tokens) == row.number + 1);
        left.push_back(row.number);
      });
      std::ranges::sort(left);
      CHECK(left == leave);
      std::vector<int> stayed;
      for (int r = 0; r < std::ssize(rows); ++r) {
        stayed.push_back(rows[r].number);
        CHECK(std::ssize(rows[r].tokens) == rows[r].number + 1);
        if (use_cache) CHECK(cache.length(r) == rows[r].number + 1);
      }
      std::ranges::sort(stayed);
      CHECK(stayed == stay);
      CHECK(cache.use().copied == (use_cache ? bytes_to_move : 0));
    }
  }
}

TEST_CASE("a row's random numbers move with it") {
  std::vector<Row> rows;
  for (int number = 0; number < 3; ++number) rows.push_back({{321}, std::mt19937(number), number});
  rows[0].finished = FinishReason::kEos;
  remove_finished(
      rows, [](int, int) {}, [](Row&) {});
  REQUIRE(rows.size() == 2);
  for (Row& row : rows) CHECK(row.generator() == std::mt19937(row.number)());
}

TEST_CASE("the texts are what Hugging Face's model makes of each prompt alone, in any order") {
  const auto& cases = reference("batch.json")["cases"];
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int round = 0; round < 3; ++round) {
    Prompts prompts;
    for (const std::size_t i : order) prompts.push_back(cases[i]["prompt_ids"]);
    StaticKvCache cache(tales(), static_cast<int>(prompts.size()));
    for (const bool use_cache : {true, false}) {
      const auto got =
          generated(tales(), prompts, {.stopping = {.max_new_tokens = 40}}, use_cache ? cache : no_cache());
      for (std::size_t row = 0; row < order.size(); ++row) {
        const auto& want = cases[order[row]];
        CAPTURE(want["name"]);
        CHECK(first_difference(tokens_after(prompts[row].size(), got[row].tokens), want["ids"],
                               want["gaps"]) == "");
        CHECK((got[row].finish_reason == FinishReason::kEos) == (want["finish"] == "eos"));
      }
    }
    std::rotate(order.begin(), order.begin() + 2, order.end());
    std::swap(order[0], order[1]);
  }
}

TEST_CASE("rows that leave change no text, for every order of the prompts") {
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
        const auto together = generated(model, prompts, options);
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          TextOptions own = options;
          own.sampling.seed += static_cast<unsigned>(i);
          const Generation alone = generated(model, {prompts[i]}, own)[0];
          CHECK(together[i].tokens == alone.tokens);
          CHECK(together[i].finish_reason == alone.finish_reason);
          ended += alone.finish_reason == FinishReason::kEos;
          outgrown += alone.tokens.size() > 13;
        }
      } while (std::ranges::next_permutation(prompts).found);
    }
  }
  CHECK(ended > 100);
  CHECK(outgrown > 100);
}

TEST_CASE("a sampled text does not depend on its neighbours, nor on when they leave") {
  TextOptions options{
      .stopping = {.max_new_tokens = 25},
      .sampling = {
          .do_sample = true, .seed = 7, .frequency_penalty = 0.3f, .temperature = 0.9f, .top_k = 40}};
  Prompts prompts;
  for (const auto& run : reference("batch.json")["cases"]) prompts.push_back(run["prompt_ids"]);
  const auto together = generated(tales(), prompts, options);
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    TextOptions alone = options;
    alone.sampling.seed += static_cast<unsigned>(row);
    CHECK(generated(tales(), {prompts[row]}, alone)[0].tokens == together[row].tokens);
  }
}

TEST_CASE("finished rows leave the batch, and the others no longer pay for them") {
  // "ending" stops before the others.
  Prompts prompts;
  std::vector<std::size_t> prompt_lengths, new_tokens;
  for (const auto& run : reference("batch.json")["cases"]) {
    prompts.push_back(run["prompt_ids"]);
    prompt_lengths.push_back(prompts.back().size());
    new_tokens.push_back(run["ids"].size());
  }
  const auto counts = passes(prompts, {.stopping = {.max_new_tokens = 40}});
  CHECK(counts == expected_passes(prompt_lengths, new_tokens));
  CHECK(counts.size() == std::ranges::max(new_tokens));
  // Each token is fed once, except the last one of each text, which is never fed.
  CHECK(sum(counts) == sum(prompt_lengths) + sum(new_tokens) - prompts.size());
  CHECK(counts.back() < prompts.size());
  CHECK(sum(new_tokens) == 174);  // of 5 * 40, as in the README
}

TEST_CASE("no new tokens take no pass, and no prompts give no texts") {
  CHECK(passes({{321, 1682}, {1294}}, {.stopping = {.max_new_tokens = 0}}).empty());
  const auto texts = generated(tales(), {{321, 1682}, {1294}}, {.stopping = {.max_new_tokens = 0}});
  CHECK(texts[0].tokens == std::vector<int>{321, 1682});
  CHECK(texts[1].tokens == std::vector<int>{1294});
  CHECK(texts[1].finish_reason == FinishReason::kLength);
  CHECK(generated(tales(), {}, {}).empty());
}

TEST_CASE("texts of 2, 6, 3, 4 and 1 tokens shrink the batch as in the README") {
  const std::vector<int> lengths{2, 6, 3, 4, 1};
  std::vector<Row> rows;
  for (int number = 0; number < std::ssize(lengths); ++number) rows.push_back({{}, {}, number});
  std::vector<std::string> shown;
  int computed = 0, moved = 0;
  while (!rows.empty()) {
    shown.emplace_back();
    for (Row& row : rows) {
      shown.back() += static_cast<char>('A' + row.number);
      row.tokens.push_back(321);
      if (std::ssize(row.tokens) == lengths[row.number]) row.finished = FinishReason::kEos;
      ++computed;
    }
    remove_finished(
        rows, [&](int, int) { ++moved; }, [](Row&) {});
  }
  CHECK(shown == std::vector<std::string>{"ABCDE", "ABCD", "DBC", "DB", "B", "B"});
  CHECK(computed == 16);
  CHECK(moved == 2);
}

TEST_CASE("a cache can serve one batch after another") {
  // "ending" leaves the first batch early, and the last row moves.
  const auto& cases = reference("batch.json")["cases"];
  const Prompts first{cases.back()["prompt_ids"], {1294}, {321, 1682, 11, 5}},
      second{{1294, 259}, {4095}, {5}};
  StaticKvCache cache(tales(), 3);
  const TextOptions options{.stopping = {.max_new_tokens = 20}};
  generated(tales(), first, options, cache);
  CHECK(cache.use().copied > 0);
  const auto texts = generated(tales(), second, options, cache);
  const auto want = generated(tales(), second, options);
  for (std::size_t i = 0; i < second.size(); ++i) CHECK(texts[i].tokens == want[i].tokens);
}

TEST_CASE("the program counts the bytes that moved") {
  // The reference case "ending" leaves after 14 tokens, and the last row moves to its slot with all its
  // positions.
  const std::string ending = reference("batch.json")["cases"].back()["prompt"];
  const auto stats = [&](int count) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    fmt::format("--json --max-new-tokens {} --prompt - --prompt 'The wolf'", count), ending);
    REQUIRE(run.status == 0);
    return run.json()["stats"];
  };
  CHECK(stats(14)["cache_copied_bytes"] == 0);
  const std::size_t position = stats(20)["cache_bytes"].get<std::size_t>() / 2 / tales().config().n_positions;
  CHECK(stats(20)["cache_copied_bytes"] == (2 + 13) * position);  // the newest token is not in the cache yet
}

TEST_CASE("each text comes out in its order, whenever it has left") {
  const std::string ending = reference("batch.json")["cases"].back()["prompt"];  // "-" below
  const auto sequences = [&](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 30 " + arguments, ending);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  std::vector<std::string> prompts{" --prompt ''", " --prompt 'The wolf'", " --prompt -"};
  std::map<std::string, nlohmann::json> alone;
  for (const std::string& prompt : prompts) alone[prompt] = sequences(prompt)[0];
  CHECK(alone[" --prompt -"]["finish_reason"] == "eos");
  std::ranges::sort(prompts);
  do {
    for (const std::string cache : {"", "--no-use-cache"}) {
      const auto together = sequences(cache + prompts[0] + prompts[1] + prompts[2]);
      REQUIRE(together.size() == 3);
      for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(together[i] == alone[prompts[i]]);
    }
  } while (std::ranges::next_permutation(prompts).found);
}
