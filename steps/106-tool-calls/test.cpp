#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "generate.h"
#include "jump_ahead.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"
#include "tools.h"

using namespace staircase;

namespace {

const std::string kFarmer = STAIRCASE_SOURCE_TREE "/bench/farmer.gbnf";

struct Run {
  std::vector<int> tokens;  // the new ones
  std::string text;
  FinishReason reason;
  int passes = 0;
  std::string shown_text = {};
};

Run called(const std::string& rules, bool tools, bool with_cache = true, unsigned seed = 0, int most = 100,
           const std::string& prompt = "Once upon a time. ", const std::vector<std::string>& stops = {}) {
  const auto masks = std::make_shared<TokenMasks<Grammar>>(
      TokenMasks<Grammar>{Grammar(parse_grammar(rules)), tales_tokenizer(), tales().config().end_tokens});
  StaticKvCache kept(tales(), 1);
  NoCache none;
  RowOptions options;
  options.edit_raw_logits = KeepAllowed<Grammar>{masks};
  options.stopping.max_new_tokens = most;
  options.stop.sequences = stops;
  options.sampling.do_sample = seed > 0;
  options.sampling.seed = seed;
  Run run;
  std::vector<int> shown;
  const std::vector<int> tokens = tales_tokenizer().encode(prompt);
  const Generation made = generate_ahead(
      tales(), masks, tokens, options, with_cache ? static_cast<KvCache&>(kept) : none, run.passes,
      [&](const Token& token) {
        shown.push_back(token.id);
        run.shown_text += token.text.value_or(std::string(tales_tokenizer().bytes(token.id)));
      },
      tools);
  run.tokens.assign(made.tokens.begin() + std::ssize(tokens), made.tokens.end());
  CHECK(shown == run.tokens);
  run.reason = made.finish_reason;
  std::vector<int> text = run.tokens;
  if (run.reason == FinishReason::kEos) text.pop_back();
  run.text = tales_tokenizer().decode(text);
  return run;
}

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --prompt 'Once upon a time. ' " + options);
}

}  // namespace

TEST_CASE("a call gets its result where its argument ends, and other texts get none") {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const long long a = random() % 1'000'000'000, b = random() % 1000;
    CHECK(result_at_end(fmt::format("[calc({}+{}) =", a, b)) == fmt::format(" {}]", a + b));
    CHECK(result_at_end(fmt::format("[calc({}-{}) =", b, a)) == fmt::format(" {}]", b - a));
    CHECK(result_at_end(fmt::format("He had [calc({}*{}) =", a, a)) == fmt::format(" {}]", a * a));
  }
  for (const auto& [text_, result] :
       std::vector<std::pair<std::string, std::string>>{{"He had [calc(3*4) = 12] and [calc(1-4) =", " -3]"},
                                                        {"[calc(3*4)", ""},
                                                        {"[calc(3*4) = ", ""},
                                                        {"[calc(3*4) = 12]", ""},
                                                        {"calc(3*4) =", ""},
                                                        {"(3*4) =", ""},
                                                        {"[calk(3*4) =", ""},
                                                        {"[ calc(3*4) =", ""},
                                                        {"[calc(3/4) =", ""},
                                                        {"[calc(3+4+5) =", ""},
                                                        {"[calc(3) =", ""},
                                                        {"[calc(+3) =", ""},
                                                        {"[calc(3 + 4) =", ""},
                                                        {"[calc(1234567890+1) =", ""},
                                                        {"[calc(1+1234567890) =", ""},
                                                        {"[) =", ""},
                                                        {"", ""}}) {
    const auto& text = text_;  // clang 14 captures no structured binding
    CAPTURE(text);
    CHECK(result_at_end(text) == result);
  }
}

TEST_CASE("the program writes the results, and the model all that is left open") {
  const std::string number = "([1-9] [0-9]?)", result = " \") = \" \"-\"? [0-9]{1,9} \"]";
  const std::string rules = "root ::= \"He had \" " + number + " \" sons: [calc(\" " + number +
                            " (\"*\" | \"-\") " + number + result + ", and [calc(7+\" " + number + result +
                            ".\"";
  for (unsigned seed = 0; seed < 8; ++seed) {
    const Run with = called(rules, true, true, seed);
    CAPTURE(with.text);
    REQUIRE(with.reason == FinishReason::kEos);
    int sons = 0, a = 0, b = 0, first = 0, c = 0, second = 0;
    char sign = 0;
    REQUIRE(std::sscanf(with.text.c_str(), "He had %d sons: [calc(%d%c%d) = %d], and [calc(7+%d) = %d].",
                        &sons, &a, &sign, &b, &first, &c, &second) == 7);
    CHECK(first == (sign == '*' ? a * b : a - b));
    CHECK(second == 7 + c);
    // The model reads the results, so it chooses the same tokens with a cache and without.
    CHECK(called(rules, true, false, seed).tokens == with.tokens);
  }
}

TEST_CASE("a result costs no pass, and without --tools the model makes one up") {
  const std::string rules = "root ::= \"[calc(12*12) = \" [0-9]{1,9} \"] birds\"";
  const Run with = called(rules, true), without = called(rules, false);
  CHECK(with.text == "[calc(12*12) = 144] birds");
  CHECK(with.passes < without.passes);
  CHECK(without.text != with.text);
}

TEST_CASE("nothing of a stop sequence is shown, also where a result has it") {
  const std::string rules = "root ::= \"[calc(12*12) = \" [0-9]{1,9} \"] birds\"";
  const std::string prompt = "Once upon a time. ", whole = called(rules, true).text;
  for (std::size_t first = 0; first + 2 <= whole.size(); ++first) {
    const std::string stop = whole.substr(first, 2);
    CAPTURE(stop);
    CHECK(called(rules, true, true, 0, 100, prompt, {stop}).shown_text == whole.substr(0, whole.find(stop)));
  }
}

TEST_CASE("a call that the prompt has begun gets its result, too") {
  const std::string rules = "root ::= \" \" [0-9]{1,9} \"] sons\"";
  CHECK(called(rules, true, true, 0, 100, "He had [calc(2+3) =").text == " 5] sons");
}

TEST_CASE("appended results count for the length, and a result that the grammar forbids is an error") {
  const std::string rules = "root ::= \"[calc(12*12) = \" [0-9]{1,9} \"] birds\"";
  for (int most = 0; most <= 8; ++most) CHECK(std::ssize(called(rules, true, true, 0, most).tokens) <= most);
  CHECK(error_message([&] { called("root ::= \"[calc(12*12) = \" [5-9]{1,9} \"] birds\"", true); }) ==
        "the grammar does not allow the result 144] of a call");
}

TEST_CASE("a result that does not fit into the context is an error, not the model's own number") {
  std::string prompt;
  while (std::ssize(tales_tokenizer().encode(prompt)) < tales().config().n_positions - 2) prompt += " the";
  CHECK(error_message([&] {
          called("root ::= \"[calc(12*12) = \" [0-9]{1,9} \"]\"", true, true, 0, 60, prompt);
        }) == "the context has no room for the result 144] of a call");
}

TEST_CASE("the program calls functions with --tools") {
  const std::string options = "--grammar " + kFarmer + " --jump-ahead --max-new-tokens 80 ";
  const auto text = [&](const std::string& more) {
    return run(options + "--json " + more).json()["sequences"][0]["text"].get<std::string>();
  };
  int a = 0, b = 0, sum = 0;
  const std::string with = text("--tools");
  CAPTURE(with);
  const std::size_t call = with.find("[calc(");
  REQUIRE(call != with.npos);
  REQUIRE(std::sscanf(with.c_str() + call, "[calc(%d+%d) = %d] birds.", &a, &b, &sum) == 3);
  CHECK(sum == a + b);
  CHECK(text("") != with);
  const ProgramRun refused = run_program(
      STAIRCASE_STEP_PROGRAM, "--model tales-6m --device cpu --prompt a --tools --grammar " + kFarmer);
  CHECK(refused.status == 2);
  CHECK(refused.err == "error: --tools needs --jump-ahead\n");
}
