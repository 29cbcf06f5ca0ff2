// Texts that must match a pattern, a grammar, a schema or a choice: what requests may say, and which tokens a
// row may choose.
#include "common/server/text_constraint.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "common/base/file.h"
#include "common/server/completion_request.h"
#include "common/text/code_points.h"
#include "common/text/grammar_syntax.h"
#include "common/text/json_schema.h"
#include "common/text/tokenizer_json.h"
#include "grammar.h"
#include "object_members.h"
#include "regex.h"
#include "tests/error_message.h"
#include "token_masks.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-6m");
  return loaded;
}

const int kEnd = tokenizer().special_tokens().front();

ServedModel served(EndTokens ends) {
  return {"models/tales/",
          tokenizer(),
          {.vocab_size = tokenizer().vocab_size(), .n_positions = 64, .end_tokens = ends}};
}

const ServedModel& model() {
  static const ServedModel one = served({kEnd});
  return one;
}

std::shared_ptr<const SortedTokens> tokens() {
  static const auto all = std::make_shared<const SortedTokens>(tokenizer(), EndTokens({kEnd}));
  return all;
}

std::string with(const std::string& more) {
  return R"({"prompt": "The fox", "max_tokens": 8, "temperature": 0, )" + more + "}";
}

std::string refusal(const std::string& more, const ServedModel& model = ::model()) {
  try {
    CompletionRequest request(with(more), model);
    row_options(request);
  } catch (const HttpError& error) {
    return fmt::format("{} {}: {}", error.status, error.key, error.what());
  }
  return "";
}

/// Whether the text, cut into bytes, is one that the request allows as a whole.
bool allows(const std::string& more, std::string_view text) {
  CompletionRequest request(with(more), model());
  RowOptions options = row_options(request);
  std::vector<int> chosen;
  const auto logits = [&] {
    std::vector<float> all(static_cast<std::size_t>(model().vocab_size));
    options.edit_raw_logits(all, chosen);
    return all;
  };
  for (const char byte : text) {
    const int token = tokenizer().encode(std::string_view(&byte, 1)).front();
    if (logits()[static_cast<std::size_t>(token)] == kMasked) return false;
    chosen.push_back(token);
  }
  return logits()[static_cast<std::size_t>(kEnd)] != kMasked;
}

std::string schema_format(const std::string& schema, const std::string& more = "") {
  return R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": )" + schema +
         more + "}}";
}

/// Walks at random through texts of both, whose masks must be equal.
template <typename Allowed>
void compare(const Allowed& allowed, Constraint& constraint, unsigned seed, int length = 12) {
  TokenMasks<Allowed> masks{allowed, tokenizer(), {kEnd}};
  std::mt19937 generator(seed);
  for (int turn = 0; turn < 4; ++turn) {
    Constraint::Place place;
    auto states = masks.allowed.start();
    std::vector<int> text;
    for (int i = 0; i < length; ++i) {
      CAPTURE(tokenizer().decode(text));
      const std::vector<bool>& expected = masks.mask(states);
      std::vector<float> logits(expected.size(), 1.0f);
      constraint.keep_allowed(logits, text, place);
      std::vector<int> next;
      bool are_equal = true;
      for (std::size_t token = 0; token < logits.size(); ++token) {
        are_equal &=
            expected[token] == (logits[token] == 1.0f) && (expected[token] || logits[token] == kMasked);
        if (expected[token] && static_cast<int>(token) != kEnd) next.push_back(static_cast<int>(token));
      }
      REQUIRE(are_equal);
      if (next.empty()) break;
      text.push_back(next[generator() % next.size()]);
      states = masks.allowed.after(states, tokenizer().bytes(text.back()));
    }
  }
}

}  // namespace

TEST_CASE("the masks are those of the lessons, for patterns, grammars and schemas") {
  unsigned seed = 0;
  for (const char* pattern :
       {"", "(fox|lion)+", "[^\\n]{3,20}", "(a|ab|abc)*d?", "[é-ü]+.", "\\d{2}(:\\d{2}){1,2}", "[a-z ]{0,7}",
        "[ -~]{0,9}é*", "([a-m]|[n-z ])*\\.", "(\\w+ ?){1,3}", "[^aé]*", "[a-eé-ü]*( [a-z]+)?"}) {
    CAPTURE(std::string(pattern));
    compare(Regex(pattern), *Constraint::of_regex(pattern, tokens()), ++seed);
  }
  for (const char* text :
       {"root ::= \"a\" root \"b\" | \" the\"", "root ::= [^x]{2,9} (\", \" root)?",
        "root ::= [a-z ] root | \".\"", "root ::= (word \" \"){1,4}\nword ::= [^ .]* \"s\"?",
        "root ::= a\na ::= [a-k] a | [l-z] b | \".\"\nb ::= [ a-z] b | \"é\" a | \"\""}) {
    CAPTURE(text);
    compare(Grammar(parse_grammar(text)), *Constraint::of_grammar(parse_grammar(text), tokens()), ++seed);
  }
  for (const char* schema :
       {R"({"type": "object"})", R"({"type": "array", "items": {"type": ["string", "integer"]}})",
        R"({"properties": {"b": {"maxLength": 5}, "a": {"minimum": 7}}, "required": ["a"]})"}) {
    CAPTURE(schema);
    const GrammarRules rules = json_schema_rules(schema, written_members);
    compare(Grammar(rules), *Constraint::of_json_schema(schema, tokens()), ++seed);
  }
}

TEST_CASE("counts far from their limits share masks, and near them each has its own") {
  std::size_t longest = 0;
  for (int token = 0; token < tokenizer().vocab_size(); ++token)
    longest = std::max(longest, tokenizer().bytes(token).size());
  const auto far = static_cast<int>(longest);
  unsigned seed = 100;
  for (const std::string& text :
       {fmt::format("root ::= [^\\n]{{2,{}}}", 3 * far),
        fmt::format("root ::= [a-d]{{{},{}}}", far - 1, 2 * far),
        fmt::format("root ::= (\" \" [a-z]){{{}}}", far + 2),
        fmt::format("root ::= [a-z ]{{2,{}}} \"!\"", 3 * far),
        fmt::format("root ::= ((\"a\" | \"bc\"){{{},{}}} \" \"){{2,3}}", far + 1, far + 3),
        fmt::format("root ::= (\"a\"?){{{}}} \"x\"", far + 3),
        fmt::format("root ::= ([ab]{{{},}} \"c\"?){{1,{}}}", far + 2, far + 2),
        fmt::format("root ::= (\"a\"{{1,{}}} \"b\"){{0,{}}}", far + 5, far + 5)}) {
    CAPTURE(text);
    const GrammarRules rules = parse_grammar(text);
    compare(Grammar(rules), *Constraint::of_grammar(rules, tokens()), ++seed, 4 * far);
  }
}

TEST_CASE("no marker is part of a constrained text, and each end ends it") {
  const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  const Tokenizer smol(read_tokenizer_json(read_file(file), file), file);
  const auto mark = [&](const char* name) { return smol.encode_with_special_tokens(name).front(); };
  const EndTokens ends{mark("<|im_end|>"), mark("<|endoftext|>")};
  const auto constraint = Constraint::of_regex(".*", std::make_shared<const SortedTokens>(smol, ends));
  std::vector<float> logits(static_cast<std::size_t>(smol.vocab_size()));
  Constraint::Place place;
  constraint->keep_allowed(logits, {}, place);
  for (const int end : ends) CHECK(logits[static_cast<std::size_t>(end)] != kMasked);
  for (const int marker : smol.special_tokens()) {
    CAPTURE(smol.bytes(marker));
    CHECK((logits[static_cast<std::size_t>(marker)] == kMasked) == !ends.contains(marker));
  }
  for (const int piece : smol.encode("<|im_start|>"))
    CHECK(logits[static_cast<std::size_t>(piece)] != kMasked);
  // A number beyond the vocabulary is no token.
  std::vector<float> wide(logits.size() + 100);
  constraint->keep_allowed(wide, {}, place);
  CHECK(std::all_of(wide.begin() + std::ssize(logits), wide.end(), [](float one) { return one == kMasked; }));
}

TEST_CASE("a long token is masked where fewer characters may follow, and a short one where each is read") {
  const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  const Tokenizer smol(read_tokenizer_json(read_file(file), file), file);
  const auto tokens = std::make_shared<const SortedTokens>(smol, EndTokens({0}));
  const std::vector<int> markers = smol.special_tokens();
  for (const char* pattern :
       {".{3,15}", ".{3,16}", ".{3,17}", ".{3,31}", ".{3,32}", ".+", "[^x]{3,17}", "(.[^x])+"}) {
    CAPTURE(std::string(pattern));
    const auto constraint = Constraint::of_regex(pattern, tokens);
    const Regex naive(pattern);
    std::vector<float> logits(static_cast<std::size_t>(smol.vocab_size()));
    Constraint::Place place;
    constraint->keep_allowed(logits, {}, place);
    for (int token = 1; token < smol.vocab_size(); ++token) {
      const std::string_view bytes = smol.bytes(token);
      const bool is_wanted = !bytes.empty() && std::ranges::find(markers, token) == markers.end() &&
                             !naive.after(naive.start(), bytes).empty();
      if ((logits[static_cast<std::size_t>(token)] != kMasked) != is_wanted) FAIL_CHECK(bytes);
    }
  }
}

TEST_CASE("a table that is full begins anew, and rows go on where they are") {
  const auto constraint =
      Constraint::of_grammar(parse_grammar("root ::= (\"a\"{1,36000} | \"b\"{1,36000}) \"!\""), tokens());
  const int a = tokenizer().encode("a").front(), b = tokenizer().encode("b").front();
  const int mark = tokenizer().encode("!").front();
  const auto may_end = [&](const std::vector<int>& text, Constraint::Place& place) {
    std::vector<float> logits(static_cast<std::size_t>(tokenizer().vocab_size()));
    constraint->keep_allowed(logits, text, place);
    return logits[static_cast<std::size_t>(mark)] != kMasked;
  };
  constexpr std::chrono::seconds slow_sanitizer(-60);
  Constraint::Place early{.time = slow_sanitizer}, late = early, other = early, fresh = early;
  CHECK(!may_end({}, fresh));
  CHECK(may_end({a}, early));
  CHECK(may_end(std::vector<int>(32500, a), late));   // not yet full
  CHECK(may_end(std::vector<int>(35500, b), other));  // it becomes so within this call
  CHECK(may_end({a, a}, early));
  CHECK(may_end(std::vector<int>(35999, a), late));
  CHECK(may_end({a, a, a}, early));  // full again, before this call
  CHECK(may_end(std::vector<int>(36000, b), other));
}

TEST_CASE("each key that limits a text is read") {
  for (const char* more :
       {R"("guided_regex": "ab|[0-9]{3}")", R"("structured_outputs": {"regex": "ab|[0-9]{3}", "json": null})",
        R"("guided_choice": ["ab", "123"])", R"("structured_outputs": {"choice": ["ab", "123"]})",
        R"("guided_grammar": "root ::= \"ab\" | [0-9]{3}")", R"("grammar": "root ::= \"ab\" | [0-9]{3}")",
        R"("structured_outputs": {"grammar": "root ::= \"ab\" | [0-9]{3}"})"}) {
    CAPTURE(more);
    CHECK(allows(more, "ab"));
    CHECK(allows(more, "123"));
    CHECK(!allows(more, "12"));
    CHECK(!allows(more, "abc"));
    CHECK(!allows(more, ""));
  }
  const std::string schema =
      R"({"type": "object", "properties": {"b": {}, "a": {"type": "integer"}}, "required": ["a"]})";
  for (const std::string& more :
       {schema_format(schema), schema_format(schema, R"(, "strict": true, "description": "d")"),
        schema_format(schema, R"(, "strict": false)"), R"("guided_json": )" + schema,
        R"("json_schema": )" + schema, R"("guided_json": )" + nlohmann::json(schema).dump(),
        R"("structured_outputs": {"json": )" + schema + "}"}) {
    CAPTURE(more);
    CHECK(allows(more, R"({"a": 5})"));
    CHECK(
        allows(more, R"({"b": [null], "a": 5})"));  // in the order of the schema, which is not the alphabet's
    CHECK(!allows(more, R"({"a": 5, "b": [null]})"));
    CHECK(!allows(more, R"({"a": "5"})"));
    CHECK(!allows(more, "{}"));
  }
  for (const char* more :
       {R"("response_format": {"type": "json_object"})", R"("structured_outputs": {"json_object": true})"}) {
    CHECK(allows(more, R"({"a": [1, {"b": null}]})"));
    CHECK(allows(more, "{}"));
    CHECK(!allows(more, "[]"));
    CHECK(!allows(more, R"({"a": 1)"));
  }
}

TEST_CASE("values that limit nothing change nothing") {
  for (const char* more :
       {R"("response_format": {"type": "text"})", R"("grammar": "")", R"("response_format": null)",
        R"("guided_regex": null, "guided_json": null, "guided_choice": null)",
        R"("response_format": {"type": "text"}, "ignore_eos": true, "min_tokens": 3)"}) {
    CAPTURE(more);
    CompletionRequest request(with(more), model());
    CHECK(request.constraint == nullptr);
    CHECK(!row_options(request).edit_raw_logits);
  }
  CHECK(refusal(R"("response_format": {"type": "text"}, "guided_regex": "a")") == "");
}

TEST_CASE("a constraint that cannot be read is refused with its key and its place") {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {R"-("guided_regex": "a(?=b)")-", "400 guided_regex: the regular expression cannot be read bef"},
      {R"("guided_regex": 5)", "400 guided_regex: guided_regex is 5, but it must be a text"},
      {R"("guided_grammar": "root ::= other")",
       "400 guided_grammar: the grammar cannot be read at line 1, column 10: there is no rule other"},
      {R"("grammar": "root ::= root \"a\" | \"b\"")", "400 grammar: the rule root begins with itself"},
      {R"("grammar": {})", "400 grammar: grammar is an object, but it must be a text"},
      {R"("guided_choice": [])",
       "400 guided_choice: guided_choice is an array, but it must be a list of one or more texts"},
      {R"("guided_choice": ["a", 5])",
       "400 guided_choice: guided_choice is an array, but it must be a list of one or more texts"},
      {R"("guided_json": 5)", "400 guided_json: guided_json is 5, but it must be a JSON Schema"},
      {R"("guided_json": "{")", "400 guided_json: the schema is not valid JSON"},
      {R"("guided_json": false)", "400 guided_json: no JSON value is valid under the schema"},
      {schema_format(R"({"properties": {"age": {"multipleOf": 2}}})"),
       "400 response_format: the schema cannot be used at /properties/age/multipleOf: this keyword is not "
       "supported"},
      {schema_format(R"({"$ref": "https://example.org/a.json"})"),
       "400 response_format: the schema cannot be used at /$ref"},
      {schema_format(R"({"$ref": "#/nowhere"})"),
       "400 response_format: the schema cannot be used at /$ref: there is nothing at"},
      {schema_format(R"({"type": "integer", "minimum": 2, "maximum": 1})"),
       "400 response_format: no JSON value is valid under the schema"},
      {schema_format("{}", R"(, "strict": 1)"),
       "400 response_format: response_format.json_schema.strict is 1, but it must be true or false"},
      {schema_format("{}", R"(, "extra": 1)"),
       "400 response_format.json_schema.extra: response_format.json_schema.extra is not implemented: leave "
       "it out"},
      {R"("response_format": "json_object")",
       "400 response_format: response_format is \"json_object\", but it must be an object whose type is "
       "text, json_object or "
       "json_schema"},
      {R"("response_format": {})",
       "400 response_format: response_format is an object, but it must be an object whose type"},
      {R"("response_format": {"type": "xml"})",
       "400 response_format: response_format.type is \"xml\", but it must be text, json_object or "
       "json_schema"},
      {R"("response_format": {"type": "json_schema"})",
       "400 response_format: response_format.json_schema is null, but it must be an object with a name and a "
       "schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": 5, "schema": {}}})",
       "400 response_format: response_format.json_schema.name is 5, but it must be a text"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"description": [], "schema": {}}})",
       "400 response_format: response_format.json_schema.description is an array, but it must be a text"},
      {R"("response_format": {"type": "json_object", "schema": {}})",
       "400 response_format.schema: response_format.schema is not implemented: leave it out"},
      {R"("structured_outputs": {})",
       "400 structured_outputs: structured_outputs has none of json, regex, choice, grammar and json_object"},
      {R"("structured_outputs": {"json_object": false})",
       "400 structured_outputs: structured_outputs has none of json, regex, choice, grammar and json_object"},
      {R"("structured_outputs": {"structural_tag": "a"})",
       "400 structured_outputs.structural_tag: structured_outputs.structural_tag is not implemented: leave "
       "it out"},
      {R"("structured_outputs": {"json_object": 1})",
       "400 structured_outputs: structured_outputs.json_object is 1, but it must be true or false"}};
  for (const auto& [more_, sentence] : wrong) {
    const auto& more = more_;  // clang 14 captures no structured binding
    CAPTURE(more);
    CHECK(refusal(more).substr(0, sentence.size()) == sentence);
  }
}

TEST_CASE("an unknown member of null is left alone, and structured outputs are an object") {
  CHECK(refusal(R"("structured_outputs": {"regex": "a", "structural_tag": null})") == "");
  CHECK(refusal(R"("response_format": {"type": "json_object", "schema": null})") == "");
  for (const char* wrong : {"5", "[]", "\"a\"", "true"}) {
    CAPTURE(wrong);
    const std::string message = refusal(fmt::format("\"structured_outputs\": {}", wrong));
    CHECK(message.starts_with("400 structured_outputs: structured_outputs is "));
    CHECK(message.ends_with(", but it must be an object with json, regex, choice, grammar or json_object"));
  }
}

TEST_CASE("what cannot be combined with a constraint is refused by name") {
  CHECK(refusal(R"("response_format": {"type": "json_object"}, "guided_regex": "a")") ==
        "400 guided_regex: response_format and guided_regex both limit the text: use one of them");
  CHECK(refusal(R"("grammar": "root ::= \"a\"", "json_schema": {})") ==
        "400 grammar: json_schema and grammar both limit the text: use one of them");
  CHECK(refusal(R"("structured_outputs": {"regex": "a", "choice": ["a"]})") ==
        "400 structured_outputs: structured_outputs.regex and structured_outputs.choice both limit the "
        "text: use one of them");
  CHECK(refusal(R"("guided_regex": "a", "ignore_eos": true)") ==
        "400 ignore_eos: guided_regex decides where a text ends, so leave out ignore_eos");
  CHECK(refusal(R"("guided_regex": "a", "min_tokens": 1)") ==
        "400 min_tokens: guided_regex decides where a text ends, so leave out min_tokens");
  CHECK(refusal(R"("guided_regex": "a", "ignore_eos": false, "min_tokens": 0)") == "");
  CHECK(refusal(R"("guided_regex": "a")", served(EndTokens())) ==
        "400 guided_regex: guided_regex needs a model with an end-of-text token, and this one has none");
}

TEST_CASE("what may come once does not repeat, though a rule that repeats it is the same") {
  const auto constraint =
      Constraint::of_grammar(parse_grammar("root ::= c{0,90} \"\\n\" c \"!\"\nc ::= [^\\n]"), tokens());
  const int one = tokenizer().encode("a").front(), several = tokenizer().encode(" the").front();
  REQUIRE(tokenizer().bytes(several).size() > 1);
  Constraint::Place place;
  std::vector<int> text;
  const auto allows = [&](int token) {
    return (constraint->allowed(text, place)[static_cast<std::size_t>(token) / 64] >> token % 64 & 1) != 0;
  };
  CHECK(allows(one));
  CHECK(allows(several));
  text = {one, several, tokenizer().encode("\n").front()};
  CHECK(allows(one));
  CHECK_FALSE(allows(several));
}

TEST_CASE("a constraint that would take too long or too much memory is refused") {
  const auto many = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) list += fmt::format("{}\"x{}\"", i > 0 ? "," : "", i);
    return "\"guided_choice\": [" + list + "]";
  };
  CHECK(refusal(many(1500)) == "");
  CHECK(refusal(many(2500)) ==
        "400 guided_choice: the constraint is in 2500 states at once, but at most 2000 are followed");
  CHECK(refusal("\"guided_choice\": [\"" + std::string(300'000, 'x') + "\"]") ==
        "400 guided_choice: it becomes a grammar of 300002 parts, but at most 300000 are read");
  CHECK(refusal(R"("guided_regex": "(a?){6000}")") ==
        "400 guided_regex: the constraint is in 6000 states at once, but at most 2000 are followed");
  // A text whose masks have taken all of their time.
  const auto constraint = Constraint::of_regex("(a|b)+", tokens());
  std::vector<float> logits(static_cast<std::size_t>(model().vocab_size));
  Constraint::Place place{.time = Constraint::kMostTime};
  constraint->keep_allowed(logits, {}, place);  // known already
  const auto other = Constraint::of_regex("[a-z]{400}", tokens());
  place = {.time = Constraint::kMostTime};
  CHECK(error_message([&] {
          other->keep_allowed(logits, std::vector<int>(300, tokenizer().encode("a").front()), place);
        }) == "the masks of the constraint take longer than 2 seconds for one text");
}

TEST_CASE("the mask comes before the biases, and a bias offers nothing that it forbids") {
  const int a = tokenizer().encode("a").front(), b = tokenizer().encode("b").front();
  CompletionRequest request(
      with(fmt::format(R"("guided_regex": "[a-c]", "logit_bias": {{"{}": 5, "{}": 100}})", a, kEnd)),
      model());
  RowOptions options = row_options(request);
  std::vector<float> logits(static_cast<std::size_t>(model().vocab_size), 1.0f);
  options.edit_raw_logits(logits, {});
  CHECK(logits[static_cast<std::size_t>(a)] == 6.0f);
  CHECK(logits[static_cast<std::size_t>(b)] == 1.0f);
  CHECK(logits[static_cast<std::size_t>(kEnd)] == kMasked);
}

TEST_CASE("requests with the same constraint share it, and each row has its own place") {
  const auto one = CompletionRequest(with(R"("guided_regex": "ab*")"), model()).constraint;
  const auto other = CompletionRequest(with(R"("structured_outputs": {"regex": "ab*"})"), model()).constraint;
  CHECK(one->row().constraint == other->row().constraint);
  CHECK(one->row().constraint !=
        CompletionRequest(with(R"("guided_choice": ["ab*"])"), model()).constraint->row().constraint);
  CompletionRequest request(with(R"("guided_regex": "ab*")"), model());
  RowOptions first = row_options(request), second = first;
  const int a = tokenizer().encode("a").front(), b = tokenizer().encode("b").front();
  const auto may = [&](RowOptions& options, std::vector<int> text, int token) {
    std::vector<float> logits(static_cast<std::size_t>(model().vocab_size));
    options.edit_raw_logits(logits, text);
    return logits[static_cast<std::size_t>(token)] != kMasked;
  };
  CHECK(may(first, {}, a));
  CHECK(may(first, {a}, b));
  CHECK(!may(second, {}, b));
  CHECK(may(second, {}, a));
}

TEST_CASE("a text that finds no way on ends alone, and its request says why") {
  // After nine foxes the pattern is in more states than are followed; the first mask does not see that far.
  const std::string more = R"-("guided_regex": "(fox ){9}(a?){2100}b")-";
  CompletionRequest request(with(more), model());
  RowOptions options = row_options(request);
  CHECK(!request.constraint->fault());
  std::vector<float> logits(static_cast<std::size_t>(model().vocab_size));
  options.edit_raw_logits(logits, tokenizer().encode("fox fox fox fox fox fox fox fox fox "));
  REQUIRE(request.constraint->fault());
  CHECK(request.constraint->fault()->status == 400);
  CHECK(request.constraint->fault()->key == "guided_regex");
  CHECK(std::ranges::count(logits, kMasked) == std::ssize(logits) - 1);
  CHECK(logits[static_cast<std::size_t>(kEnd)] == 0.0f);
  // The request's other texts end, too; a request with the same constraint is not concerned.
  RowOptions other = row_options(request);
  std::vector<float> others(logits.size());
  other.edit_raw_logits(others, {});
  CHECK(others[static_cast<std::size_t>(kEnd)] == 0.0f);
  CHECK(allows(R"("guided_regex": "xa?")", "xa"));
}
