// Texts that a server has in its cache outlive it.
#include "common/server/cache_file.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <random>

#include "common/base/file.h"
#include "drafts.h"
#include "tests/error_message.h"
#include "tests/step.h"
#include "tests/temporary_folder.h"

using namespace staircase;

namespace {

/// A server's cache, and the option of its file.
struct Serving : OptionSink {
  Model& model;
  WindowedKvCache cache;
  EndedTexts engine;
  std::map<int, std::vector<int>> grown;
  DraftingScheduler scheduler;
  std::string option;
  CacheFile file;
  int last = 0;

  explicit Serving(const std::filesystem::path& path, int blocks = 100, Model& its_model = tales(),
                   bool prefix_caching = true)
      : model(its_model),
        cache(model, 2 + 20, blocks, 2),
        engine(model, cache, 2, prefix_caching),
        scheduler(
            engine, tales_tokenizer(), 2, {}, [](int, const Token&) {},
            [this](int number, const Generation& text) { grown[number] = text.tokens; }),
        option(path.string()),
        file(*this) {
    file.restore(model, engine, cache);
  }

  /// Sets --cache-file.
  void add(const std::string& /*name*/, OptionValue value, const std::string& /*help*/,
           Range /*range*/) override {
    *std::get<Path>(value).value = option;
  }

  std::vector<int> grow(const std::vector<int>& prompt, int count) {
    RowOptions options;
    options.stopping = {.max_new_tokens = count, .ignore_eos = true};
    scheduler.submit(++last, prompt, options);
    while (!scheduler.idle()) scheduler.pass();
    return grown[last];
  }

  /// Prompt tokens that are found when a text continues with one more token.
  int found(std::vector<int> text) {
    const double before = engine.found();
    text.push_back(7);
    grow(text, 1);
    return static_cast<int>(engine.found() - before);
  }
};

std::vector<int> some_tokens(int count, int begin = 0) {
  const std::vector<int> ids = reference("sliding.json")["ids"];
  return {ids.begin() + begin, ids.begin() + begin + count};
}

}  // namespace

TEST_CASE("after a restart each text continues at its last token, and as it would have without") {
  for (const int length : {1, 15, 16, 17, 40, 63, 64}) {
    CAPTURE(length);
    const TemporaryFolder folder;
    const auto path = folder.path() / "cache";
    std::vector<int> text, expected;
    {
      Serving before(path);
      text = before.grow(some_tokens(length), 9);
      before.file.save();
      expected = before.grow(text, 20);
    }
    Serving after(path);
    const double found = after.engine.found();
    CHECK(after.grow(text, 20) == expected);
    // The newest token of a text has no key and no value yet.
    CHECK(static_cast<int>(after.engine.found() - found) == length + 8);
  }
}

TEST_CASE("texts with one beginning share its blocks in the file and in the cache") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  std::vector<std::vector<int>> texts;
  std::uintmax_t one = 0;
  {
    Serving before(path);
    for (int i = 0; i < 5; ++i) {
      std::vector<int> prompt = some_tokens(96);
      for (const int token : some_tokens(5 + 3 * i, 200 + 30 * i)) prompt.push_back(token);
      texts.push_back(before.grow(prompt, 4));
      before.file.save();
      if (i == 0) one = std::filesystem::file_size(path);
    }
  }
  CHECK(std::filesystem::file_size(path) < 2.2 * static_cast<double>(one));
  Serving after(path);
  for (const std::vector<int>& text : texts) CHECK(after.found(text) == std::ssize(text) - 1);
  // What was restored can be saved again.
  after.file.save();
}

TEST_CASE("many texts, of which some have left, are as they were") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  std::mt19937 generator(1);
  std::vector<std::vector<int>> texts;
  std::vector<int> kept;
  {
    Serving before(path, 60);
    for (int i = 0; i < 40; ++i) {
      const int begin = static_cast<int>(generator() % 3) * 100;
      texts.push_back(before.grow(some_tokens(1 + static_cast<int>(generator() % 90), begin),
                                  1 + static_cast<int>(generator() % 9)));
    }
    before.file.save();
    for (const auto& text : before.engine.kept()) kept.push_back(static_cast<int>(text.tokens.size()));
  }
  Serving after(path, 60), alone({}, 60);
  std::vector<int> again;
  for (const auto& text : after.engine.kept()) again.push_back(static_cast<int>(text.tokens.size()));
  CHECK(again == kept);
  REQUIRE(kept.size() > 5);
  for (const std::vector<int>& text : texts) CHECK(after.grow(text, 3) == alone.grow(text, 3));
}

TEST_CASE("a smaller cache takes back what it has room for") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  std::vector<std::vector<int>> texts;
  {
    Serving before(path);
    for (int i = 0; i < 4; ++i) texts.push_back(before.grow(some_tokens(60, 100 * i), 6));
    before.file.save();
  }
  Serving after(path, 10), alone({}, 40);
  CHECK(after.engine.kept().size() == 2);
  for (const std::vector<int>& text : texts) CHECK(after.grow(text, 5) == alone.grow(text, 5));
}

TEST_CASE("an empty cache and no option leave nothing to do") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  Serving(path).file.save();
  CHECK(std::filesystem::exists(path));
  CHECK(Serving(path).engine.kept().empty());
  Serving({}).file.save();
}

TEST_CASE("a file that is not of this server is refused, and so is a server that keeps no texts") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  {
    Serving before(path);
    before.grow(some_tokens(20), 4);
    before.file.save();
  }
  const std::string whole = read_file(path);
  Model bfloat16 = tales_in(DType::kBFloat16);
  CHECK(
      error_message([&] { Serving(path, 100, bfloat16); }) ==
      path.string() +
          " was saved with --dtype float32, and this program uses bfloat16; choose float32, or another file");
  CHECK(error_message([&] { Serving(path, 100, tales(), false); }) ==
        "--cache-file needs --prefix-caching, which is off");
  const ChatTemplate plain("{{ messages }}", {}, "plain");
  CHECK(error_message([&] { SessionFile(path, tales(), plain).read(); }) ==
        path.string() + " was saved with another program; use the one that it began with, or another file");
  for (std::size_t at = 0; at < whole.size(); at += 1 + whole.size() / 300) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    std::ofstream(path, std::ios::binary) << changed;
    CHECK(contains(error_message([&] { Serving serving(path); }), path.string()));
  }
}

TEST_CASE("a session whose texts do not fit together is refused") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  const auto refusal = [&](const std::vector<int>& firsts, int length, int cached) {
    {
      StaticKvCache cache(tales());
      Session session;
      for (std::size_t i = 0; i < firsts.size(); ++i) session.known.push_back({{}, some_tokens(length)});
      session.tokens = some_tokens(cached);
      session.firsts = firsts;
      session.cached = cached;
      const SessionFile file(path, tales());
      SessionWriter writer = file.write(session);
      for (int l = 0; l < tales().config().n_layer; ++l) writer.put(tales().device(), cache.layer(l));
      writer.finish();
    }
    return error_message([&] { Serving serving(path); });
  };
  CHECK(refusal({0}, 20, 20).empty());
  CHECK(refusal({0, 16}, 20, 24).empty());
  const std::string sentence =
      path.string() + " does not hold what the cache of a server needs; choose another file";
  CHECK(refusal({20}, 20, 20) == sentence);
  CHECK(refusal({0, 0}, 20, 39) == sentence);
  CHECK(refusal({0, 300}, 20, 30) == sentence);
}

namespace {

/// Layers 0 to 2 see 64 positions of 512, layer 3 all.
Model& windowed() {
  static Model model = Model::load(find_model("tales-window-1m"), make_test_device(2));
  return model;
}

}  // namespace

TEST_CASE("layers with a window are kept too: each text continues at its last token, long and short ones") {
  for (const int length : {1, 15, 16, 40, 62, 63, 64, 65, 80, 100, 330}) {
    CAPTURE(length);
    const TemporaryFolder folder;
    const auto path = folder.path() / "cache";
    std::vector<int> text, expected;
    {
      Serving before(path, 100, windowed());
      text = before.grow(some_tokens(length), 9);
      before.file.save();
      expected = before.grow(text, 70);
    }
    Serving after(path, 100, windowed());
    const double found = after.engine.found();
    CHECK(after.grow(text, 70) == expected);
    CHECK(static_cast<int>(after.engine.found() - found) == length + 8);
  }
}

TEST_CASE("with windows, too, many texts are as they were, in a cache with as many blocks or with fewer") {
  std::mt19937 generator(4);
  for (const int blocks : {60, 25}) {
    CAPTURE(blocks);
    const TemporaryFolder folder;
    const auto path = folder.path() / "cache";
    std::vector<std::vector<int>> texts;
    std::size_t kept = 0;
    {
      Serving before(path, 60, windowed());
      for (int i = 0; i < 40; ++i) {
        const int begin = static_cast<int>(generator() % 3) * 100;
        texts.push_back(before.grow(some_tokens(1 + static_cast<int>(generator() % 200), begin),
                                    1 + static_cast<int>(generator() % 9)));
      }
      before.file.save();
      kept = before.engine.kept().size();
    }
    Serving alone({}, 60, windowed());
    {
      Serving after(path, blocks, windowed());
      REQUIRE(kept > 3);
      if (blocks == 60) CHECK(after.engine.kept().size() == kept);
      CHECK(after.engine.kept().size() > 1);
      const double before = after.engine.found();
      for (std::vector<int> text : texts) {
        if (generator() % 3 == 0) text.resize((text.size() + 1) / 2);  // found as a prefix, or computed again
        CHECK(after.grow(text, 3) == alone.grow(text, 3));
      }
      CHECK(after.engine.found() - before > 100);
      after.file.save();
    }
    Serving again(path, 60, windowed());
    for (const std::vector<int>& text : texts) CHECK(again.grow(text, 3) == alone.grow(text, 3));
  }
}

TEST_CASE("a file of another --context is refused if layers have a window, and the sentence names both") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cache";
  {
    Serving before(path, 100, windowed());
    before.grow(some_tokens(20), 4);
    before.file.save();
  }
  Model shorter = Model::load(find_model("tales-window-1m"), make_test_device(2));
  shorter.limit_context(400);
  CHECK(error_message([&] { Serving(path, 100, shorter); }) ==
        path.string() +
            " was saved with --context 512, and this program uses 400; choose 512, or another file");
}
