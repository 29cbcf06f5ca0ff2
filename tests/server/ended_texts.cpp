// A conversation goes on at its last token, and texts that have ended take no room from those that grow.
#include "common/decoding/ended_texts.h"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <random>
#include <vector>

#include "drafts.h"
#include "tests/step.h"

using namespace staircase;

namespace {

RowOptions options_of(int count, unsigned seed) {
  RowOptions options;
  options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  options.sampling = {.do_sample = true, .seed = seed};
  return options;
}

/// Counts what goes through the model.
struct Counted : DelegatingEngine {
  using DelegatingEngine::DelegatingEngine;
  int fed = 0, passes = 0;

  Logits forward(std::span<const std::span<const int>> sequences) override {
    for (const auto& sequence : sequences) fed += static_cast<int>(sequence.size());
    ++passes;
    return DelegatingEngine::forward(sequences);
  }
};

struct Texts {
  PagedKvCache cache;
  EndedTexts ended;
  Counted engine{ended};
  std::map<int, std::vector<int>> grown;
  DraftingScheduler scheduler;

  Texts(int slots, int kept, int blocks, bool prefix_caching = true, const PrefillOptions& prefill = {})
      : cache(tales(), slots + kept, blocks),
        ended(tales(), cache, slots, prefix_caching),
        scheduler(
            engine, tales_tokenizer(), slots, prefill, [](int, const Token&) {},
            [this](int number, const Generation& text) { grown[number] = text.tokens; }) {}

  std::vector<int> grow(const std::vector<int>& prompt, int count, unsigned seed = 1) {
    scheduler.submit(++last, prompt, options_of(count, seed));
    while (!scheduler.idle()) scheduler.pass();
    return grown[last];
  }
  int last = 0;

  /// Of rows that keep a text.
  int kept(int slots) const {
    int count = 0;
    for (int row = slots; row < cache.rows(); ++row) count += cache.blocks(row) > 0;
    return count;
  }
};

std::vector<int> some_tokens(int count, int begin = 0) {
  const std::vector<int> ids = reference("sliding.json")["ids"];
  return {ids.begin() + begin, ids.begin() + begin + count};
}

std::vector<int> joined(std::vector<int> text, const std::vector<int>& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

}  // namespace

TEST_CASE("the next turn of a conversation computes only its new tokens, even after another text") {
  for (const int length : {37, 40, 48, 63}) {
    CAPTURE(length);
    Texts texts(2, 4, 64), plain(2, 0, 64, false);
    std::vector<int> talk = some_tokens(length);
    for (int turn = 0; turn < 4; ++turn) {
      talk = texts.grow(talk, 21 + turn, 7);
      texts.grow(joined({3, 5, 7}, some_tokens(20, 100)), 5);  // a title for the conversation
      const int known = static_cast<int>(talk.size()) - 1;     // the last token was never fed
      talk = joined(talk, some_tokens(9, 60 + turn));
      const int before = texts.engine.fed;
      const std::vector<int> answer = texts.grow(talk, 1);
      CHECK(texts.engine.fed - before == std::ssize(talk) - known);
      CHECK(answer == plain.grow(talk, 1));
      talk = answer;
    }
  }
}

TEST_CASE("what was found in ended texts counts as found, and once") {
  Texts texts(1, 2, 64);
  const std::vector<int> said = texts.grow(some_tokens(37), 10), talk = joined(said, some_tokens(9, 60));
  texts.grow(talk, 3);
  CHECK(texts.ended.found() == std::ssize(said) - 1);
  CHECK(texts.ended.joined() == 37 + std::ssize(talk));
}

TEST_CASE(
    "a text that is not a beginning of the prompt is not continued, and the prompt itself is computed") {
  Texts texts(1, 2, 64);
  const std::vector<int> prompt = some_tokens(37);
  texts.grow(prompt, 1);
  for (const bool same : {true, false}) {
    std::vector<int> other = prompt;
    if (!same) other = joined(std::vector(other.begin(), other.begin() + 35), {9, 9, 9, 9, 9});
    const int before = texts.engine.fed;
    texts.grow(other, 1);
    CHECK(texts.engine.fed - before == std::ssize(other) - 32);
  }
}

TEST_CASE("a text is kept once, in as many rows as there are, and the oldest one goes first") {
  Texts texts(2, 3, 64);
  for (int time = 0; time < 5; ++time) texts.grow(some_tokens(20), 3);
  CHECK(texts.kept(2) == 1);
  std::vector<std::vector<int>> said;
  for (int i = 0; i < 4; ++i) said.push_back(texts.grow(some_tokens(20, 30 * i), 2));
  CHECK(texts.kept(2) == 3);
  for (const int i : {0, 3}) {
    const int before = texts.engine.fed;
    texts.grow(joined(said[i], {1, 2, 3}), 1);
    CHECK(texts.engine.fed - before == (i == 0 ? 25 - 16 : 4));
  }
}

TEST_CASE("a cancelled text is kept as far as it got, without the blocks for its rest") {
  Texts texts(1, 2, 64, true, {.chunk = 7});
  const std::vector<int> prompt = some_tokens(60);
  texts.scheduler.submit(100, prompt, options_of(1, 1));
  texts.scheduler.pass();
  texts.scheduler.cancel(100);
  int blocks = 0;
  for (int row = 0; row < texts.cache.rows(); ++row) blocks += texts.cache.blocks(row);
  CHECK(blocks == 1);
  texts.grow(prompt, 1);
  CHECK(texts.engine.fed == 60);
}

TEST_CASE("without prefix caching nothing is kept") {
  Texts texts(1, 2, 64, false);
  const std::vector<int> said = texts.grow(some_tokens(37), 4);
  CHECK(texts.kept(1) == 0);
  const int before = texts.engine.fed;
  texts.grow(said, 1);
  CHECK(texts.engine.fed - before == std::ssize(said));
}

// With few blocks all ended texts lose theirs again and again. Conversations go on, are left, and share
// beginnings; prompts come in chunks.
TEST_CASE("texts are the same whatever has ended before, even if blocks are few") {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
    const PrefillOptions prefill{.chunk = seed % 2 == 0 ? std::optional(7) : std::nullopt};
    const int blocks = 6 + below(8);
    // A cache in 8 or 4 bits has scales, which go where its blocks go.
    const DType few_bits = seed % 2 == 0 ? DType::kInt4 : DType::kInt8;
    tales().use_cache_dtype(seed > 3 ? few_bits : DType::kFloat32);
    Texts texts(3, 5, blocks, true, prefill), alone(1, 0, 64, false);
    std::vector<std::vector<int>> talks;
    std::map<int, std::vector<int>> wanted;
    int number = 0;
    const auto submit = [&](const std::vector<int>& prompt) {
      const RowOptions options = options_of(1 + below(12), static_cast<unsigned>(++number));
      wanted[number] = alone.grow(prompt, options.stopping.max_new_tokens, options.sampling.seed);
      texts.scheduler.submit(number, prompt, options);
      talks.push_back(wanted[number]);
    };
    for (int event = 0; event < 60; ++event) {
      const int what = below(6);
      if (what == 0 || talks.empty()) {
        submit(some_tokens(10 + below(30), below(5)));
      } else if (what == 1) {
        const std::vector<int>& talk =
            talks[talks.size() - 1 - below(std::min(4, static_cast<int>(talks.size())))];
        if (talk.size() < 70) submit(joined(talk, some_tokens(1 + below(6), below(90))));
      } else if (what == 2 && number > 0 && below(3) == 0) {
        texts.scheduler.cancel(number);
        wanted.erase(number);
        texts.grown.erase(number);
      }
      texts.scheduler.pass();
    }
    for (int passes = 0; !texts.scheduler.idle(); ++passes) {
      REQUIRE(passes < 2000);
      texts.scheduler.pass();
    }
    for (const auto& [one_, text] : wanted) {
      const auto& one = one_;  // clang 14 captures no structured binding
      CAPTURE(one);
      CHECK(texts.grown[one] == text);
    }
  }
  tales().use_cache_dtype(DType::kFloat32);
}

TEST_CASE("a growing text takes the blocks of ended ones, and is not preempted") {
  Texts texts(2, 4, 8);
  for (int i = 0; i < 3; ++i) texts.grow(some_tokens(20, 30 * i), 2);  // 2 blocks each
  CHECK(texts.kept(2) == 3);
  // Of 64 tokens each the last one is never fed: 4 blocks.
  for (const int number : {100, 101}) {
    texts.scheduler.submit(number, some_tokens(10, number - 100), options_of(54, 1));
  }
  while (!texts.scheduler.idle()) texts.scheduler.pass();
  CHECK(texts.scheduler.preempted() == 0);
  CHECK(texts.kept(2) == 2);
}

TEST_CASE("texts of different adapters share a batch but no keys: each is what it is alone, drafts or not") {
  const std::filesystem::path models = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models/adapters";
  const std::vector<std::filesystem::path> folders{models / "aesop", models / "arabian-nights"};
  tales().load_adapters(folders);
  std::mt19937 generator(1);
  const auto random = [&](int below) { return static_cast<int>(generator() % static_cast<unsigned>(below)); };
  struct Request {
    std::vector<int> prompt;
    RowOptions options;
  };
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    // Most begin alike, so keys of another adapter would be found.
    const std::vector<int> prompt =
        joined(some_tokens(random(3) * 20 + 17), some_tokens(random(20), random(3)));
    requests.push_back({prompt, options_of(1 + random(30), static_cast<unsigned>(random(3)))});
    requests.back().options.extras.adapter = random(3) - 1;
  }
  Texts plain(1, 0, 64, false), texts(4, 4, 12, true, {.chunk = 16});
  texts.scheduler.lookup = {.num_tokens = 5, .ngram = 1};
  std::vector<std::vector<int>> alone;
  for (const auto& [prompt, options] : requests) {
    plain.scheduler.submit(++plain.last, prompt, options);
    while (!plain.scheduler.idle()) plain.scheduler.pass();
    alone.push_back(plain.grown[plain.last]);
  }
  for (int i = 0; i < std::ssize(requests); ++i) {
    texts.scheduler.submit(i, requests[i].prompt, requests[i].options);
    if (random(5) == 0) {
      texts.scheduler.submit(1000 + i, requests[i].prompt, requests[i].options);
      texts.scheduler.pass();
      texts.scheduler.cancel(1000 + i);
    }
    for (int passes = random(4); passes > 0; --passes) texts.scheduler.pass();
  }
  while (!texts.scheduler.idle()) texts.scheduler.pass();
  for (int i = 0; i < std::ssize(requests); ++i) {
    CAPTURE(i);
    CAPTURE(requests[i].options.extras.adapter);
    CHECK(texts.grown[i] == alone[i]);
  }
  CHECK(texts.ended.found() > 0);
  CHECK(texts.scheduler.preempted() > 0);
  CHECK(texts.scheduler.accepted > 0);
  CHECK(texts.scheduler.drafted > texts.scheduler.accepted);
  tales().load_adapters({});
}

TEST_CASE("with drafts, an ended text keeps what it has drawn, and the next one begins with its keys") {
  Texts texts(1, 2, 64);
  texts.scheduler.lookup.num_tokens = 8;
  std::vector<int> prompt = some_tokens(20);
  prompt.insert(prompt.end(), prompt.begin(), prompt.end());
  RowOptions options = options_of(30, 1);
  options.sampling.do_sample = false;
  texts.scheduler.submit(1, prompt, options);
  while (!texts.scheduler.idle()) texts.scheduler.pass();
  CHECK(texts.scheduler.accepted > 0);
  std::vector<int> more = texts.grown[1];
  more.push_back(11);
  const int before = texts.engine.fed;
  texts.scheduler.submit(2, more, options_of(1, 1));
  while (!texts.scheduler.idle()) texts.scheduler.pass();
  // The last token was drawn and perhaps never fed.
  CHECK(texts.engine.fed - before <= 2);
  Texts alone(1, 0, 64, false);
  alone.scheduler.submit(1, more, options_of(1, 1));
  while (!alone.scheduler.idle()) alone.scheduler.pass();
  CHECK(texts.grown[2] == alone.grown[1]);
}

TEST_CASE("a prompt that one adapter has read is computed again for another one, and found by its own") {
  const std::filesystem::path folder = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models/adapters/aesop";
  tales().load_adapters({&folder, 1});
  Texts texts(1, 2, 64);
  const std::vector<int> prompt = some_tokens(40);
  const auto fed_for = [&](int adapter) {
    RowOptions options = options_of(1, 1);
    options.extras.adapter = adapter;
    const int before = texts.engine.fed;
    texts.scheduler.submit(++texts.last, prompt, options);
    while (!texts.scheduler.idle()) texts.scheduler.pass();
    return texts.engine.fed - before;
  };
  CHECK(fed_for(-1) == 40);
  CHECK(fed_for(0) == 40);
  CHECK(fed_for(0) == 8);  // whole blocks of 16 are known
  CHECK(fed_for(-1) == 8);
  tales().load_adapters({});
}

TEST_CASE("an adapter's text is not among those to save, even if it ends with the first token of all") {
  const std::filesystem::path folder = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models/adapters/aesop";
  tales().load_adapters({&folder, 1});
  Texts texts(1, 2, 64);
  RowOptions options = options_of(1, 1);
  for (const int adapter : {0, -1}) {
    options.extras.adapter = adapter;
    for (const int last : {0, tales().config().vocab_size - 1}) {
      CAPTURE(adapter);
      CAPTURE(last);
      const std::size_t before = texts.ended.kept().size();
      texts.scheduler.submit(++texts.last, joined(some_tokens(20), {last}), options);
      while (!texts.scheduler.idle()) texts.scheduler.pass();
      CHECK(texts.ended.kept().size() - before == (adapter == -1 ? 1 : 0));
    }
  }
  tales().load_adapters({});
}

TEST_CASE("a text as long as the context is taken back, a longer one or an empty one is not") {
  Texts texts(1, 3, 64);
  const auto takes = [&](int length) {
    return texts.ended.take_back(std::vector<int>(length, 7), [](int) { return true; });
  };
  CHECK(takes(tales().config().n_positions));
  CHECK(!takes(tales().config().n_positions + 1));
  CHECK(!takes(0));
  CHECK(texts.ended.kept().size() == 1);
}
