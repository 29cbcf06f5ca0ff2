#include <doctest/doctest.h>

#include <algorithm>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/row_edits.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

/// A text, and the part of it that was shown.
struct Shown {
  std::string text;
  Generation generation;
};

std::vector<Shown> continued(const Prompts& prompts, const RowOptions& options, int copies = 1,
                             int slots = 0) {
  std::vector<Shown> results(prompts.size() * copies);
  if (slots == 0) slots = static_cast<int>(results.size());
  StaticKvCache cache(tales(), slots);
  const auto texts = generate(tales(), tales_tokenizer(), prompts, copies, options, slots, cache,
                              [&](int number, const Token& token) {
                                CHECK(token.text.has_value() == !options.stop.sequences.empty());
                                results[number].text +=
                                    token.text.value_or(std::string(tokenizer().bytes(token.id)));
                              });
  for (std::size_t i = 0; i < texts.size(); ++i) results[i].generation = texts[i];
  return results;
}

/// What a reader sees of a text that arrives in pieces: all of it up to the first complete stop sequence.
std::string expected(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
    std::size_t cut = text.npos;
    for (const std::string& stop : stops) cut = std::min(cut, text.find(stop));
    if (cut != text.npos) return text.substr(0, cut);
  }
  return text;
}

/// The longest suffix of a text that a stop sequence starts with.
std::string undecided(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t first = 0; first < text.size(); ++first) {
    const std::string end = text.substr(first);
    for (const std::string& stop : stops) {
      if (stop.starts_with(end)) return end;
    }
  }
  return "";
}

const std::vector<int> kPrompt{321, 1682};
const RowOptions kPlain{{.stopping = {.max_new_tokens = 30}}};

}  // namespace

TEST_CASE("a program may change the logits before all options and after them") {
  check_row_edits();
}

TEST_CASE("no part of a stop sequence is ever shown, and nothing else is withheld") {
  // Texts of a and b, in tokens of one letter or two, with every kind of overlap.
  const int a = tokenizer().encode("a")[0], b = tokenizer().encode("b")[0], ab = tokenizer().encode("ab")[0];
  REQUIRE(tokenizer().bytes(a) == "a");
  REQUIRE(tokenizer().bytes(ab) == "ab");
  std::mt19937 generator(1);
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    StopOptions options;
    for (unsigned i = 0; i <= generator() % 3; ++i) {
      std::string stop;
      for (unsigned length = 1 + generator() % 5; length > 0; --length)
        stop += generator() % 2 == 0 ? 'a' : 'b';
      options.sequences.push_back(stop);
    }
    StopFilter filter(options, tokenizer());
    std::vector<std::string> pieces;
    std::string all, text;
    for (int i = 0; i < 12 && !filter.found(); ++i) {
      const int token = std::vector<int>{a, b, ab}[generator() % 3];
      pieces.emplace_back(tokenizer().bytes(token));
      all += pieces.back();
      text += filter.push(token);
      if (filter.found()) {
        CHECK(text == expected(pieces, options.sequences));
        CHECK(filter.rest().empty());
        ++found;
      } else {
        CHECK(filter.rest() == undecided(all, options.sequences));
        CHECK(text + filter.rest() == all);
      }
    }
    text += filter.rest();
    CHECK(text == expected(pieces, options.sequences));
  }
  CHECK(found > 1000);
  CHECK(found < 3000);
}

TEST_CASE("a character that is spread over tokens is found by its bytes") {
  // "ä" and "ö" begin with the same byte.
  const std::string text = "aäöäöü";
  for (const auto& [stop, want] : std::vector<std::pair<std::string, std::string>>{
           {"ö", "aä"}, {"äöü", "aäö"}, {"ü", "aäöäö"}, {"\xb6", "aä\xc3"}, {"é", text}}) {
    StopFilter filter({{stop}}, tokenizer());
    std::string got;
    for (const int token : tokenizer().encode(text)) {
      if (!filter.found()) got += filter.push(token);
    }
    CHECK(filter.found() == (stop != "é"));
    CHECK(got + filter.rest() == want);
  }
}

TEST_CASE("a sequence is searched in the shown text, where invalid bytes are U+FFFD") {
  const std::string replacement = "\xef\xbf\xbd";
  const int half = 127, comma = tokenizer().encode(",")[0];
  REQUIRE(tokenizer().bytes(half) == "\xc3");
  for (const std::string& stop : {replacement, replacement + ",", std::string(",")}) {
    StopFilter filter({{stop}}, tokenizer());
    std::string got = filter.push(half);
    CHECK_FALSE(filter.found());  // it may become a whole character
    got += filter.push(comma);
    CHECK(filter.found());
    CHECK(got == (stop == "," ? replacement : ""));
  }
  StopFilter filter({{replacement}}, tokenizer());
  CHECK(filter.push(half) + filter.rest() == "");  // nor is it shown at the end of a text
  StopFilter other({{"no"}}, tokenizer());
  CHECK(other.push(half) == "");
  CHECK(other.rest() == replacement);
}

TEST_CASE("the shown and the withheld text are as the README draws them") {
  struct Line {
    std::string token, shown, held;
  };
  const std::vector<Line> lines{{",", ",", ""},
                                {" who", " who", ""},
                                {" had", " h", "ad"},
                                {" been", "", "ad been"},
                                {" watching", "ad been watching", ""},
                                {" the", " the", ""},
                                {" wolf", " wolf", ""},
                                {",", ",", ""},
                                {" had", " h", "ad"},
                                {" been", "", "ad been"},
                                {" very", "", ""}};
  const std::vector<int> tokens =
      tokens_after(kPrompt.size(), continued({kPrompt}, kPlain)[0].generation.tokens);
  StopFilter filter({{"ad been ve"}}, tokenizer());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(!filter.found());
    CHECK(tokenizer().bytes(tokens[i]) == lines[i].token);
    CHECK(filter.push(tokens[i]) == lines[i].shown);
    CHECK(filter.rest() == lines[i].held);
  }
  CHECK(filter.found());
}

TEST_CASE("a stop sequence ends the text before its first character, across the borders of tokens") {
  const Shown plain = continued({kPrompt}, kPlain)[0];
  REQUIRE(plain.text.size() > 40);
  for (const std::size_t first : {std::size_t{1}, std::size_t{10}, plain.text.size() - 9}) {
    for (const std::size_t length : {1u, 3u, 8u}) {
      const std::string stop = plain.text.substr(first, length);
      RowOptions options = kPlain;
      options.stop = {{"never", stop}};
      const Shown got = continued({kPrompt}, options)[0];
      CHECK(got.generation.finish_reason == FinishReason::kStop);
      CHECK(got.text == plain.text.substr(0, plain.text.find(stop)));
      // The sequence's tokens are in the text, up to the one that completes it.
      std::vector<int> want = kPrompt;
      for (std::string text; text.find(stop) == text.npos; text += tokenizer().bytes(want.back()))
        want.push_back(plain.generation.tokens[want.size()]);
      CHECK(got.generation.tokens == want);
      // If one token gives two reasons to end, the stop sequence counts.
      options.stopping.max_new_tokens = static_cast<int>(want.size() - kPrompt.size());
      const Shown both = continued({kPrompt}, options)[0];
      CHECK(both.generation.finish_reason == FinishReason::kStop);
      CHECK(both.text == got.text);
    }
  }
}

TEST_CASE("a stop sequence that never comes changes nothing") {
  for (const int count : {1, 2, 17, 64}) {
    RowOptions options{{.stopping = {.max_new_tokens = count}}};
    const Shown plain = continued({kPrompt}, options)[0];
    // The sequence's beginning occurs everywhere, so withheld text must come out at the end.
    options.stop = {{"e Q", " zz", plain.text.substr(plain.text.size() - 1) + "Q"}};
    const Shown got = continued({kPrompt}, options)[0];
    CHECK(got.text == plain.text);
    CHECK(got.generation.tokens == plain.generation.tokens);
    CHECK(got.generation.finish_reason == plain.generation.finish_reason);
  }
}

TEST_CASE("each row of a batch stops for itself") {
  const Prompts prompts{kPrompt, {1294, 259}, {4095}};
  const std::vector<Shown> plain = continued(prompts, kPlain);
  RowOptions options = kPlain;
  options.stop = {{plain[1].text.substr(12, 4)}};
  const std::vector<Shown> got = continued(prompts, options);
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    CHECK(got[row].text == plain[row].text.substr(0, plain[row].text.find(options.stop.sequences[0])));
  }
  CHECK(got[1].generation.finish_reason == FinishReason::kStop);
}

TEST_CASE("drawn copies in a queue stop exactly where each of them would stop alone") {
  const Prompts prompts{kPrompt, {1294, 259}, {4095}};
  RowOptions options = kPlain;
  options.sampling = {.do_sample = true, .seed = 11, .presence_penalty = 0.3f, .top_k = 30};
  options.stop = {{".", " and", "he w"}};
  std::vector<Shown> alone;
  int stopped = 0;
  for (unsigned i = 0; i < 9; ++i) {
    RowOptions own = options;
    own.sampling.seed += i;
    alone.push_back(continued({prompts[i / 3]}, own)[0]);
    stopped += alone.back().generation.finish_reason == FinishReason::kStop;
    own.stop = {};
    const std::string text = continued({prompts[i / 3]}, own)[0].text;
    CHECK(begins_with(text, alone.back().text));
    for (const std::string& stop : options.stop.sequences) CHECK(alone.back().text.find(stop) == text.npos);
  }
  CHECK(stopped > 4);
  for (const int slots : {3, 4, 9}) {
    const std::vector<Shown> together = continued(prompts, options, 3, slots);
    for (std::size_t i = 0; i < together.size(); ++i) {
      CHECK(together[i].text == alone[i].text);
      CHECK(together[i].generation.tokens == alone[i].generation.tokens);
      CHECK(together[i].generation.finish_reason == alone[i].generation.finish_reason);
    }
  }
}

TEST_CASE("a text that ends by itself shows the withheld text, and not the end-of-text token") {
  // "ending" of the reference.
  const auto& run = reference("batch.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"], ids = run["ids"];
  REQUIRE(run["finish"] == "eos");
  std::string text;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) text += tokenizer().bytes(ids[i]);
  RowOptions options{{.stopping = {.max_new_tokens = 64}}};
  for (const std::string& stop :
       {std::string("never"), text.substr(text.size() - 3) + "Q", std::string("<|endoftext|>")}) {
    options.stop = {{stop}};
    const Shown got = continued({prompt}, options)[0];
    CHECK(got.text == text);
    CHECK(got.generation.tokens.size() == prompt.size() + ids.size());
    CHECK(got.generation.finish_reason == FinishReason::kEos);
  }
  // If the end-of-text token ends nothing, it is ordinary text.
  options.stopping.ignore_eos = true;
  const Shown got = continued({prompt}, options)[0];
  CHECK(got.text == text);
  CHECK(got.generation.finish_reason == FinishReason::kStop);
}

TEST_CASE("the program prints nothing of a stop sequence, and the withheld text if there is none") {
  const std::string start = "--prompt 'The wolf' --max-new-tokens 10";
  const std::string text = run_program(STAIRCASE_STEP_PROGRAM, start).out;
  CHECK(text == ", who had been watching the wolf, had been\n");
  const auto sequence = [&](const std::string& arguments) {
    const auto run = run_program(STAIRCASE_STEP_PROGRAM, start + " --json " + arguments);
    return run.json()["sequences"][0];
  };
  // " been" is the last token: the sequence is not complete.
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, start + " --stop 'ad been ve'").out == text);
  CHECK(sequence("--stop 'ad been ve'")["finish_reason"] == "length");
  // With one token more, the sequence is complete.
  const std::string more = "--prompt 'The wolf' --max-new-tokens 11 --stop Q --stop 'ad been ve'";
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, more).out == ", who had been watching the wolf, h\n");
  const auto stopped = run_program(STAIRCASE_STEP_PROGRAM, more + " --json").json()["sequences"][0];
  CHECK(stopped["finish_reason"] == "stop");
  CHECK(stopped["text"] == ", who had been watching the wolf, h");
  CHECK(stopped["token_ids"].size() == 11);
}
