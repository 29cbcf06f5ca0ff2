#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "generate.h"
#include "object_members.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"
#include "token_masks.h"

using namespace staircase;

namespace {

using Json = nlohmann::ordered_json;
using Kind = RegexPart::Kind;
using Texts = std::vector<std::string>;

Grammar grammar(std::string_view schema) {
  return Grammar(json_schema_rules(schema, written_members));
}

bool is_valid(const Grammar& grammar, std::string_view text) {
  return grammar.accepts(grammar.after(grammar.start(), text));
}

/// A value as text, with its members in every order; a number without a fraction as an integer.
Texts texts_of(const Json& value) {
  if (value.is_number_float() && value == std::floor(value.get<double>()))
    return {fmt::format("{:.0f}", value.get<double>())};
  if (!value.is_structured()) return {value.dump()};
  std::vector<Texts> parts;
  for (const auto& [key, one] : value.items()) {
    Texts& part = parts.emplace_back(texts_of(one));
    if (value.is_object())
      for (std::string& text : part) text = Json(key).dump() + ": " + text;
  }
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  Texts all;
  do {
    Texts some{""};
    for (const std::size_t i : order) {
      Texts longer;
      for (const std::string& text : some)
        for (const std::string& part : parts[i]) longer.push_back(text + (text.empty() ? "" : ", ") + part);
      some = longer;
    }
    for (const std::string& text : some)
      all.push_back(value.is_object() ? "{" + text + "}" : "[" + text + "]");
  } while (value.is_object() && all.size() < 800 && std::ranges::next_permutation(order).found);
  return all;
}

bool has_valid_text(const Grammar& grammar, const Json& value) {
  return std::ranges::any_of(texts_of(value),
                             [&](const std::string& text) { return is_valid(grammar, text); });
}

/// The verdicts on one document.
struct Judged {
  int passed = 0, refused = 0, wrong = 0;
};

/// Compares verdicts on documents with the expected ones. Where no value is valid, every document is invalid.
void judge(const Json& schema, const std::vector<std::pair<Json, bool>>& documents, Judged& all) {
  std::unique_ptr<Grammar> automaton;
  const std::string error =
      error_message([&] { automaton = std::make_unique<Grammar>(grammar(schema.dump())); });
  const bool is_empty = error == "no JSON value is valid under the schema";
  for (const auto& [document, valid] : documents) {
    if (automaton == nullptr && !is_empty) {
      CHECK(error.starts_with("the schema cannot be used at "));
      ++all.refused;
    } else if ((!is_empty && has_valid_text(*automaton, document)) == valid) {
      ++all.passed;
    } else {
      ++all.wrong;
      FAIL_CHECK(fmt::format("{} {} is {}valid", schema.dump(), document.dump(), valid ? "" : "not "));
    }
  }
}

/// Whether `text` is white space that the grammar allows in one place, or two of these in a row.
bool is_space(std::string_view text) {
  return text.empty() || text == " " ||
         (text[0] == '\n' && text.size() <= 21 && text.find_first_not_of(" \t", 1) == text.npos);
}
bool is_double_space(std::string_view text) {
  for (std::size_t i = 0; i <= text.size(); ++i)
    if (is_space(text.substr(0, i)) && is_space(text.substr(i))) return true;
  return false;
}

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --json --prompt 'The fox ' " + options);
}

}  // namespace

TEST_CASE("members come in their order, with commas between those that are there") {
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    const int count = static_cast<int>(random() % 5);
    ObjectMembers object{.comma = {Kind::kByte, {}, {',', ','}}};
    std::vector<bool> required;
    for (int k = 0; k < count; ++k) {
      const auto letter = static_cast<unsigned char>('a' + k);
      required.push_back(random() % 2);
      object.members.push_back({{Kind::kByte, {}, {letter, letter}}, required.back()});
    }
    const bool has_more = random() % 2;
    if (has_more) object.more = RegexPart{Kind::kByte, {}, {'x', 'x'}};
    GrammarRules rules{{"root", {Kind::kSequence}}};
    const RegexPart part = written_members(object, rules);
    rules[0].part = part;
    const Grammar automaton(rules);
    std::set<std::string> wanted;
    for (int chosen = 0; chosen < 1 << count; ++chosen) {
      std::string text;
      bool is_whole = true;
      for (int k = 0; k < count; ++k) {
        is_whole &= !required[k] || (chosen >> k & 1);
        if (chosen >> k & 1) text += std::string(text.empty() ? "" : ",") + static_cast<char>('a' + k);
      }
      for (int more = 0; is_whole && more <= (has_more ? 3 : 0); ++more) {
        wanted.insert(text);
        text += text.empty() ? "x" : ",x";
      }
    }
    for (const std::string& text : wanted) CHECK(is_valid(automaton, text));
    for (int k = 0; k < 300; ++k) {
      std::string text;
      for (auto letters = random() % 5; letters > 0; --letters)
        text += (text.empty() || random() % 9 == 0 ? "" : ",") + std::string(1, "abcdx,"[random() % 6]);
      if (is_valid(automaton, text) != wanted.contains(text) && std::ranges::count(text, 'x') <= 3)
        FAIL_CHECK(text);
    }
  }
}

TEST_CASE("the tokens offered are those with which a valid document begins, in every state") {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"enum": [1, 12, "fox", "far"]}, "b": {"type": "boolean"},
    "c": {"type": "array", "items": {"const": null}, "maxItems": 2}}, "required": ["b"], "additionalProperties": false})";
  std::set<std::string> documents;
  for (const std::string a : {"", "\"a\":1,", "\"a\":12,", "\"a\":\"fox\",", "\"a\":\"far\","})
    for (const std::string b : {"true", "false"})
      for (const std::string c : {"", ",\"c\":[]", ",\"c\":[null]", ",\"c\":[null,null]"})
        documents.insert("{" + a + "\"b\":" + b + c + "}");
  const auto begins_one = [&](const std::string& text) {
    const auto next = documents.lower_bound(text);
    return next != documents.end() && next->starts_with(text);
  };
  // Without its white space, a text must begin a document; white space comes after a bracket, a comma or a
  // colon, and before a closing bracket.
  const auto may_become_valid = [&](const std::string& text) {
    std::string compact;
    bool is_in_string = false;
    for (std::size_t i = 0; i < text.size();) {
      std::size_t end = i;
      while (end < text.size() && std::string_view(" \n\t").find(text[end]) != std::string_view::npos) ++end;
      if (end == i || is_in_string) {
        is_in_string ^= text[i] == '"';
        compact += text[i++];
        continue;
      }
      const std::string_view blanks = std::string_view(text).substr(i, end - i);
      const bool opens =
          std::string_view("{[,:").find(compact.empty() ? '?' : compact.back()) != std::string_view::npos;
      const bool closes = end < text.size() ? text[end] == '}' || text[end] == ']'
                                            : begins_one(compact + "}") || begins_one(compact + "]");
      if (!(opens && closes ? is_double_space(blanks) : (opens || closes) && is_space(blanks))) return false;
      i = end;
    }
    return begins_one(compact);
  };
  const int end = tales().config().eos_token_id;
  std::mt19937 random(1);
  const KeepAllowed<Grammar> fresh{std::make_shared<TokenMasks<Grammar>>(
      TokenMasks<Grammar>{grammar(schema), tales_tokenizer(), tales().config().end_tokens})};
  std::set<std::string> seen;
  int ended = 0;
  for (int run = 0; run < 12; ++run) {
    KeepAllowed<Grammar> masks = fresh;
    std::vector<int> text;
    std::string written;
    for (int i = 0; i < 60; ++i) {
      std::vector<float> logits(tales_tokenizer().vocab_size(), 1.0f);
      masks(logits, text);
      std::vector<int> kept, wanted;
      for (int token = 0; token < std::ssize(logits); ++token) {
        if (is_kept(logits[token])) kept.push_back(token);
        const std::string longer = written + std::string(tales_tokenizer().bytes(token));
        const bool is_whole = !written.empty() && written.back() == '}';
        if (token == end ? is_whole : !is_whole && may_become_valid(longer)) wanted.push_back(token);
      }
      if (seen.insert(written).second) {
        CAPTURE(written);
        CHECK(kept == wanted);
      }
      // White space is offered nearly everywhere; texts without it end sooner.
      std::vector<int> black;
      for (const int token : kept)
        if (tales_tokenizer().bytes(token).find_first_of(" \n\t") == std::string_view::npos)
          black.push_back(token);
      const std::vector<int>& from = random() % 4 != 0 && !black.empty() ? black : kept;
      const int next = from[random() % from.size()];
      ended += next == end;
      if (next == end) break;
      text.push_back(next);
      written += tales_tokenizer().bytes(next);
    }
  }
  CHECK(seen.size() > 100);
  CHECK(ended > 5);
}

TEST_CASE("documents are valid under random schemas exactly if another validator says so") {
  std::ifstream file(STAIRCASE_SOURCE_TREE "/tests/reference/json_schema.json");
  Judged all;
  const Json cases = Json::parse(file)["cases"];
  for (const Json& one : cases) {
    std::vector<std::pair<Json, bool>> documents;
    for (const Json& document : one["documents"]) documents.emplace_back(document[0], document[1]);
    judge(one["schema"], documents, all);
  }
  CHECK(all.wrong == 0);
  CHECK(all.passed == 3568);
  CHECK(all.refused == 432);
}

TEST_CASE("no document of the standard's test suite is judged wrongly, where the suite is installed") {
  const std::filesystem::path folder = "/usr/share/json-schema-test-suite/tests/draft7";
  if (!std::filesystem::exists(folder)) return;
  Judged all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const Json groups = Json::parse(file);
    for (const Json& group : groups) {
      Json schema = group["schema"];
      if (schema.is_object()) schema["$schema"] = "http://json-schema.org/draft-07/schema#";
      std::vector<std::pair<Json, bool>> documents;
      for (const Json& test : group["tests"]) documents.emplace_back(test["data"], test["valid"]);
      judge(schema, documents, all);
    }
  }
  CHECK(all.wrong == 0);
  CHECK(all.passed >= 398);
}

TEST_CASE("drawn texts are valid documents") {
  const TemporaryFolder folder;
  folder.write(
      "person.json",
      R"({"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
    "age": {"type": "integer", "minimum": 7, "maximum": 120}, "friends": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
    "required": ["name", "age"], "additionalProperties": false})");
  const nlohmann::json result =
      run("--json-schema " + (folder.path() / "person.json").string() +
          " --max-new-tokens 400 --num-return-sequences 8 --do-sample --temperature 1.5 --seed 2")
          .json();
  const std::function<void(const nlohmann::json&)> check = [&](const nlohmann::json& person) {
    CHECK(person["name"].get<std::string>().size() >= 2);
    CHECK(person["age"] >= 7);
    CHECK(person["age"] <= 120);
    if (!person.contains("friends")) return;
    CHECK(person["friends"].size() <= 2);
    for (const auto& friend_ : person["friends"]) check(friend_);
  };
  int ended = 0;
  for (const auto& sequence : result["sequences"]) {
    if (sequence["finish_reason"] != "eos") continue;
    ++ended;
    check(nlohmann::json::parse(sequence["text"].get<std::string>()));
  }
  CHECK(ended >= 4);
}

TEST_CASE("a schema that cannot be used is refused before any work, by its place") {
  const TemporaryFolder folder;
  const std::string options = "--model /nonexistent --json-schema " + (folder.path() / "a.json").string();
  for (const auto& [schema, error] : std::vector<std::pair<std::string, std::string>>{
           {R"({"properties": {"age": {"multipleOf": 3}}})",
            "the schema cannot be used at /properties/age/multipleOf: this keyword is not supported"},
           {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no JSON value is valid under the schema"},
           {"{\n\"a\"", "the schema is not valid JSON: the parser stops in line 2, at byte 5 of 5"}}) {
    folder.write("a.json", schema);
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, options);
    CHECK(refused.status == 2);
    CHECK(refused.err == "error: " + error + "\n");
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--model /nonexistent --json-schema=").status == 2);
  folder.write("a.json", "{}");
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options).status == 1);  // there is no such model
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options + " --min-new-tokens 2").err ==
        "error: --json-schema decides where a text ends, so leave out --ignore-eos and --min-new-tokens\n");
}
