// Blocks of layers with a window leave when the window has passed them, and no logit changes.
#include "common/decoding/windowed_kv_cache.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/decoding/ended_texts.h"
#include "drafts.h"
#include "static_kv_cache.h"
#include "tests/error_message.h"
#include "tests/same_logits.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Tokens = std::vector<int>;

/// Layers 0 to 2 see 64 positions, layer 3 all 512.
Model& windowed() {
  static Model model = Model::load(find_model("tales-window-1m"), make_test_device(2));
  return model;
}

Tokens random_tokens(std::mt19937& generator, int count) {
  Tokens tokens(count);
  for (int& token : tokens) token = std::uniform_int_distribution(1, 3999)(generator);
  return tokens;
}

Tokens joined(Tokens text, const Tokens& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

/// Of a row that is reserved, and fed without the tokens that the cache has.
std::vector<float> logits_after(Model& model, PagedKvCache& cache, const Tokens& text) {
  REQUIRE(cache.reserve(0, static_cast<int>(text.size())));
  const std::span<const int> fed = std::span(text).subspan(cache.length(0));
  const std::span<const float> logits = model.next_logits(fed, cache);
  const std::vector<float> copy(logits.begin(), logits.end());
  cache.remember(0, fed);
  return copy;
}

std::vector<float> whole(Model& model, const Tokens& text) {
  const std::span<const float> logits = model.next_logits(text);
  return {logits.begin(), logits.end()};
}

RowOptions sampled(int count, unsigned seed) {
  RowOptions options;
  options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  options.sampling = {.do_sample = true, .seed = seed};
  return options;
}

/// Texts that grow as in a server.
template <typename Cache>
struct Server {
  Cache cache;
  EndedTexts engine;
  std::map<int, Tokens> grown;
  DraftingScheduler scheduler;

  Server(int slots, Cache held, const PrefillOptions& prefill, bool prefix_caching = true)
      : cache(std::move(held)),
        engine(windowed(), cache, slots, prefix_caching),
        scheduler(
            engine, tales_tokenizer(), slots, prefill, [](int, const Token&) {},
            [this](int number, const Generation& text) { grown[number] = text.tokens; }) {}
};

}  // namespace

TEST_CASE("rows of any lengths have the logits of a whole cache, whatever they feed at once and take back") {
  std::mt19937 generator(1);
  const auto random = [&](int from, int to) { return std::uniform_int_distribution(from, to)(generator); };
  for (int trial = 0; trial < (kSanitized ? 2 : 6); ++trial) {
    CAPTURE(trial);
    constexpr int kRows = 3;
    StaticKvCache want(windowed(), kRows);
    WindowedKvCache got(windowed(), kRows, kRows * 32);
    std::vector<Tokens> texts(kRows);
    for (int pass = 0; pass < 40; ++pass) {
      CAPTURE(pass);
      std::vector<Tokens> fed(kRows);
      for (int row = 0; row < kRows; ++row) {
        const int room = 512 - static_cast<int>(texts[row].size());
        const int most = random(0, 3) == 0 ? 300 : 5;
        fed[row] = random_tokens(generator, std::min(room, random(row == 0 ? 1 : 0, most)));
        texts[row] = joined(texts[row], fed[row]);
        REQUIRE(got.reserve(row, static_cast<int>(texts[row].size())));
      }
      if (std::ranges::all_of(fed, [](const Tokens& one) { return one.empty(); })) break;
      const std::vector<std::span<const int>> sequences(fed.begin(), fed.end());
      const std::span<const float> logits = windowed().next_logits(sequences, want);
      const std::vector<float> copy(logits.begin(), logits.end());
      const std::span<const float> others = windowed().next_logits(sequences, got);
      const std::size_t size = copy.size() / kRows;
      for (int row = 0; row < kRows; ++row) {
        if (fed[row].empty()) continue;  // it rests
        CHECK(other_logits(others.subspan(row * size, size), std::span(copy).subspan(row * size, size)) ==
              "");
        // Some of the new tokens were guesses.
        const int back = random(0, 1) == 0 ? random(0, static_cast<int>(std::ssize(fed[row])) - 1) : 0;
        const int length = static_cast<int>(texts[row].size()) - back;
        if (back > 5 && random(0, 1) == 0) continue;
        texts[row].resize(length);
        want.truncate(row, length);
        got.truncate(row, length);
        if (got.length(row) == length) continue;
        CHECK(got.length(row) == 0);  // a long prompt went through the model in parts
        want.truncate(row, 0);
        texts[row].clear();
      }
      if (pass % 7 == 3) {
        got.swap_rows(1, 2);
        StaticKvCache swapped(windowed(), kRows);
        std::swap(texts[1], texts[2]);
        for (int row = 0; row < kRows; ++row) want.truncate(row, 0);
        std::vector<std::span<const int>> again(texts.begin(), texts.end());
        if (!texts[0].empty()) windowed().next_logits(again, want);
      }
    }
  }
}

TEST_CASE("a layer with a window holds no more blocks than its window and a pass need") {
  Model& model = windowed();
  const std::size_t block = 2 * 16 * model.config().key_bytes(DType::kFloat32);  // of a layer
  // 63 positions before a pass of 256 tokens, wherever a block begins: 20 or 21 blocks, and two tables.
  CHECK(WindowedKvCache(model, 1, 32).use().bytes == block * (3 * 21 + 32) + 2 * 32 * 4);
  CHECK(WindowedKvCache(model, 9, 4 * 32, 4).use().bytes == block * (3 * 4 * 21 + 4 * 32) + 9 * 2 * 32 * 4);
  // No more than there are for the other layer.
  CHECK(WindowedKvCache(model, 2, 24).use().bytes == block * 4 * 24 + 2 * 2 * 32 * 4);
  CHECK(PagedKvCache(model, 1, 32).use().bytes == block * 4 * 32 + 32 * 4);
  // Without windows both are the same.
  CHECK(WindowedKvCache(tales(), 2, 40).use().bytes == PagedKvCache(tales(), 2, 40).use().bytes);
  CHECK(WindowedKvCache(tales(), 2, 40).most_at_once() == PagedKvCache(tales(), 2, 40).most_at_once());
}

TEST_CASE("a text shares a prefix whose window is still there, and computes it if it is not") {
  std::mt19937 generator(2);
  Model& model = windowed();
  const Tokens common = random_tokens(generator, 240), end = random_tokens(generator, 160);
  const Tokens first = joined(common, end), second = joined(common, random_tokens(generator, 30));
  WindowedKvCache cache(model, 1, 96);
  CHECK(other_logits(logits_after(model, cache, first), whole(model, first)) == "");
  cache.truncate(0, 0);
  cache.share(0, second);
  CHECK(cache.length(0) == 240);
  CHECK(other_logits(logits_after(model, cache, second), whole(model, second)) == "");

  // Other texts take the second pool's 21 blocks, while the first pool still has the prefix.
  for (int text = 0; text < 2; ++text) {
    cache.truncate(0, 0);
    logits_after(model, cache, random_tokens(generator, 330));
  }
  cache.truncate(0, 0);
  cache.share(0, second);
  CHECK(cache.length(0) == 0);
  CHECK(other_logits(logits_after(model, cache, second), whole(model, second)) == "");
}

TEST_CASE("a prefix ends where both pools have all that its next token sees") {
  std::mt19937 generator(3);
  Model& model = windowed();
  const Tokens text = random_tokens(generator, 400);
  // 400 tokens in two passes: of the first 256, the second pool gives up what it needs itself.
  WindowedKvCache cache(model, 1, 96);
  logits_after(model, cache, text);
  cache.truncate(0, 0);
  for (int length = 17; length <= 400; length += 9) {
    CAPTURE(length);
    const Tokens other = joined(Tokens(text.begin(), text.begin() + length), random_tokens(generator, 5));
    WindowedKvCache& shared = cache;
    shared.share(0, other);
    CHECK(shared.length(0) % 16 == 0);
    CHECK(shared.length(0) <= length);
    if (length >= 256) CHECK(shared.length(0) == length / 16 * 16);
    REQUIRE(shared.reserve(0, length + 5));
    const std::span<const float> logits =
        model.next_logits(std::span(other).subspan(shared.length(0)), shared);
    const std::vector<float> copy(logits.begin(), logits.end());
    CHECK(other_logits(copy, whole(model, other)) == "");
    shared.truncate(0, 0);  // what is not remembered is not found
    if (length < 256) logits_after(model, shared, text), shared.truncate(0, 0);
  }
}

TEST_CASE("a row that goes back further than it has blocks is empty, and computed again") {
  std::mt19937 generator(4);
  Model& model = windowed();
  const Tokens text = random_tokens(generator, 300);
  WindowedKvCache cache(model, 1, 32);
  logits_after(model, cache, text);
  cache.truncate(0, 290);
  CHECK(cache.length(0) == 290);
  CHECK(other_logits(logits_after(model, cache, text), whole(model, text)) == "");
  cache.truncate(0, 100);
  CHECK(cache.length(0) == 0);
  CHECK(cache.blocks(0) == 0);
  CHECK(other_logits(logits_after(model, cache, text), whole(model, text)) == "");
}

TEST_CASE("rejected drafts leave, and the row keeps all that it has computed") {
  std::mt19937 generator(6);
  const Tokens text = random_tokens(generator, 200);
  WindowedKvCache cache(windowed(), 1, 32);
  for (int length = 0; length < 190; ++length) {
    REQUIRE(cache.reserve(0, length + 6));
    windowed().next_logits(std::span(text).subspan(length, 6), cache);
    cache.remember(0, std::span(text).subspan(length, 1));
    cache.truncate(0, length + 1);
    CHECK(cache.length(0) == length + 1);
  }
  CHECK(other_logits(logits_after(windowed(), cache, text), whole(windowed(), text)) == "");
}

TEST_CASE("a row that has gone back keeps what it needs when another one is short of blocks") {
  std::mt19937 generator(7);
  const Tokens text = random_tokens(generator, 356);
  WindowedKvCache cache(windowed(), 3, 96, 2);  // 42 blocks for layers with a window
  REQUIRE(cache.reserve(0, 356));
  windowed().next_logits(std::span(text).first(100), cache);
  windowed().next_logits(std::span(text).subspan(100), cache);
  cache.truncate(0, 20);
  CHECK(cache.length(0) == 20);
  REQUIRE(cache.reserve(2, 500));
  CHECK_FALSE(cache.reserve(1, 20 * 16));  // the others have two and 21 of them
  CHECK(cache.blocks(1) == 0);
  REQUIRE(cache.reserve(1, 19 * 16));
  REQUIRE(cache.reserve(0, 21));
  const std::span<const float> logits = windowed().next_logits(std::span(text).subspan(20, 1), cache);
  const std::vector<float> copy(logits.begin(), logits.end());
  CHECK(other_logits(copy, whole(windowed(), Tokens(text.begin(), text.begin() + 21))) == "");
  CHECK_FALSE(cache.reserve(0, 33));
  cache.truncate(1, 0);
  CHECK(cache.reserve(0, 33));
}

TEST_CASE("a text from a file is not taken back if the blocks before its part of the file are not there") {
  WindowedKvCache cache(windowed(), 1, 32);
  CHECK(!cache.take_back(0, Tokens(40, 7), 16).has_value());
  CHECK(cache.length(0) == 0);
  CHECK(cache.blocks(0) == 0);
  CHECK(cache.take_back(0, Tokens(40, 7), 0) == std::optional(0));
  CHECK(cache.length(0) == 40);
}

TEST_CASE("other tokens after going back can be shared as well") {
  std::mt19937 generator(8);
  const Tokens first = random_tokens(generator, 70), rest = random_tokens(generator, 60);
  const Tokens second = joined(Tokens(first.begin(), first.begin() + 16), rest);
  WindowedKvCache cache(windowed(), 1, 32);
  logits_after(windowed(), cache, first);
  cache.truncate(0, 20);
  CHECK(cache.length(0) == 16);
  logits_after(windowed(), cache, second);
  cache.truncate(0, 0);
  cache.share(0, second);
  CHECK(cache.length(0) == 64);
  CHECK(other_logits(logits_after(windowed(), cache, second), whole(windowed(), second)) == "");
}

TEST_CASE(
    "a server's texts are those of a whole paged cache, with shared beginnings, drafts and few blocks") {
  std::mt19937 generator(5);
  const auto random = [&](int from, int to) { return std::uniform_int_distribution(from, to)(generator); };
  const Tokens common = random_tokens(generator, 200);
  std::int64_t drafted = 0;
  for (const bool few : {false, true}) {
    for (const bool prefix_caching : {true, false}) {
      CAPTURE(few);
      CAPTURE(prefix_caching);
      constexpr int kSlots = 3, kKept = 4;
      const int blocks = few ? 40 : kSlots * 32;
      const PrefillOptions prefill = {.chunk = few ? std::optional(70) : std::nullopt};
      Server got(kSlots, WindowedKvCache(windowed(), kSlots + kKept, blocks, kSlots), prefill,
                 prefix_caching);
      Server want(kSlots, PagedKvCache(windowed(), kSlots, kSlots * 32), {}, false);
      got.scheduler.lookup = {.num_tokens = 5, .ngram = 1};
      std::vector<Tokens> talks;
      for (int number = 0; number < (kSanitized ? 8 : 24); ++number) {
        Tokens prompt = random_tokens(generator, random(1, 100));
        if (random(0, 2) > 0)
          prompt = joined(Tokens(common.begin(), common.begin() + random(1, 200)), prompt);
        if (!talks.empty() && random(0, 2) == 0)
          prompt = joined(talks[random(0, std::ssize(talks) - 1)], {5, 6, 7});
        if (prompt.size() > 440) prompt.resize(440);
        const RowOptions options = sampled(random(1, 60), number);
        for (int ahead = random(0, 3); ahead > 0; --ahead) got.scheduler.pass();
        got.scheduler.submit(number, prompt, options);
        want.scheduler.submit(number, prompt, options);
        if (random(0, 2) == 0) continue;
        while (!want.scheduler.idle()) want.scheduler.pass();
        while (!got.scheduler.idle()) got.scheduler.pass();
        talks.push_back(want.grown.at(number));
      }
      while (!want.scheduler.idle()) want.scheduler.pass();
      while (!got.scheduler.idle()) got.scheduler.pass();
      CHECK(got.grown == want.grown);
      drafted += got.scheduler.drafted;
      if (prefix_caching) CHECK(got.engine.found() > 0);
    }
  }
  CHECK(drafted > 0);
}

TEST_CASE(
    "the estimate of a server counts what the blocks of a text take, by the allocations of all layers") {
  for (const std::string name : {"tales-window-1m", "tales-gemma-1m", "tales-qwen-1m"}) {
    for (const int context : {512, 384, 352, 336, 256, 64}) {
      CAPTURE(name);
      CAPTURE(context);
      Model model = Model::load(find_model(name), make_test_device(2), DType::kBFloat16);
      model.limit_context(context);
      WindowedKvCache cache(model, 1, context / kBlockSize);
      std::size_t bytes = 0;
      for (int l = 0; l < model.config().n_layer; ++l)
        bytes += cache.layer(l).keys.bytes() + cache.layer(l).values.bytes();
      CHECK(WindowedKvCache::text_bytes(model.config(), DType::kBFloat16) == bytes);
      const bool is_less = bytes < cache_bytes(model.config(), DType::kBFloat16, context);
      // A window of 64 and a pass have up to 21 blocks.
      CHECK(is_less == (name != "tales-qwen-1m" && context > 336));
      CHECK(contains(WindowedKvCache::estimate(model.config(), DType::kBFloat16),
                     fmt::format("a cache of up to {:.1f} MiB", static_cast<double>(bytes) / (1 << 20))));
    }
  }
}
