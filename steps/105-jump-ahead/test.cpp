#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "generate.h"
#include "jump_ahead.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

namespace {

using Texts = std::vector<std::string>;

const std::string kAnimal = STAIRCASE_SOURCE_TREE "/bench/animal.gbnf";

std::string forced_after(const Grammar& grammar, std::string_view text) {
  return forced_text(grammar, grammar.after(grammar.start(), text));
}

std::shared_ptr<TokenMasks<Grammar>> masks_of(const std::string& rules) {
  return std::make_shared<TokenMasks<Grammar>>(
      TokenMasks<Grammar>{Grammar(parse_grammar(rules)), tales_tokenizer(), tales().config().end_tokens});
}

struct Run {
  std::vector<int> tokens;  // the new ones
  std::string text;
  FinishReason reason;
  int passes = 0;
  std::vector<int> shown = {};
  std::string shown_text = {};
};

Run ahead(const std::string& rules, RowOptions options, bool with_cache = true,
          const std::string& prompt = "Once upon a time. ") {
  StaticKvCache kept(tales(), 1);
  NoCache none;
  Run run;
  const std::vector<int> tokens = tales_tokenizer().encode(prompt);
  const auto masks = masks_of(rules);
  options.edit_raw_logits = KeepAllowed<Grammar>{masks};
  const Generation made =
      generate_ahead(tales(), masks, tokens, options, with_cache ? static_cast<KvCache&>(kept) : none,
                     run.passes, [&](const Token& token) {
                       run.shown.push_back(token.id);
                       run.shown_text += token.text.value_or(std::string(tales_tokenizer().bytes(token.id)));
                     });
  run.tokens.assign(made.tokens.begin() + std::ssize(tokens), made.tokens.end());
  run.reason = made.finish_reason;
  std::vector<int> text = run.tokens;
  if (run.reason == FinishReason::kEos) text.pop_back();
  run.text = tales_tokenizer().decode(text);
  return run;
}

RowOptions up_to(int tokens) {
  RowOptions options;
  options.stopping.max_new_tokens = tokens;
  return options;
}

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --prompt 'Once upon a time. ' " + options);
}

}  // namespace

TEST_CASE("the forced text is what all texts that go on have in common") {
  std::mt19937 random(1);
  int forced = 0;
  for (int i = 0; i < 60; ++i) {
    // Slots of one to three words. A word may be empty or be a prefix of another one.
    Texts texts{""};
    std::string rules = "root ::=";
    for (auto slots = 1 + random() % 4; slots > 0; --slots) {
      Texts words, longer;
      for (auto count = 1 + random() % 3; count > 0; --count) {
        std::string word;
        for (auto letters = random() % 5; letters > 0; --letters)
          word += std::string("aab\xC3")[random() % 4];
        words.push_back(word);
      }
      rules += " (";
      for (std::size_t k = 0; k < words.size(); ++k) {
        const std::string& word = words[k];
        rules += k == 0 ? "" : " | ";
        std::string quoted;
        for (const char byte : word) quoted += byte == '\xC3' ? "é" : std::string(1, byte);
        rules += "\"" + quoted + "\"";
        for (const std::string& text : texts) longer.push_back(text + quoted);
      }
      rules += ")";
      texts = longer;
    }
    CAPTURE(rules);
    const Grammar grammar(parse_grammar(rules));
    for (const std::string& text : texts) {
      for (std::size_t length = 0; length <= text.size(); ++length) {
        const std::string begun = text.substr(0, length);
        std::string common = text.substr(length);
        for (const std::string& other : texts) {
          if (!other.starts_with(begun)) continue;
          const std::string rest = other.substr(length);
          while (!rest.starts_with(common)) common.pop_back();
        }
        CHECK(forced_after(grammar, begun) == common);
        forced += !common.empty();
      }
    }
  }
  CHECK(forced > 200);
  CHECK(forced_after(Grammar(parse_grammar("root ::= \"a\"+")), "").size() == 1);
  CHECK(forced_after(Grammar(parse_grammar("root ::= \"a\"{3000}")), "").size() == 1000);
}

TEST_CASE("the tokens appended are those of the forced text, but for the last") {
  for (const char* text : {"", "a", ", and it is ", "The animal is a ", "é"}) {
    std::vector<int> tokens = tales_tokenizer().encode(text);
    if (!tokens.empty()) tokens.pop_back();
    CHECK(sure_tokens(tales_tokenizer(), text) == tokens);
  }
}

TEST_CASE(
    "the model is asked at the last token of each forced text, where there is a choice, and at the end") {
  // A text without any choice: only its last token and its end need the model.
  const Run fixed = ahead("root ::= \"The fox said to the crow: good day!\"", up_to(50));
  CHECK(fixed.text == "The fox said to the crow: good day!");
  CHECK(fixed.reason == FinishReason::kEos);
  CHECK(fixed.tokens.size() > 8);
  CHECK(fixed.passes >= 2);
  CHECK(fixed.passes <= 4);  // the model may write the last bytes in several tokens
  CHECK(fixed.shown == fixed.tokens);
  // A text that is all choices.
  const Run free = ahead("root ::= [^x]{20}", up_to(60));
  CHECK(free.passes == std::ssize(free.tokens));
  // A sentence with three gaps.
  const Run gaps = ahead(
      "root ::= \"The animal is a \" (\"fox\" | \"lion\") \", and it is \" [1-9] \" years old.\"", up_to(60));
  CHECK(gaps.reason == FinishReason::kEos);
  CHECK(gaps.passes < std::ssize(gaps.tokens) / 2 + 1);
}

TEST_CASE("the model reads the appended tokens: with a cache and without, each choice is the same") {
  const std::string rules =
      "root ::= \"He had \" (\"one\" | \"two\" | \"three\") \" sons, and the \" [a-z]{3,8} \" of them was a "
      "\" [a-z]{3,9} \".\"";
  for (unsigned seed = 0; seed < 6; ++seed) {
    RowOptions options = up_to(80);
    options.sampling.do_sample = seed > 0;
    options.sampling.seed = seed;
    const Run with = ahead(rules, options), without = ahead(rules, options, false);
    CHECK(with.tokens == without.tokens);
    CHECK(with.passes == without.passes);
    CHECK(with.shown == with.tokens);
    const Grammar grammar(parse_grammar(rules));
    CHECK(grammar.accepts(grammar.after(grammar.start(), with.text)));
    CHECK(with.passes < std::ssize(with.tokens));
  }
}

TEST_CASE("nothing of a stop sequence is shown, whether its tokens are chosen or appended") {
  const std::string rules = "root ::= \"A fox and \" (\"a crow\" | \"a cat\") \" sat in the tree.\"";
  const std::string whole = ahead(rules, up_to(100)).text;
  for (std::size_t first = 0; first + 3 <= whole.size(); ++first) {
    const std::string stop = whole.substr(first, 3);
    CAPTURE(stop);
    RowOptions options = up_to(100);
    options.stop.sequences = {stop};
    CHECK(ahead(rules, options).shown_text == whole.substr(0, whole.find(stop)));
  }
}

TEST_CASE("appended tokens count: for the length, and for a stop sequence") {
  const std::string rules = "root ::= \"The fox said to the crow: good day!\"";
  for (int most = 0; most <= 6; ++most) {
    const Run cut = ahead(rules, up_to(most));
    CHECK(std::ssize(cut.tokens) == most);
    CHECK(cut.reason == FinishReason::kLength);
    CHECK(cut.passes == 0);
  }
  RowOptions options = up_to(50);
  options.stop.sequences = {"crow"};
  const Run stopped = ahead(rules, options);
  CHECK(stopped.reason == FinishReason::kStop);
  CHECK(stopped.passes == 0);
  CHECK(stopped.text.ends_with("crow"));
}

TEST_CASE("beyond the context, where a pass reads one token, none is appended") {
  const std::string rules = "root ::= \"The fox said to the crow: good day!\"";
  const int fits = tales().config().n_positions - 4;
  std::string prompt;
  while (std::ssize(tales_tokenizer().encode(prompt)) < fits) prompt += " the";
  REQUIRE(std::ssize(tales_tokenizer().encode(prompt)) == fits);
  const Run slid = ahead(rules, up_to(60), true, prompt);
  CHECK(slid.text == "The fox said to the crow: good day!");
  CHECK(slid.passes == std::ssize(slid.tokens) - 4);
}

TEST_CASE("the program says how many passes its tokens took, with --jump-ahead fewer") {
  const std::string options = "--grammar " + kAnimal + " --max-new-tokens 60 ";
  const nlohmann::json slow = run(options + "--json").json(),
                       fast = run(options + "--jump-ahead --json").json();
  const auto tokens = [](const nlohmann::json& one) { return one["sequences"][0]["token_ids"].size(); };
  CHECK(fast["stats"]["passes"].get<std::size_t>() < tokens(fast));
  CHECK(slow["sequences"][0]["finish_reason"] == "eos");
  CHECK(fast["sequences"][0]["finish_reason"] == "eos");
  const ProgramRun said = run(options + "--jump-ahead");
  CHECK(said.err.find(fmt::format("{} tokens in {} passes", tokens(fast),
                                  fast["stats"]["passes"].get<int>())) != std::string::npos);
}

TEST_CASE("what cannot be jumped over is refused") {
  const auto refusal = [](const std::string& options) {
    const ProgramRun refused =
        run_program(STAIRCASE_STEP_PROGRAM, "--model tales-6m --device cpu --prompt a " + options);
    CHECK(refused.status == 2);
    return refused.err;
  };
  CHECK(refusal("--jump-ahead") == "error: --jump-ahead needs --grammar\n");
  for (const char* option : {"--logprobs 2", "--show-candidates 2"})
    CHECK(refusal("--jump-ahead --grammar " + kAnimal + " " + option) ==
          "error: --jump-ahead appends tokens for which there are no logits, so leave out --logprobs and "
          "--show-candidates\n");
  for (const char* option : {"--no-use-cache", "--prompt b", "--num-return-sequences 2 --do-sample"})
    CHECK(refusal("--jump-ahead --grammar " + kAnimal + " " + option)
              .find("--jump-ahead needs the cache, one prompt and one continuation") != std::string::npos);
}
