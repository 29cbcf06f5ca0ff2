#include <doctest/doctest.h>

#include "beam_search.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const std::vector<int> kPrompt{321, 1682};

std::vector<Beam> found(Model& model, const std::vector<int>& prompt, const RowOptions& options,
                        int num_beams, bool use_cache = true) {
  StaticKvCache cache(model, num_beams);
  return beam_search(model, tales_tokenizer(), prompt, options, {num_beams}, use_cache ? cache : no_cache());
}

/// The tokens that go through the model in each pass.
std::vector<std::size_t> passes(const std::function<void()>& run) {
  std::vector<std::size_t> counts;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  run();
  return counts;
}

}  // namespace

TEST_CASE("a search may have more beams than half of what an int holds") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  const auto found =
      beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 1 << 30}, no_cache());
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(kPrompt)));
}

TEST_CASE("each new beam gets its parent's entries, with the fewest copies, wherever its parent is") {
  // All parents that up to five beams can have among up to five rows.
  for (int rows = 1; rows <= 5; ++rows) {
    for (int beams = 0; beams <= 5; ++beams) {
      for (int code = 0; code < std::pow(rows, beams); ++code) {
        std::vector<int> parents;
        for (int i = 0, rest = code; i < beams; ++i, rest /= rows) parents.push_back(rest % rows);
        const std::vector<int> assigned = assign_rows(parents);
        REQUIRE(assigned.size() == parents.size());
        std::vector<int> sorted = assigned;
        std::ranges::sort(sorted);
        for (int row = 0; row < beams; ++row) REQUIRE(sorted[row] == row);  // each row has one beam
        // The copies may be made in any order: here in that of the beams, and in reverse.
        for (const bool backwards : {false, true}) {
          std::vector<int> entries(std::max(rows, beams), -1);
          for (int i = 0; i < rows; ++i) entries[i] = i;
          int copies = 0;
          std::set<int> staying;
          for (int i = 0; i < beams; ++i) {
            const int beam = backwards ? beams - 1 - i : i;
            if (parents[beam] < beams) staying.insert(parents[beam]);
            if (parents[beam] == assigned[beam]) continue;
            entries[assigned[beam]] = entries[parents[beam]];
            ++copies;
          }
          bool right = copies == beams - std::ssize(staying);
          for (int beam = 0; beam < beams; ++beam) right = right && entries[assigned[beam]] == parents[beam];
          REQUIRE(right);
        }
      }
    }
  }
}

TEST_CASE("beams move into their rows in the order of their sums, and only those that must") {
  StaticKvCache cache(tales(), 4);
  for (int row = 0; row < 4; ++row) cache.append(row, 10 + row);
  std::vector<Beam> beams;
  for (const int parent : {2, 2, 0, 2}) {
    beams.push_back({{parent}, StopFilter({}, tales_tokenizer())});
    beams.back().row = parent;
  }
  into_rows(beams, cache);
  std::vector<int> rows, lengths;
  for (const Beam& beam : beams) {
    rows.push_back(beam.row);
    lengths.push_back(cache.length(beam.row));
  }
  CHECK(rows == std::vector<int>{2, 1, 0, 3});
  CHECK(lengths == std::vector<int>{12, 12, 10, 12});
  const std::size_t position = cache.use().bytes / 4 / static_cast<std::size_t>(cache.capacity());
  CHECK(cache.use().copied == 2 * 12 * position);
}

TEST_CASE("the search with a cache finds what Hugging Face's finds, with the same scores") {
  int compared = 0;
  for (const auto& one : reference("beam.json")["cases"]) {
    if (one["length_penalty"] != 1 || one["margin"] < 1e-4) continue;  // ten times the noise of float32
    CAPTURE(one["name"].get<std::string>());
    std::vector<Scored> want;
    for (const auto& beam : one["beams"]) want.push_back({beam["ids"], beam["score"]});
    const RowOptions options{{.stopping = {.max_new_tokens = one["max_new_tokens"]}}};
    CHECK(difference_from_texts(found(tales(), one["prompt_ids"], options, one["num_beams"]), want) == "");
    ++compared;
  }
  CHECK(compared == 3);
}

TEST_CASE("for every number of beams the rows hold what the plain search computes from scratch") {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = random_model(seed, 11, 37, 1 + static_cast<int>(seed) % 3), twins = model_of_twins(seed);
    for (const int num_beams : {1, 2, 3, 5, 8}) {
      CAPTURE(seed);
      CAPTURE(num_beams);
      const RowOptions options{{.stopping = {.max_new_tokens = 12}}};
      const PlainSearch plain{.num_beams = num_beams, .max_new_tokens = 12};
      CHECK(difference_from_texts(found(model, {3, 1}, options, num_beams),
                                  plain_beam_search(model, {3, 1}, plain)) == "");
      // If texts are equal, the order of their rows must decide nothing.
      CHECK(difference_from_texts(found(twins, {3, 1}, options, num_beams),
                                  plain_beam_search(twins, {3, 1}, plain)) == "");
    }
  }
}

TEST_CASE("the cache changes nothing, and few of its rows are copied") {
  const RowOptions options{{.stopping = {.max_new_tokens = 30, .ignore_eos = true}}};
  StaticKvCache cache(tales(), 5);
  const std::vector<Beam> with = beam_search(tales(), tales_tokenizer(), kPrompt, options, {5}, cache);
  const std::vector<Beam> without = found(tales(), kPrompt, options, 5, false);
  REQUIRE(with.size() == 5);
  REQUIRE(without.size() == 5);
  for (std::size_t i = 0; i < with.size(); ++i) CHECK(with[i].tokens == without[i].tokens);
  // All rows, after every token but the last: 2 + 3 + … + 30 positions each.
  const std::size_t row = cache.use().bytes / 5 / static_cast<std::size_t>(cache.capacity());
  CHECK(cache.use().copied < row * 5 * (2 + 30) * 29 / 2 * 7 / 10);
  CHECK(cache.use().copied > 0);
}

TEST_CASE("the prompt goes through the model once, and then one token of each beam") {
  const std::vector<int> prompt = reference("beam.json")["cases"][0]["prompt_ids"];
  const RowOptions options{{.stopping = {.max_new_tokens = 6, .ignore_eos = true}}};
  CHECK(passes([&] { found(tales(), prompt, options, 4); }) ==
        std::vector<std::size_t>{prompt.size(), 4, 4, 4, 4, 4});
  const std::size_t n = prompt.size();
  CHECK(passes([&] { found(tales(), prompt, options, 4, false); }) ==
        std::vector<std::size_t>{n, 4 * n + 4, 4 * n + 8, 4 * n + 12, 4 * n + 16, 4 * n + 20});
}

TEST_CASE("a cache that another search has filled is as good as a new one") {
  const RowOptions options{{.stopping = {.max_new_tokens = 12, .ignore_eos = true}}};
  const auto texts = [&](const std::vector<int>& prompt, KvCache& cache) {
    std::vector<std::vector<int>> all;
    for (const Beam& beam : beam_search(tales(), tales_tokenizer(), prompt, options, {3}, cache))
      all.push_back(beam.tokens);
    return all;
  };
  StaticKvCache cache(tales(), 3);
  for (const std::vector<int>& prompt : Prompts{kPrompt, {1294, 259, 11}, kPrompt}) {
    StaticKvCache fresh(tales(), 3);
    CHECK(texts(prompt, cache) == texts(prompt, fresh));
  }
}

TEST_CASE("a search continues after the end of the context, and with a prompt that is longer") {
  Model model = random_model(4, 11, 13);
  for (const int length : {1, 12, 13, 14, 40}) {
    CAPTURE(length);
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % 7);
    RowOptions options{{.stopping = {.max_new_tokens = 20, .ignore_eos = true},
                        .overflow = {.on_overflow = Overflow::kRecompute}}};
    const std::vector<Beam> with = found(model, prompt, options, 3);
    const std::vector<Beam> without = found(model, prompt, options, 3, false);
    REQUIRE(with.size() == 3);
    REQUIRE(without.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(with[i].tokens == without[i].tokens);
    options.overflow.on_overflow = Overflow::kSlide;
    CHECK(found(model, prompt, options, 3)[0].chosen.size() == 20);
    options.overflow = {Overflow::kRecompute, 5};
    CHECK(found(model, prompt, options, 3)[0].chosen.size() == 20);
  }
}

TEST_CASE("stop sequences and log-probabilities follow their beams from row to row") {
  RowOptions options{{.stopping = {.max_new_tokens = 30}}};
  options.stop = {{"ing", "."}};
  options.logprobs.count = 1;
  const std::vector<Beam> with = found(tales(), kPrompt, options, 4);
  const std::vector<Beam> without = found(tales(), kPrompt, options, 4, false);
  REQUIRE(with.size() == without.size());
  for (std::size_t i = 0; i < with.size(); ++i) {
    REQUIRE(with[i].tokens == without[i].tokens);
    double sum = 0.0;
    for (std::size_t t = 0; t < with[i].chosen.size(); ++t) {
      CHECK(with[i].chosen[t].text == without[i].chosen[t].text);
      sum += *with[i].chosen[t].logprobs->own;
    }
    CHECK(sum == doctest::Approx(with[i].sum).epsilon(1e-5));
  }
}

TEST_CASE("the program has a row of the cache for each beam, and without a cache finds the same") {
  const auto json = [](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 20 --prompt The " + arguments);
    REQUIRE(run.status == 0);
    return run.json();
  };
  const auto four = json("--num-beams 4"), one = json("");
  CHECK(four["stats"]["cache_bytes"] == 4 * one["stats"]["cache_bytes"].get<std::size_t>());
  const auto without = json("--num-beams 4 --no-use-cache");
  CHECK(without["stats"]["cache_bytes"] == 0);
  CHECK(without["sequences"][0]["token_ids"] == four["sequences"][0]["token_ids"]);
  const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 33");
  CHECK(refused.status == 2);
  CHECK(refused.err ==
        "error: --max-batch-size is 32, but it must be 33 or more, the value of --num-beams\n");
  CHECK(run_program(STAIRCASE_STEP_PROGRAM,
                    "--num-beams 33 --max-batch-size 33 --max-new-tokens 2 --prompt The")
            .status == 0);
}
