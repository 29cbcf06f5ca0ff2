#include <doctest/doctest.h>

#include <algorithm>

#include "generate.h"
#include "tests/error_message.h"
#include "tests/huge_model.h"
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
  const int eos = tales().config().eos_token_id;
  const auto texts = generate(tales(), tales_tokenizer(), prompts, copies, options, slots, cache,
                              [&](int number, const Token& token) {
                                const bool is_text = token.id != eos || options.stopping.ignore_eos;
                                if (is_text) CHECK(token.text.has_value() == !options.stop.sequences.empty());
                                if (!is_text) CHECK(token.text.value_or("").empty());
                                if (is_text)
                                  results[number].text +=
                                      token.text.value_or(std::string(tokenizer().bytes(token.id)));
                              });
  for (std::size_t i = 0; i < texts.size(); ++i) results[i].generation = texts[i];
  return results;
}

/// The start of the first stop sequence in `text`, or its length if there is none.
std::size_t first_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t first = 0; first < text.size(); ++first) {
    for (const std::string& stop : stops) {
      if (text.compare(first, stop.size(), stop) == 0) return first;
    }
  }
  return text.size();
}

const std::vector<int> kPrompt{321, 1682};
const RowOptions kPlain{{.stopping = {.max_new_tokens = 30}}};

/// What the filter shows for each token of `text` up to a stop sequence, with a bar between them.
std::string shown(const std::string& stop, const std::string& text) {
  StopFilter filter({{stop}}, tokenizer());
  std::string pieces;
  for (const int token : tokenizer().encode(text)) {
    if (!filter.found()) pieces += "|" + filter.push(token);
  }
  return pieces + (filter.found() ? "|found" : "|");
}

}  // namespace

TEST_CASE("a program may change the logits before all options and after them") {
  check_row_edits();
}

TEST_CASE("a batch may have more logits than an int can number") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  Model model = huge_model();
  const auto texts = generate(model, tales_tokenizer(), huge_prompts(), 1, options, kHugeRows, no_cache(),
                              [](int, const Token&) {});
  for (int row = 0; row < kHugeRows; ++row) CHECK(texts[row].tokens == std::vector<int>{0, row + 1});
}

TEST_CASE("a text ends with the token that completes a stop sequence, and the text before it is shown") {
  // Texts of a and b, in tokens of one letter or two, with every kind of overlap.
  const int a = tokenizer().encode("a")[0], b = tokenizer().encode("b")[0], ab = tokenizer().encode("ab")[0];
  REQUIRE(tokenizer().bytes(a) == "a");
  REQUIRE(tokenizer().bytes(ab) == "ab");
  std::mt19937 generator(1);
  int found = 0, across = 0, within = 0;
  for (int round = 0; round < 3000; ++round) {
    StopOptions options;
    for (unsigned i = 0; i <= generator() % 3; ++i) {
      std::string stop;
      for (unsigned length = 1 + generator() % 5; length > 0; --length)
        stop += generator() % 2 == 0 ? 'a' : 'b';
      options.sequences.push_back(stop);
    }
    StopFilter filter(options, tokenizer());
    std::string all;
    for (int i = 0; i < 12 && !filter.found(); ++i) {
      const int token = std::vector<int>{a, b, ab}[generator() % 3];
      const std::string piece(tokenizer().bytes(token)), got = filter.push(token);
      const std::size_t cut = first_stop(all + piece, options.sequences);
      REQUIRE(filter.found() == (cut < all.size() + piece.size()));
      if (!filter.found()) {
        CHECK(got == piece);
      } else if (cut < all.size()) {  // its beginning has been shown
        CHECK(got.empty());
        ++across;
      } else {
        CHECK(all + got == (all + piece).substr(0, cut));
        within += !got.empty();
      }
      all += piece;
    }
    found += filter.found();
  }
  CHECK(found > 1000);
  CHECK(found < 3000);
  CHECK(across > 500);
  CHECK(within > 100);
}

TEST_CASE("of the token that completes a stop sequence, only the part before the sequence is shown") {
  REQUIRE(shown("never", "The wolf was hungry.") == "|The| wolf| was| hungry|.|");
  CHECK(shown("wolf", "The wolf was hungry.") == "|The| |found");
  CHECK(shown(" wolf", "The wolf was hungry.") == "|The||found");
  CHECK(shown("e w", "The wolf was hungry.") == "|The||found");
  CHECK(shown("olf was hun", "The wolf was hungry.") == "|The| wolf| was||found");
  CHECK(shown(".", "The wolf was hungry.") == "|The| wolf| was| hungry||found");
}

TEST_CASE("a character that is spread over tokens is found by its bytes") {
  // "ä" and "ö" begin with the same byte, and each byte is a token.
  const std::string text = "aäöäöü";
  REQUIRE(tokenizer().encode(text).size() == text.size());
  for (const auto& [stop, want] : std::vector<std::pair<std::string, std::string>>{
           {"ö", "aä\xc3"}, {"äöü", "aäöäö\xc3"}, {"ü", "aäöäö\xc3"}, {"\xb6", "aä\xc3"}, {"é", text}}) {
    StopFilter filter({{stop}}, tokenizer());
    std::string got;
    for (const int token : tokenizer().encode(text)) {
      if (!filter.found()) got += filter.push(token);
    }
    CHECK(filter.found() == (stop != "é"));
    CHECK(got == want);
  }
}

TEST_CASE("the shown text is as the README draws it") {
  const std::vector<int> tokens =
      tokens_after(kPrompt.size(), continued({kPrompt}, kPlain)[0].generation.tokens);
  const std::vector<std::string> pieces{",",     " who", " had", " been", " watching", " the",
                                        " wolf", ",",    " had", " been", " very"};
  CHECK(tokenizer().encode("wolf") == std::vector<int>{2228, 412});
  CHECK(tokenizer().encode(" wolf") == std::vector<int>{1682});
  StopFilter across({{"ad been ve"}}, tokenizer()), within({{"ver"}}, tokenizer());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    REQUIRE(tokenizer().bytes(tokens[i]) == pieces[i]);
    const bool last = i + 1 == pieces.size();
    CHECK(across.push(tokens[i]) == (last ? "" : pieces[i]));
    CHECK(within.push(tokens[i]) == (last ? " " : pieces[i]));
    CHECK(across.found() == last);
    CHECK(within.found() == last);
  }
}

TEST_CASE("a stop sequence ends the text with the token that completes it, across the borders of tokens") {
  const Shown plain = continued({kPrompt}, kPlain)[0];
  REQUIRE(plain.text.size() > 40);
  for (const std::size_t first : {std::size_t{1}, std::size_t{10}, plain.text.size() - 9}) {
    for (const std::size_t length : {1u, 3u, 8u}) {
      const std::string stop = plain.text.substr(first, length);
      RowOptions options = kPlain;
      options.stop = {{"never", stop}};
      const Shown got = continued({kPrompt}, options)[0];
      CHECK(got.generation.finish_reason == FinishReason::kStop);
      std::vector<int> want = kPrompt;
      std::string text, before;  // with the last token and without it
      while (text.find(stop) == text.npos) {
        want.push_back(plain.generation.tokens[want.size()]);
        before = text;
        text += tokenizer().bytes(want.back());
      }
      CHECK(got.generation.tokens == want);
      CHECK(got.text == std::max(before, text.substr(0, text.find(stop))));  // the longer text counts
      // If one token gives two reasons to end, the stop sequence counts.
      options.stopping.max_new_tokens = static_cast<int>(want.size() - kPrompt.size());
      const Shown both = continued({kPrompt}, options)[0];
      CHECK(both.generation.finish_reason == FinishReason::kStop);
      CHECK(both.text == got.text);
      // With one token less, the sequence is not complete.
      if (--options.stopping.max_new_tokens == 0) continue;
      const Shown shorter = continued({kPrompt}, options)[0];
      CHECK(shorter.generation.finish_reason == FinishReason::kLength);
      CHECK(shorter.text == before);
    }
  }
}

TEST_CASE("a stop sequence that never comes changes nothing") {
  for (const int count : {1, 2, 17, 64}) {
    RowOptions options{{.stopping = {.max_new_tokens = count}}};
    const Shown plain = continued({kPrompt}, options)[0];
    options.stop = {{"e Q", " zz", plain.text.substr(plain.text.size() - 1) + "Q"}};
    const Shown got = continued({kPrompt}, options)[0];
    CHECK(got.text == plain.text);
    CHECK(got.generation.tokens == plain.generation.tokens);
    CHECK(got.generation.finish_reason == plain.generation.finish_reason);
  }
}

TEST_CASE("a stop sequence in the prompt does not stop the text") {
  RowOptions options = kPlain;
  options.stopping.max_new_tokens = 4;
  options.stop = {{std::string(tokenizer().bytes(kPrompt[0])), "f,"}};  // and none across its end
  const Shown got = continued({kPrompt}, options)[0];
  CHECK(got.generation.finish_reason == FinishReason::kLength);
  CHECK(got.text == ", who had been");
}

TEST_CASE("each row of a batch stops for itself") {
  const Prompts prompts{kPrompt, {1294, 259}, {4095}};
  const std::vector<Shown> plain = continued(prompts, kPlain);
  RowOptions options = kPlain;
  options.stop = {{plain[1].text.substr(12, 1)}};
  const std::vector<Shown> got = continued(prompts, options);
  for (std::size_t row = 0; row < prompts.size(); ++row) {  // no part of a character is shown
    CHECK(got[row].text == plain[row].text.substr(0, plain[row].text.find(options.stop.sequences[0])));
  }
  CHECK(got[1].generation.finish_reason == FinishReason::kStop);
  CHECK(got[1].text != plain[1].text);
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

TEST_CASE("the end-of-text token is text only if it ends nothing") {
  // "ending" of the reference.
  const auto& run = reference("batch.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"], ids = run["ids"];
  REQUIRE(run["finish"] == "eos");
  std::string text;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) text += tokenizer().bytes(ids[i]);
  RowOptions options{{.stopping = {.max_new_tokens = 64}}};
  for (const std::string& stop :
       {std::string("never"), text.substr(text.size() - 3) + "<", std::string("<|endoftext|>")}) {
    options.stopping.ignore_eos = false;
    options.stop = {{stop}};
    const Shown got = continued({prompt}, options)[0];
    CHECK(got.text == text);
    CHECK(got.generation.tokens.size() == prompt.size() + ids.size());
    CHECK(got.generation.finish_reason == FinishReason::kEos);
    if (stop == "never") continue;
    options.stopping.ignore_eos = true;
    const Shown behind_it = continued({prompt}, options)[0];
    CHECK(behind_it.text == text);
    CHECK(behind_it.generation.tokens == got.generation.tokens);
    CHECK(behind_it.generation.finish_reason == FinishReason::kStop);
  }
}

TEST_CASE("the program reports why a text ended, and prints only the text shown before a stop sequence") {
  const auto sequence = [](const std::string& arguments) {
    const auto run = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'The wolf' --json " + arguments);
    return run.json()["sequences"][0];
  };
  CHECK(sequence("--max-new-tokens 30")["finish_reason"] == "length");
  const auto within = sequence("--stop Q --stop ver");
  CHECK(within["finish_reason"] == "stop");
  CHECK(within["text"] == ", who had been watching the wolf, had been ");
  CHECK(within["token_ids"].size() == 11);
  const auto across = sequence("--stop 'ad been ve'");
  CHECK(across["finish_reason"] == "stop");
  CHECK(across["text"] == ", who had been watching the wolf, had been");
  CHECK(across["token_ids"] == within["token_ids"]);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'The wolf' --stop 'ad been ve'").out ==
        ", who had been watching the wolf, had been\n");
  for (const char* wrong : {"--stop ''", "--stop", "--stop a --stop ''"}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(begins_with(refused.err, "error: "));
    CHECK(contains(refused.err, "--stop"));
    CHECK(refused.out.empty());
  }
}
