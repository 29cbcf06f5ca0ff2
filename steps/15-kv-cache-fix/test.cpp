#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Counts = std::vector<std::size_t>;

constexpr OverflowOptions kSlide{.on_overflow = Overflow::kSlide};
constexpr OverflowOptions kRecompute{.on_overflow = Overflow::kRecompute};

/// Options for exactly this many new tokens, even after an end-of-text token.
TextOptions exactly(int count, const OverflowOptions& overflow = {}) {
  return {.stopping = {.max_new_tokens = count, .ignore_eos = true}, .overflow = overflow};
}

/// Returns the new tokens and leaves `cache` as it is after them.
std::vector<int> continued(
    const std::vector<int>& prompt, const TextOptions& options, KvCache& cache,
    const OnToken& on_token = [](const Token&) {}) {
  std::mt19937 generator(options.sampling.seed);
  return tokens_after(prompt.size(), generate(tales(), prompt, options, cache, generator, on_token).tokens);
}

std::vector<int> continued(const std::vector<int>& prompt, const TextOptions& options) {
  StaticKvCache cache(tales());
  return continued(prompt, options, cache);
}

/// A text that fills the context except for `free` positions, and continues plausibly.
std::vector<int> nearly_full(int free) {
  const auto& run = reference("sliding.json");
  std::vector<int> text = run["prompt_ids"], rest = run["ids"];
  text.insert(text.end(), rest.begin(), rest.end());
  text.resize(tales().config().n_positions - free);
  return text;
}

/// Tokens in random order, without repetition, so each window is different.
std::vector<int> random_tokens(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<int> tokens(count);
  for (int& token : tokens) token = static_cast<int>(generator() % 4095);
  return tokens;
}

/// How many tokens went through the model in each of its passes.
Counts passes(const std::vector<int>& prompt, const TextOptions& options) {
  Counts counts;
  const Unobserved at_the_end;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == "embeddings") counts.push_back(values.size() / tales().config().n_embd);
  });
  continued(prompt, options);
  return counts;
}

/// Keys and values of each layer, [1, n_kv_head, n_positions, head_size].
std::vector<std::vector<float>> entries(StaticKvCache& cache) {
  std::vector<std::vector<float>> all;
  for (int l = 0; l < tales().config().n_layer; ++l) {
    for (const Tensor& tensor : {cache.layer(l).keys, cache.layer(l).values})
      tales().device().copy_to_host(tensor, all.emplace_back(tensor.size()));
  }
  return all;
}

}  // namespace

TEST_CASE("without a cache all that the context holds goes through the model") {
  const std::vector<int> text = random_tokens(515, 1);
  for (const std::size_t length : {1u, 511u, 512u, 513u, 515u}) {
    const std::span<const int> tokens = std::span(text).first(length);
    const std::span<const int> fed = tokens_to_feed(tokens, 512, no_cache(), 0, {});
    CHECK(fed.size() == std::min<std::size_t>(length, 512));
    CHECK(&fed.back() == &tokens.back());
  }
}

TEST_CASE("with a cache only unseen tokens go through the model, in a long text the last of them") {
  const std::vector<int> text = random_tokens(515, 1);
  const auto first = [&](std::size_t count) { return std::span(text).first(count); };
  StaticKvCache cache(tales());
  CHECK(tokens_to_feed(first(5), 512, cache, 0, kSlide).size() == 5);
  CHECK(tokens_to_feed(first(515), 512, cache, 0, kSlide).size() == 512);
  CHECK(&tokens_to_feed(first(515), 512, cache, 0, kSlide).back() == &text.back());
  cache.append(0, 5);
  CHECK(&tokens_to_feed(first(6), 512, cache, 0, kSlide).front() == &text[5]);
  CHECK(tokens_to_feed(first(9), 512, cache, 0, kSlide).size() == 4);
  CHECK(cache.length(0) == 5);
}

TEST_CASE("sliding makes as much room as the new tokens need, and no more") {
  const std::vector<int> text = random_tokens(512, 1);
  for (const auto& [length, fresh, left] :
       {std::array{512, 1, 511}, {512, 3, 509}, {511, 1, 511}, {510, 1, 510}, {510, 5, 507}, {0, 512, 0}}) {
    StaticKvCache cache(tales());
    cache.append(0, length);
    const std::span<const int> tokens = std::span(text).last(fresh);
    const std::span<const int> fed = make_room(tokens, text, cache, 0, kSlide);
    CHECK(fed.data() == tokens.data());
    CHECK(fed.size() == tokens.size());
    CHECK(cache.length(0) == left);
  }
}

TEST_CASE("sliding moves each entry to the front and keeps it unchanged") {
  StaticKvCache cache(tales());
  tales().next_logits(nearly_full(0), cache);
  const auto before = entries(cache);
  cache.slide(0, 3);
  CHECK(cache.length(0) == 509);
  const auto after = entries(cache);
  const std::size_t size = tales().config().head_size, head = 512 * size;
  for (std::size_t t = 0; t < before.size(); ++t) {
    for (std::size_t first = 0; first < before[t].size(); first += head) {
      CHECK(std::equal(after[t].data() + first, after[t].data() + first + 509 * size,
                       before[t].data() + first + 3 * size));
    }
  }
  CHECK(cache.use().copied == 509 * cache.use().bytes / 512);
  CHECK(cache.slid(0) == 3);
  cache.slide(0, 1);
  CHECK(cache.slid(0) == 4);
  CHECK(cache.use().copied == (509 + 508) * cache.use().bytes / 512);
}

TEST_CASE("slid positions count until the cache is empty") {
  StaticKvCache cache(tales());
  cache.append(0, 512);
  CHECK(cache.slid(0) == 0);
  cache.slide(0, 5);
  cache.truncate(0, 100);
  CHECK(cache.slid(0) == 5);
  cache.truncate(0, 0);
  CHECK(cache.slid(0) == 0);
  tales().next_logits(std::vector{321, 1682}, cache);
  CHECK(cache.slid(0) == 0);
}

TEST_CASE(
    "recomputing empties a full cache and feeds the last tokens of the window, as many as in --refill") {
  const std::vector<int> window = random_tokens(512, 1);
  for (const int refill : {1, 100, 511, 512}) {
    StaticKvCache cache(tales());
    cache.append(0, 511);
    const std::span<const int> newest = std::span(window).last(1);
    CHECK(make_room(newest, window, cache, 0, {Overflow::kRecompute, refill}).size() == 1);
    CHECK(cache.length(0) == 511);  // there was room
    cache.append(0, 1);
    const std::span<const int> fed = make_room(newest, window, cache, 0, {Overflow::kRecompute, refill});
    CHECK(std::ssize(fed) == refill);
    CHECK(&fed.back() == &window.back());
    CHECK(cache.length(0) == 0);
  }
}

TEST_CASE("recomputing gives the 600 tokens of Hugging Face's model on the sliding window" *
          doctest::skip(kSanitized)) {
  const auto run = reference("sliding.json");
  const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
  const std::vector<double> gaps = run["gaps"];
  TextOptions options = exactly(static_cast<int>(want.size()), kRecompute);
  options.sampling.show_candidates = 2;
  std::vector<double> got_gaps;
  StaticKvCache cache(tales());
  const std::vector<int> got = continued(prompt, options, cache, [&](const Token& token) {
    const auto [first, second] = std::pair(token.candidates[0].probability, token.candidates[1].probability);
    got_gaps.push_back(std::log(static_cast<double>(first) / static_cast<double>(second)));
  });
  CHECK(first_difference(got, want, gaps) == "");
  // The text ends in a loop of six tokens, which a window of another size would also produce. So also compare
  // how much more likely each token was than the second most likely one, as long as the texts are the same.
  const double allowed = tests_are_for_gpu() ? 1e-1 : 5e-3;
  for (std::size_t i = 0; i < gaps.size() && got[i] == want[i]; ++i) {
    CAPTURE(i);
    CHECK(std::abs(got_gaps[i] - gaps[i]) < allowed);
  }
}

TEST_CASE("as long as the context lasts, neither rule changes anything") {
  const std::vector<int> prompt = nearly_full(4);
  const std::vector<int> want = continued(prompt, exactly(5), no_cache());
  CHECK(continued(prompt, exactly(5, kSlide)) == want);
  CHECK(continued(prompt, exactly(5, kRecompute)) == want);
}

TEST_CASE("a token that has left the window still counts for a penalty") {
  std::vector<int> prompt(static_cast<std::size_t>(tales().config().n_positions), 100);
  const auto next = [&](const SamplingOptions& sampling) {
    TextOptions options = exactly(1);
    options.sampling = sampling;
    return continued(prompt, options).back();
  };
  const int best = next({});
  prompt.insert(prompt.begin(), best);  // outside the window: the logits stay the same
  REQUIRE(next({}) == best);
  CHECK(next({.repetition_penalty = 1e30f}) != best);
}

TEST_CASE("sliding feeds one token a pass for ever, recomputing the window that --refill allows") {
  const std::vector<int> prompt = nearly_full(2);
  CHECK(passes(prompt, exactly(6, kSlide)) == Counts{510, 1, 1, 1, 1, 1});
  CHECK(passes(prompt, exactly(6, kRecompute)) == Counts{510, 1, 1, 512, 512, 512});
  CHECK(passes(prompt, exactly(6, {Overflow::kRecompute, 510})) == Counts{510, 1, 1, 510, 1, 1});
  CHECK(passes(prompt, exactly(6, {Overflow::kRecompute, 1})) == Counts{510, 1, 1, 1, 1, 1});
}

TEST_CASE("after the end of the context, the cache is full after each token that slides") {
  for (const int count : {3, 4, 9}) {
    StaticKvCache cache(tales());
    continued(nearly_full(2), exactly(count, kSlide), cache);
    CHECK(cache.length(0) == 512);
  }
}

TEST_CASE("a refilled cache holds the last tokens of the text, and only those") {
  const std::vector<int> prompt = random_tokens(512, 1);
  TextOptions options = exactly(2, {Overflow::kRecompute, 300});
  options.sampling.show_candidates = 1;
  StaticKvCache cache(tales());
  std::vector<int> text = prompt;
  float got = 0.0f;
  continued(prompt, options, cache, [&](const Token& token) {
    text.push_back(token.id);
    got = token.candidates[0].probability;
  });
  CHECK(cache.length(0) == 300);
  text.pop_back();
  const auto likeliest_behind = [&](std::size_t from, std::size_t count) {
    return likeliest(tales().next_logits(std::span(text).subspan(from, count)), 1)[0].probability;
  };
  CHECK(std::abs(got - likeliest_behind(213, 300)) < 1e-6f);
  // Otherwise wrong windows would pass: one token less or more, or the start of the text or of the window.
  CHECK(std::abs(got - likeliest_behind(214, 299)) > 1e-5f);
  CHECK(std::abs(got - likeliest_behind(212, 301)) > 1e-5f);
  CHECK(std::abs(got - likeliest_behind(0, 300)) > 1e-5f);
  CHECK(std::abs(got - likeliest_behind(1, 300)) > 1e-5f);
}

TEST_CASE("a slid cache differs from the window: only recomputing is exact") {
  // The most likely tokens after a text that is longer than the context, and their probabilities.
  const std::vector<int> prompt = nearly_full(0);
  const auto second = [&](const OverflowOptions& overflow, bool use_cache) {
    TextOptions options = exactly(2, overflow);
    options.sampling.show_candidates = 5;
    StaticKvCache cache(tales());
    std::vector<Candidate> last;
    continued(prompt, options, use_cache ? cache : no_cache(),
              [&](const Token& token) { last = token.candidates; });
    return last;
  };
  const auto distance = [](const std::vector<Candidate>& a, const std::vector<Candidate>& b) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < 5; ++i)
      largest = std::max(largest, std::abs(a[i].probability - b[i].probability));
    return largest;
  };
  const auto window = second({}, false);
  CHECK(distance(second(kRecompute, true), window) < 1e-5f);
  CHECK(distance(second(kSlide, true), window) > 1e-3f);
}

TEST_CASE("--no-use-cache takes no memory for a cache") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 2 --no-use-cache");
  REQUIRE(run.status == 0);
  CHECK(run.json()["stats"]["cache_bytes"] == 0);
}

TEST_CASE(
    "the program continues after the context under either rule, and warns about a prompt that is too "
    "long") {
  std::string prompt;
  for (int i = 0; i < 260; ++i) prompt += " and so";  // of two tokens each
  for (const std::string rule : {"slide", "recompute", "recompute --refill 300"}) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    "--json --prompt - --ignore-eos --max-new-tokens 5 --on-overflow " + rule, prompt);
    REQUIRE(run.status == 0);
    CHECK(run.json()["sequences"][0]["token_ids"].size() == 5);
    CHECK(run.err.find("the prompt has 520 tokens, and the model sees only the last 512 of them") !=
          std::string::npos);
  }
}

TEST_CASE("--refill without --on-overflow recompute causes a warning") {
  const std::string arguments = "--model /nonexistent --refill 300";
  const std::string warning = "warning: --refill does nothing without --on-overflow recompute\n";
  CHECK(begins_with(run_program(STAIRCASE_STEP_PROGRAM, arguments).err, warning));
  CHECK(
      begins_with(run_program(STAIRCASE_STEP_PROGRAM, arguments + " --on-overflow recompute").err, "error"));
}

TEST_CASE("impossible options are refused before any token") {
  const std::pair<std::string, std::string> wrong[] = {
      {"--on-overflow grow", "--on-overflow is grow, but it must be one of slide, recompute"},
      {"--on-overflow recompute --refill 0", "--refill is 0, but it must be 1 or more"},
      {"--on-overflow recompute --refill 513", "--refill is 513, but it must be at most the model's 512"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    CHECK(contains(run.err, message));
  }
  const std::string whole = "--max-new-tokens 1 --on-overflow recompute --refill 512";
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, whole).status == 0);
}
