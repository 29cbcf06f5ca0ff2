#include <doctest/doctest.h>

#include <algorithm>

#include "generate.h"
#include "memory_estimate.h"
#include "tests/error_message.h"
#include "tests/huge_model.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// Options for exactly this many new tokens, even after an end-of-text token.
TextOptions exactly(int count, const OverflowOptions& overflow = {}) {
  return {.stopping = {.max_new_tokens = count, .ignore_eos = true}, .overflow = overflow};
}

/// The new tokens of each text.
Prompts continued(const Prompts& prompts, const TextOptions& options, KvCache& cache) {
  const auto texts = generate(tales(), prompts, options, cache, [](int, const Token&) {});
  Prompts result;
  for (std::size_t i = 0; i < texts.size(); ++i)
    result.push_back(tokens_after(prompts[i].size(), texts[i].tokens));
  return result;
}

Prompts continued(const Prompts& prompts, const TextOptions& options) {
  StaticKvCache cache(tales(), static_cast<int>(prompts.size()));
  return continued(prompts, options, cache);
}

/// The prompts of the reference, of many lengths.
Prompts reference_prompts() {
  Prompts prompts;
  for (const auto& run : reference("batch.json")["cases"]) prompts.push_back(run["prompt_ids"]);
  return prompts;
}

/// The tokens that go through the model in each pass.
std::vector<std::size_t> passes(const Prompts& prompts, const TextOptions& options) {
  std::vector<std::size_t> counts;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  continued(prompts, options);
  return counts;
}

}  // namespace

TEST_CASE("a batch may have more logits than an int can number") {
  Model model = huge_model();
  const auto texts = generate(model, huge_prompts(), exactly(1), no_cache(), [](int, const Token&) {});
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row].tokens == std::vector<int>{0, row + 1});
}

TEST_CASE("a token that has left the window still counts for a penalty") {
  std::vector<int> prompt(static_cast<std::size_t>(tales().config().n_positions), 100);
  const auto next = [&](const SamplingOptions& sampling) {
    TextOptions options = exactly(1);
    options.sampling = sampling;
    return continued({prompt}, options)[0].back();
  };
  const int best = next({});
  prompt.insert(prompt.begin(), best);  // outside the window: the logits stay the same
  REQUIRE(next({}) == best);
  CHECK(next({.repetition_penalty = 1e30f}) != best);
}

TEST_CASE("each row of a full cache makes room for itself") {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - 2);
  for (const OverflowOptions overflow :
       {OverflowOptions{Overflow::kSlide}, {Overflow::kRecompute}, {Overflow::kRecompute, 300}}) {
    const TextOptions options = exactly(6, overflow);
    StaticKvCache cache(tales(), 3);
    const Prompts together = continued({{321, 1682}, text, {1294}}, options, cache);
    CHECK(together[0] == continued({{321, 1682}}, options)[0]);
    CHECK(together[1] == continued({text}, options)[0]);
    CHECK(together[2] == continued({{1294}}, options)[0]);
    // The newest token has not been in the cache.
    CHECK(cache.length(0) == 7);
    CHECK(cache.length(1) == (overflow.refill ? 302 : 512));
    CHECK(cache.length(2) == 6);
  }
}

TEST_CASE(
    "a row makes as much room as its new tokens need, feeds its last ones, and leaves the others alone") {
  const std::vector<int> window(512, 321);
  for (const int needed : {1, 3}) {
    const std::span<const int> fresh = std::span(window).last(needed);
    StaticKvCache cache(tales(), 2);
    cache.append(0, 512);
    cache.append(1, 511);
    const std::span<const int> fed = make_room(fresh, window, cache, 1, {Overflow::kSlide});
    CHECK(fed.data() == fresh.data());
    CHECK(std::ssize(fed) == needed);
    CHECK(cache.length(0) == 512);
    CHECK(cache.length(1) == 512 - needed);
    const std::span<const int> anew = make_room(fresh, window, cache, 0, {Overflow::kRecompute, 100});
    CHECK(anew.size() == 100);
    CHECK(&anew.back() == &window.back());
    CHECK(cache.length(0) == 0);
    CHECK(cache.length(1) == 512 - needed);
  }
}

TEST_CASE("sliding a row, and copying one to another, moves its entries and nothing else") {
  StaticKvCache cache(tales(), 3);
  const Prompts texts{{321, 1682, 11, 5, 9}, {1294, 7}, {44, 45, 46, 47}};
  const std::vector<std::span<const int>> rows(texts.begin(), texts.end());
  tales().next_logits(rows, cache);
  // Positions from .. to - 1 of a row in each head, in the keys and values of every layer.
  const auto entries = [&](int row, int from, int to) {
    const std::size_t size = tales().config().head_size;
    std::vector<std::vector<float>> all;
    for (int l = 0; l < tales().config().n_layer; ++l) {
      for (const Tensor& tensor : {cache.layer(l).keys, cache.layer(l).values}) {
        const Tensor of_row = tensor.rows(row, 1);
        std::vector<float> values(of_row.size());
        tales().device().copy_to_host(of_row, values);
        for (auto head = values.begin(); head != values.end(); head += 512 * size)
          all.emplace_back(head + from * size, head + to * size);
      }
    }
    return all;
  };
  const std::size_t position = cache.use().bytes / 3 / 512;
  const auto first = entries(0, 0, 5), second = entries(1, 0, 2), third = entries(2, 0, 4);
  const auto end_of_first = entries(0, 2, 5);
  cache.slide(0, 2);
  CHECK(cache.length(0) == 3);
  CHECK(entries(0, 0, 3) == end_of_first);
  CHECK(entries(1, 0, 2) == second);
  CHECK(entries(2, 0, 4) == third);
  CHECK(cache.use().copied == 3 * position);
  cache.copy_row(2, 1);
  CHECK(cache.length(1) == 4);
  CHECK(entries(1, 0, 4) == third);
  CHECK(entries(0, 0, 3) == end_of_first);
  CHECK(entries(2, 0, 4) == third);
  CHECK(cache.use().copied == 7 * position);
}

TEST_CASE("each row counts the positions that have slid out of it, and a copy has the same count") {
  StaticKvCache cache(tales(), 3);
  for (int row = 0; row < 3; ++row) cache.append(row, 9);
  cache.slide(0, 2);
  cache.slide(2, 5);
  const auto slid = [&] { return std::vector{cache.slid(0), cache.slid(1), cache.slid(2)}; };
  CHECK(slid() == std::vector{2, 0, 5});
  cache.copy_row(0, 1);
  cache.truncate(0, 3);
  CHECK(slid() == std::vector{2, 2, 5});
  cache.truncate(2, 0);
  CHECK(slid() == std::vector{2, 2, 0});
  const std::vector<int> one{7};
  tales().next_logits(std::vector<std::span<const int>>(3, one), cache);
  CHECK(slid() == std::vector{2, 2, 0});
}

TEST_CASE("a cache of many rows takes that many times the memory of one") {
  const ModelConfig& config = tales().config();
  CHECK(StaticKvCache(tales()).use().bytes == cache_bytes(config, DType::kFloat32, config.n_positions));
  CHECK(StaticKvCache(tales(), 5).use().bytes == 5 * StaticKvCache(tales()).use().bytes);
}

TEST_CASE("the rows of a batch are what Hugging Face's model makes of each prompt alone, in any order") {
  const auto& cases = reference("batch.json")["cases"];
  std::vector<std::size_t> order(cases.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (int round = 0; round < 3; ++round) {
    Prompts prompts;
    for (const std::size_t i : order) prompts.push_back(cases[i]["prompt_ids"]);
    for (const bool use_cache : {true, false}) {
      StaticKvCache cache(tales(), static_cast<int>(prompts.size()));
      const TextOptions options{.stopping = {.max_new_tokens = 40}};
      const Prompts got = continued(prompts, options, use_cache ? cache : no_cache());
      for (std::size_t row = 0; row < order.size(); ++row) {
        const auto& want = cases[order[row]];
        CAPTURE(want["name"]);
        CHECK(first_difference(got[row], want["ids"], want["gaps"]) == "");
      }
    }
    std::rotate(order.begin(), order.begin() + 2, order.end());
    std::swap(order[0], order[1]);
  }
}

TEST_CASE("a sampled text does not depend on its neighbours") {
  const TextOptions options{.stopping = {.max_new_tokens = 25},
                            .sampling = {.do_sample = true, .frequency_penalty = 0.3f, .top_k = 40}};
  const Prompts prompts = reference_prompts();
  const Prompts together = continued(prompts, options);
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    TextOptions alone = options;
    alone.sampling.seed += static_cast<unsigned>(row);
    CHECK(continued({prompts[row]}, alone)[0] == together[row]);
  }
}

TEST_CASE("all rows go through the model together, each pass with what is new to each of them") {
  const Prompts prompts{{321, 1682, 11, 5}, {1294}, {7, 8}};
  CHECK(passes(prompts, exactly(4)) == std::vector<std::size_t>{7, 3, 3, 3});
}

TEST_CASE("a text ends where it would end alone, while the others go on") {
  const auto& cases = reference("batch.json")["cases"];
  for (const bool use_cache : {true, false}) {
    Prompts reported(cases.size());
    StaticKvCache cache(tales(), static_cast<int>(cases.size()));
    const auto texts = generate(tales(), reference_prompts(), {.stopping = {.max_new_tokens = 40}},
                                use_cache ? cache : no_cache(),
                                [&](int row, const Token& token) { reported[row].push_back(token.id); });
    REQUIRE(texts.size() == cases.size());
    for (std::size_t row = 0; row < cases.size(); ++row) {
      CAPTURE(cases[row]["name"]);
      const bool by_eos = cases[row]["finish"] == "eos";
      CHECK(texts[row].finish_reason == (by_eos ? FinishReason::kEos : FinishReason::kLength));
      CHECK(reported[row] == tokens_after(cases[row]["prompt_ids"].size(), texts[row].tokens));
      CHECK(reported[row].size() == cases[row]["ids"].size());
    }
  }
}

TEST_CASE("a run is over when its last text is, and without a new token before it begins") {
  for (const auto& run : reference("batch.json")["cases"]) {
    if (run["finish"] != "eos") continue;
    const TextOptions options{.stopping = {.max_new_tokens = 1000}};
    CHECK(passes({run["prompt_ids"], run["prompt_ids"]}, options).size() == run["ids"].size());
  }
  CHECK(passes({{321}, {7, 8}}, exactly(0)).empty());
  CHECK(continued({{321}, {7, 8}}, exactly(0)) == Prompts{{}, {}});
}

TEST_CASE("a finished text feeds its newest token again, and the others feed what is new to them") {
  const std::vector<int> text{321, 1682, 11, 5};
  StaticKvCache cache(tales(), 2);
  cache.append(1, 4);  // all of it
  CHECK(tokens_to_feed(text, 512, cache, 0, {}).size() == 4);
  INFO("a row that lacks no token feeds its newest again");
  const std::span<const int> fed = tokens_to_feed(text, 512, cache, 1, {});
  REQUIRE(fed.size() == 1);
  CHECK(&fed.back() == &text.back());
  CHECK(cache.length(1) == 3);
}

TEST_CASE("a cache can serve one batch after another") {
  const Prompts first{{321, 1682, 11, 5}, {1294}}, second{{1294, 259}, {321, 1682, 11, 5}};
  StaticKvCache cache(tales(), 2);
  continued(first, exactly(6), cache);
  CHECK(continued(second, exactly(6), cache) == continued(second, exactly(6)));
}

TEST_CASE("all texts of a prompt equal those that it begins alone with their own seed") {
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                       "--json --ignore-eos --max-new-tokens 12 --do-sample " + arguments);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  const std::string wolf = "--prompt 'The wolf' ", once = "--prompt 'Once upon a time there was' ";
  const auto together = sequences(wolf + once + "--seed 5 --num-return-sequences 3");
  REQUIRE(together.size() == 6);
  for (int text = 0; text < 6; ++text) {
    const std::string& prompt = text < 3 ? wolf : once;
    CHECK(sequences(prompt + fmt::format("--seed {}", 5 + text))[0] == together[text]);
  }
  CHECK(together[0] != together[1]);
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
}

TEST_CASE("the texts come out one after another, and wrong usage is refused") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 3 --prompt The --prompt Once");
  CHECK(begins_with(run.out, "[1]\n"));
  CHECK(contains(run.out, "\n\n[2]\n"));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompts /nonexistent").status == 1);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompts -", "").status == 1);
  const ProgramRun copies =
      run_program(STAIRCASE_STEP_PROGRAM, "--prompt The --prompt Once --num-return-sequences 2");
  CHECK(copies.status == 2);
  CHECK(begins_with(copies.err, "error: --num-return-sequences 2 needs --do-sample"));
  CHECK(copies.out.empty());
}

TEST_CASE("one warning covers all prompts that are too long for the context") {
  std::string words;
  for (int i = 0; i < 260; ++i) words += " and so";  // of two tokens each
  const std::string options = "--json --max-new-tokens 2 --ignore-eos --prompts -";
  const auto warned = [&](const std::string& lines) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, options, lines);
    CHECK(run.status == 0);
    const std::size_t begin = run.err.find("warning: ");
    return begin == run.err.npos ? ""
                                 : run.err.substr(begin, run.err.rfind('\n', run.err.size() - 2) - begin);
  };
  const std::string seen = " has 520 tokens, and the model sees only the last 512 of them";
  CHECK(warned("The wolf\n") == "");
  CHECK(warned(words) == "warning: the prompt" + seen);
  CHECK(warned("The wolf\n" + words) == "warning: prompt 2" + seen);
  CHECK(warned("The wolf\n" + words + "\nThe fox\n" + words + "\n" + words) ==
        "warning: prompt 2" + seen + "; 2 more are also too long");
}
