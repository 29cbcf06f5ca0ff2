#include <doctest/doctest.h>

#include <random>

#include "generate.h"
#include "regex.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"
#include "token_masks.h"

using namespace staircase;

namespace {

const EndTokens& ends() {
  return tales().config().end_tokens;
}

/// A regular expression that counts the bytes it is asked about.
struct Counted {
  using States = Regex::States;

  Regex regex;
  std::shared_ptr<long> bytes = std::make_shared<long>(0);

  States start() const { return regex.start(); }
  States after(const States& states, std::string_view text) const {
    *bytes += std::ssize(text);
    return regex.after(states, text);
  }
  bool accepts(const States& states) const { return regex.accepts(states); }
};

std::vector<float> random_logits(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(tales_tokenizer().vocab_size());
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// The logits that step 101 keeps.
std::vector<float> plainly(std::vector<float> logits, std::span<const int> text, const Regex& regex) {
  keep_allowed(logits, text, regex, tales_tokenizer(), ends());
  return logits;
}

template <typename Allowed>
KeepAllowed<Allowed> row_of(Allowed allowed) {
  return {std::make_shared<TokenMasks<Allowed>>(
      TokenMasks<Allowed>{std::move(allowed), tales_tokenizer(), ends()})};
}

constexpr const char* kPatterns[] = {
    " [A-Z][a-z]*( [a-z]+)*[.!?]", "[^\"]*\"", "(é|ü|[à-ö])+…", " (fox|lion)s?",
    "[0-9]{1,3}(,[0-9]{3})*",      ".*"};

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --json --prompt 'The King' " + options);
}

}  // namespace

TEST_CASE("along any text, the masks are those of trying each token") {
  std::mt19937 random(3);
  for (const std::string pattern : kPatterns) {
    CAPTURE(pattern);
    const Regex regex(pattern);
    const KeepAllowed<Regex> fresh = row_of(Regex(pattern));
    for (int run = 0; run < 3; ++run) {
      KeepAllowed<Regex> masks = fresh;  // another row
      std::vector<int> text;
      for (unsigned i = 0; i < 12; ++i) {
        const std::vector<float> wanted = plainly(random_logits(i), text, regex);
        std::vector<float> logits = random_logits(i);
        masks(logits, text);
        REQUIRE(logits == wanted);
        const std::vector<int> kept = ranking(logits);
        const int next = kept[random() % kept.size()];
        if (ends().contains(next)) break;
        text.push_back(next);
      }
    }
  }
}

TEST_CASE("the tree finds each token of a text once, and no token without bytes") {
  const TemporaryFolder folder;
  for (const std::string file : {"vocab.json", "merges.txt"})
    std::filesystem::copy(find_model("tales-6m") / file, folder.path());
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder":
                   {"4095": {"content": "<|endoftext|>", "special": true},
                    "4096": {"content": "<|note|>", "special": true}}})");
  Tokenizer tokenizer = Tokenizer::load(folder.path());
  tokenizer.extend(4100);
  const Regex any("[\\s\\S]*");
  std::vector<int> found;
  TokenTrie(tokenizer).walk(any, any.start(), [&](int token) { found.push_back(token); });
  std::vector<int> wanted;
  for (int token = 0; token < 4097; ++token) {
    // Among the bytes above 127, only those that begin a character.
    const auto first = static_cast<unsigned char>(tokenizer.bytes(token)[0]);
    if (first < 0x80 || (first >= 0xC2 && first <= 0xF4)) wanted.push_back(token);
  }
  std::ranges::sort(found);
  CHECK(found == wanted);

  TokenMasks<Regex> masks{any, tokenizer, {4095}};
  const std::vector<bool> mask = masks.mask(any.start());
  CHECK(mask.size() == 4100);
  CHECK(mask[4095]);
  for (int token = 4096; token < 4100; ++token) CHECK_FALSE(mask[token]);
}

TEST_CASE("tokens that begin alike are tried together, and a known state reads no byte") {
  const Counted counted{Regex(" [a-z]+")};
  const std::vector<int> one = tales_tokenizer().encode(" fox"), other = tales_tokenizer().encode(" lions");
  KeepAllowed<Counted> masks = row_of(counted);
  std::vector<float> logits = random_logits(1);
  long bytes = 0;
  for (int token = 0; token < tales_tokenizer().vocab_size(); ++token)
    bytes += std::ssize(tales_tokenizer().bytes(token));
  masks(logits, {});
  CHECK(*counted.bytes > 1000);
  CHECK(*counted.bytes < bytes / 2);

  logits = random_logits(1);
  masks(logits, one);  // in the state of all texts of more than one letter
  long before = *counted.bytes;
  KeepAllowed<Counted> row = masks;
  const std::vector<int> longer = tales_tokenizer().encode(" foxes");
  logits = random_logits(1);
  row(logits, longer);
  CHECK(*counted.bytes - before < 10);  // only the bytes of the text
  before = *counted.bytes;
  logits = random_logits(1);
  row(logits, longer);
  CHECK(*counted.bytes == before);
}

TEST_CASE("rows with copies have states of their own") {
  const Regex regex(" (fox|lion)");
  KeepAllowed<Regex> first = row_of(Regex(" (fox|lion)"));
  KeepAllowed<Regex> second = first;
  const std::vector<int> fox = tales_tokenizer().encode(" fox"), l = tales_tokenizer().encode(" l");
  std::vector<float> logits = random_logits(1);
  first(logits, fox);
  CHECK(logits == plainly(random_logits(1), fox, regex));
  logits = random_logits(1);
  second(logits, l);
  CHECK(logits == plainly(random_logits(1), l, regex));
}

TEST_CASE("many states take bounded memory and keep their masks right") {
  // There are 2^11 sets of states; after the first thousand, masks are computed again.
  const std::string pattern = "[ab]*a[ab]{10}";
  const Regex regex(pattern);
  const KeepAllowed<Regex> fresh = row_of(Regex(pattern));
  const int a = tales_tokenizer().encode("a")[0], b = tales_tokenizer().encode("b")[0];
  std::size_t most = 0;
  std::mt19937 random(1);
  for (int run = 0; run < 20; ++run) {
    KeepAllowed<Regex> masks = fresh;
    std::vector<int> text;
    for (int i = 0; i < 120; ++i) {
      std::vector<float> logits = random_logits(7);
      masks(logits, text);
      most = std::max(most, fresh.masks->masks.size());
      if (i % 40 == 39) CHECK(logits == plainly(random_logits(7), text, regex));
      text.push_back(random() % 2 ? a : b);
    }
  }
  CHECK(most == 1000);
}

TEST_CASE("a text that no token continues is an error") {
  KeepAllowed<Regex> masks = row_of(Regex("yes"));
  std::vector<float> logits = random_logits(1);
  CHECK(error_message([&] { masks(logits, tales_tokenizer().encode("no")); }) ==
        "no token continues \"no\" to an allowed text");
}

TEST_CASE("greedy texts of 50 patterns are those of Hugging Face transformers with the same tokens offered") {
  const auto& file = reference("regex.json");
  REQUIRE(file["cases"].size() == 50);
  StaticKvCache cache(tales(), 1);
  for (const auto& one : file["cases"]) {
    const std::string pattern = one["pattern"];
    CAPTURE(pattern);
    RowOptions options{{.stopping = {.max_new_tokens = file["max_new_tokens"]}}};
    options.edit_raw_logits = row_of(Regex(pattern));
    std::vector<int> ids;
    generate(tales(), tales_tokenizer(), {one["prompt_ids"].get<std::vector<int>>()}, 1, options, 1, cache,
             [&](int, const Token& token) { ids.push_back(token.id); });
    CHECK(first_difference(ids, one["ids"], one["gaps"]) == "");
    cache.truncate(0, 0);
  }
}

TEST_CASE("each text of a batch is the one that it is alone") {
  const std::string options =
      "--regex ' [A-Z][a-z]{2,8} (said|went)( [a-z]+){1,6}[.]' --max-new-tokens 40 --do-sample ";
  const nlohmann::json together = run(options + "--seed 5 --num-return-sequences 6").json()["sequences"];
  for (int i = 0; i < 6; ++i) {
    const nlohmann::json alone = run(options + fmt::format("--seed {}", 5 + i)).json()["sequences"][0];
    CHECK(together[i]["token_ids"] == alone["token_ids"]);
  }
}

TEST_CASE("the pattern is checked as before") {
  CHECK(run("--regex '('").status == 2);
  CHECK(run("--regex a --ignore-eos").status == 2);
}
