#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "generate.h"
#include "grammar.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"
#include "token_masks.h"

using namespace staircase;

namespace {

using Kind = RegexPart::Kind;
using Texts = std::set<std::string>;

Grammar grammar(std::string_view rules) {
  return Grammar(parse_grammar(rules));
}

bool is_valid(const Grammar& grammar, std::string_view text) {
  return grammar.accepts(grammar.after(grammar.start(), text));
}

bool may_become_valid(const Grammar& grammar, std::string_view text) {
  return !grammar.after(grammar.start(), text).empty();
}

KeepAllowed<Grammar> row_of(std::string_view rules) {
  return {std::make_shared<TokenMasks<Grammar>>(
      TokenMasks<Grammar>{grammar(rules), tales_tokenizer(), tales().config().end_tokens})};
}

/// What a part describes, by its definition: its texts of at most kLongest bytes, and the beginnings of all
/// of its texts, cut to that length.
constexpr std::size_t kLongest = 4;
struct Listed {
  Texts texts = {}, beginnings = {};

  bool operator==(const Listed&) const = default;
};

Listed followed(const Listed& first, const Listed& second) {
  Listed both{{}, first.beginnings};
  const auto join = [](const Texts& fronts, const Texts& ends, Texts& all) {
    for (const std::string& front : fronts) {
      for (const std::string& end : ends)
        if (front.size() + end.size() <= kLongest) all.insert(front + end);
    }
  };
  if (second.beginnings.empty()) return {};
  join(first.texts, second.texts, both.texts);
  join(first.texts, second.beginnings, both.beginnings);
  return both;
}

Listed either(Listed one, const Listed& other) {
  one.texts.insert(other.texts.begin(), other.texts.end());
  one.beginnings.insert(other.beginnings.begin(), other.beginnings.end());
  return one;
}

/// A text of rules, and what each describes as a function of what all rules describe.
struct Written {
  std::string text;
  std::function<Listed(const std::vector<Listed>&)> listed;
};

Written any_part(std::mt19937& random, int rules, int depth) {
  const Listed nothing{{""}, {""}};
  const auto kind = random() % (depth == 0 ? 4 : 8);
  if (kind < 3) {
    const std::string letter(1, static_cast<char>('a' + random() % 3));
    const Listed one{{letter}, {"", letter}};
    return {"\"" + letter + "\"", [=](const auto&) { return one; }};
  }
  if (kind == 3) {
    const int rule = static_cast<int>(random() % rules);
    return {rule == 0 ? "root" : fmt::format("r{}", rule), [=](const auto& known) { return known[rule]; }};
  }
  const Written first = any_part(random, rules, depth - 1);
  if (kind == 4) {
    const int least = static_cast<int>(random() % 3),
              most = random() % 2 ? 99 : least + 1 + static_cast<int>(random() % 2);
    return {"(" + first.text + fmt::format("){{{},{}}}", least, most == 99 ? "" : std::to_string(most)),
            [=](const auto& known) {
              const Listed one = first.listed(known);
              Listed power = nothing, sum;
              if (one.beginnings.empty()) return least == 0 ? nothing : Listed();
              // An empty text repeats without a change, so a few repetitions are enough.
              for (int times = 0; times <= std::min(most, 9); ++times, power = followed(power, one))
                sum = times < least ? sum : either(sum, power);
              return sum;
            }};
  }
  const Written second = any_part(random, rules, depth - 1);
  if (kind < 7)
    return {first.text + " " + second.text,
            [=](const auto& known) { return followed(first.listed(known), second.listed(known)); }};
  return {"(" + first.text + " | " + second.text + ")",
          [=](const auto& known) { return either(first.listed(known), second.listed(known)); }};
}

std::vector<std::string> all_texts() {
  std::vector<std::string> all{""};
  for (std::size_t i = 0; all[i].size() < kLongest; ++i)
    for (const char c : {'a', 'b', 'c'}) all.push_back(all[i] + c);
  return all;
}

/// Follows texts that the masks allow, and compares each mask with a predicate on whole bytes.
void check_masks(std::string_view rules, const std::function<bool(const std::string&)>& may_become_valid,
                 const std::function<bool(const std::string&)>& is_valid, int runs) {
  std::mt19937 random(1);
  const int end = tales().config().eos_token_id;
  const KeepAllowed<Grammar> fresh = row_of(rules);
  std::map<std::string, std::vector<int>> seen;
  for (int run = 0; run < runs; ++run) {
    KeepAllowed<Grammar> masks = fresh;
    std::vector<int> text;
    std::string written;
    for (int i = 0; i < 15; ++i) {
      std::vector<float> logits(tales_tokenizer().vocab_size(), 1.0f);
      masks(logits, text);
      std::vector<int>& kept = seen[written];
      if (kept.empty()) {
        std::vector<int> wanted;
        for (int token = 0; token < std::ssize(logits); ++token) {
          if (is_kept(logits[token])) kept.push_back(token);
          const std::string longer = written + std::string(tales_tokenizer().bytes(token));
          if (token == end ? is_valid(written) : may_become_valid(longer)) wanted.push_back(token);
        }
        CAPTURE(written);
        CHECK(kept == wanted);
      }
      const int next = kept[random() % kept.size()];
      if (next == end) break;
      text.push_back(next);
      written += tales_tokenizer().bytes(next);
    }
  }
  CHECK(std::ssize(seen) > 2 * runs);
}

constexpr const char* kJson = R"(
root   ::= value
value  ::= space (object | array | string | number | "true" | "false" | "null") space
object ::= "{" (space | member ("," member)*) "}"
member ::= space string space ":" value
array  ::= "[" (space | value ("," value)*) "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
space  ::= [ \n\r\t]*
)";

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --json --prompt 'The King' " + options);
}

}  // namespace

TEST_CASE("an automaton knows after each byte what the definition of a grammar knows") {
  std::mt19937 random(1);
  int read = 0, recursive = 0, whole = 0;
  for (int i = 0; i < 400; ++i) {
    const int count = 1 + static_cast<int>(random() % 3);
    std::vector<Written> rules;
    std::string text;
    for (int rule = 0; rule < count; ++rule) {
      rules.push_back(any_part(random, count, 2));
      text += (rule == 0 ? "root" : fmt::format("r{}", rule)) + " ::= " + rules[rule].text + "\n";
    }
    CAPTURE(text);
    std::vector<Listed> known(count), before(count, Listed{{"?"}, {}});
    while (known != before) {
      before = known;
      for (int rule = 0; rule < count; ++rule) known[rule] = rules[rule].listed(before);
    }
    std::unique_ptr<Grammar> automaton;
    const std::string error =
        error_message([&] { automaton = std::make_unique<Grammar>(parse_grammar(text)); });
    if (known[0].beginnings.empty() && error.find("begins with itself") == error.npos)
      CHECK(error.find("no finite text") != error.npos);
    if (automaton == nullptr) continue;
    ++read;
    recursive += text.find("root", 4) != text.npos;
    for (const std::string& one : all_texts()) {
      if (is_valid(*automaton, one) != known[0].texts.contains(one)) FAIL_CHECK(one);
      if (may_become_valid(*automaton, one) != known[0].beginnings.contains(one)) FAIL_CHECK(one);
      whole += known[0].texts.contains(one);
    }
  }
  CHECK(read > 150);
  CHECK(recursive > 25);
  CHECK(whole > 300);
}

TEST_CASE("the tokens offered are those with which a text in balanced brackets begins") {
  const auto depth = [](const std::string& text) {  // -1 if it begins no valid text
    int open = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (std::string_view("()").find(text[i]) == std::string_view::npos || (i > 0 && open == 0)) return -1;
      open += text[i] == '(' ? 1 : -1;
      if (open < 0) return -1;
    }
    return open;
  };
  check_masks(R"g(root ::= "(" root* ")")g", [&](const std::string& text) { return depth(text) >= 0; },
              [&](const std::string& text) { return !text.empty() && depth(text) == 0; }, 60);
}

TEST_CASE("the tokens offered are those with which a calculation begins") {
  struct Read {
    bool is_alive = true, wants_operand = true;
    int open = 0;
  };
  const auto read = [](const std::string& text) {
    Read state;
    bool is_in_number = false;
    for (const char c : text) {
      const bool is_digit = c >= '0' && c <= '9';
      if (state.wants_operand
              ? !is_digit && c != '(' && c != '-'
              : !(is_digit && is_in_number) && std::string_view("+-*/)").find(c) == std::string_view::npos)
        state.is_alive = false;
      if (c == ')' && state.open == 0) state.is_alive = false;
      if (!state.is_alive) break;
      state.open += (c == '(') - (c == ')');
      state.wants_operand = !is_digit && c != ')';
      is_in_number = is_digit;
    }
    return state;
  };
  check_masks(
      "root ::= term ([-+*/] term)*\nterm ::= \"-\" term | [0-9]+ | \"(\" root \")\"",
      [&](const std::string& text) { return read(text).is_alive; },
      [&](const std::string& text) {
        return read(text).is_alive && !read(text).wants_operand && read(text).open == 0;
      },
      60);
}

TEST_CASE("the grammar of JSON describes what a parser of JSON accepts") {
  std::mt19937 random(2);
  const Grammar json = grammar(kJson);
  const std::string bytes = "{}[]\",:0123.eE+-\\u/btrufalsn \n\x01\xC3\xA9";
  std::vector<std::string> texts{
      R"({"a": [1, -2.5e+3, "é\n\u00e9", {}], "b": {"c": null, "": [true, false, []]}})", "0", "[[[[[]]]]]",
      R"("\"\\/")"};
  int valid = 0, invalid = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text = texts[random() % texts.size()];
    for (auto changes = random() % 3; changes > 0 && !text.empty(); --changes) {
      const std::size_t at = random() % text.size();
      if (random() % 2)
        text.erase(at, 1 + random() % 3);
      else
        text.insert(at, 1, bytes[random() % bytes.size()]);
    }
    const bool wanted = nlohmann::json::accept(text);
    (wanted ? valid : invalid)++;
    if (is_valid(json, text) != wanted && text.find("\\u") == text.npos)
      FAIL_CHECK(text);  // the grammar refuses half a pair
    if (wanted && texts.size() < 200) texts.push_back(text);
  }
  CHECK(valid > 500);
  CHECK(invalid > 500);
}

TEST_CASE("texts of the same rules come back to the same stacks") {
  const Grammar list = grammar("root ::= word | word \", \" root\nword ::= [a-z]+");
  const Grammar::States two = list.after(list.start(), "a, b");
  CHECK(list.after(list.start(), "fox, lion, crow, king") == two);
  CHECK(two.size() < 6);
  const Grammar json = grammar(kJson);
  const Grammar::States inner = json.after(json.start(), "[[1, 2], ");
  CHECK(json.after(json.start(), R"([{"a": "b", "c": [[], {}]}, "x", )") == inner);
}

TEST_CASE("a count takes no states but its own") {
  const Grammar counted = grammar("root ::= [a-z]{3,5000} [0-9]{0,5000} \"!\"+");
  CHECK_FALSE(may_become_valid(counted, "ab!"));
  for (const int length : {3, 500, 5'000}) {
    const Grammar::States states = counted.after(counted.start(), std::string(length, 'a'));
    CHECK(states.size() <= 3);
    CHECK(counted.accepts(counted.after(states, "0!!!")));
  }
  CHECK_FALSE(may_become_valid(counted, std::string(5'001, 'a')));
}

TEST_CASE("brackets may be as deep as a text is long") {
  const Grammar brackets = grammar("root ::= \"(\" root* \")\"");
  for (const int depth : {1, 1000, 10'000}) {
    CHECK(is_valid(brackets, std::string(depth, '(') + std::string(depth, ')')));
    CHECK_FALSE(is_valid(brackets, std::string(depth, '(') + std::string(depth - 1, ')')));
    CHECK_FALSE(may_become_valid(brackets, std::string(depth, '(') + std::string(depth + 1, ')')));
  }
}

TEST_CASE("a grammar that can be read in too many ways ends with one sentence, in bounded time and memory") {
  const Grammar doubled = grammar("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"");
  CHECK(may_become_valid(doubled, "aaaaaa"));
  CHECK(error_message([&] { may_become_valid(doubled, std::string(100, 'a')); }) ==
        "the grammar has over 5000 stacks at once");
  const auto choices = [](int count) {
    std::string text = "root ::= \"a\" (\"x\"";
    for (int i = 1; i < count; ++i) text += " | \"x\"";
    return grammar(text + ")");
  };
  CHECK(is_valid(choices(5'000), "ax"));
  CHECK(error_message([&] { is_valid(choices(5'001), "ax"); }) == "the grammar has over 5000 stacks at once");
  const Grammar deep = grammar("root ::= \"(\" root \")\" | \"[\" root \"]\" | \"\"");
  CHECK(error_message([&] { may_become_valid(deep, std::string(100'000, '(')); }) ==
        "the grammar needs over 200000 stacks");
  CHECK(error_message([&] { may_become_valid(deep, "("); }) == "the grammar needs over 200000 stacks");
}

TEST_CASE("greedy texts are those of Hugging Face transformers with the same tokens offered") {
  const auto& file = reference("grammar.json");
  for (const auto& one : file["cases"]) {
    const std::string rules = one["grammar"];
    CAPTURE(rules);
    RowOptions options{{.stopping = {.max_new_tokens = file["max_new_tokens"]}}};
    std::vector<int> ids, offered;
    options.edit_raw_logits = [&, masks = row_of(rules)](std::span<float> logits,
                                                         std::span<const int> text) mutable {
      masks(logits, text);
      offered.push_back(static_cast<int>(std::ranges::count_if(logits, is_kept)));
    };
    StaticKvCache cache(tales(), 1);
    generate(tales(), tales_tokenizer(), {one["prompt_ids"].get<std::vector<int>>()}, 1, options, 1, cache,
             [&](int, const Token& token) { ids.push_back(token.id); });
    CHECK(first_difference(ids, one["ids"], one["gaps"]) == "");
    CHECK(offered == one["allowed"].get<std::vector<int>>());
  }
}

TEST_CASE("drawn texts follow the grammar, in a batch and alone") {
  const TemporaryFolder folder;
  folder.write("talk.gbnf", "root ::= \" (\" word (\" \" (word | root))* \")\"\nword ::= [a-z]{1,9}\n");
  const std::string options = "--grammar " + (folder.path() / "talk.gbnf").string() +
                              " --max-new-tokens 200 --do-sample --temperature 1.5 ";
  const nlohmann::json together = run(options + "--seed 5 --num-return-sequences 6").json()["sequences"];
  int ended = 0;
  for (int i = 0; i < 6; ++i) {
    const std::string text = together[i]["text"];
    CAPTURE(text);
    const bool is_whole = together[i]["finish_reason"] == "eos";
    ended += is_whole;
    CHECK((std::ranges::count(text, '(') == std::ranges::count(text, ')')) == is_whole);
    const nlohmann::json alone = run(options + fmt::format("--seed {}", 5 + i)).json()["sequences"][0];
    CHECK(together[i]["token_ids"] == alone["token_ids"]);
  }
  CHECK(ended > 0);
}

TEST_CASE("a grammar that cannot be read is refused before any work") {
  const TemporaryFolder folder;
  const std::string options = "--model /nonexistent --grammar " + (folder.path() / "a.gbnf").string();
  for (const auto& [rules, error] : std::vector<std::pair<std::string, std::string>>{
           {"root ::= \"a",
            "the grammar cannot be read at line 1, column 12: a \" is missing; write \\n for the end of a "
            "line"},
           {"root ::= a", "the grammar cannot be read at line 1, column 10: there is no rule a"},
           {"root ::= root \"a\" | \"a\"",
            "the rule root begins with itself; write a ::= b (\"+\" b)* instead of a ::= b | a \"+\" b"},
           {"root ::= \"a\" root", "no finite text matches the grammar: all its texts go on for ever"}}) {
    folder.write("a.gbnf", rules);
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, options);
    CHECK(refused.status == 2);
    CHECK(refused.err == "error: " + error + "\n");
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--model /nonexistent --grammar=").status == 2);
  folder.write("a.gbnf", "root ::= \"a\"");
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options).status == 1);  // there is no such model
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--model tales-6m --prompt a --grammar /nonexistent").status ==
        1);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options + " --ignore-eos").err ==
        "error: --grammar decides where a text ends, so leave out --ignore-eos and --min-new-tokens\n");
}
