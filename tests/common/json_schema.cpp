// JSON Schemas that become grammars, and those that do not. Whether the grammars are right is checked by step
// 104.
#include "common/text/json_schema.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "common/base/error.h"
#include "common/decoding/grammar.h"
#include "common/decoding/object_members.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;

namespace {

RegexPart nothing(const ObjectMembers&, GrammarRules&) {
  return {RegexPart::Kind::kSequence};
}

std::string error_of(const std::string& schema) {
  return error_message([&] { json_schema_rules(schema, nothing); });
}

}  // namespace

TEST_CASE("a keyword that is not built is refused by its place, wherever it is") {
  const std::string what = ": this keyword is not supported";
  const std::string at = "the schema cannot be used at ";
  CHECK(error_of(R"({"uniqueItems": true})") == at + "/uniqueItems" + what);
  CHECK(error_of(R"({"properties": {"a/b~": {"multipleOf": 2}}})") ==
        at + "/properties/a~1b~0/multipleOf" + what);
  CHECK(error_of(R"({"items": {"contains": {}}})") == at + "/items/contains" + what);
  CHECK(error_of(R"({"items": [true, {"contains": {}}]})") == at + "/items/1/contains" + what);
  CHECK(error_of(R"({"prefixItems": [{"maxContains": 1}]})") == at + "/prefixItems/0/maxContains" + what);
  CHECK(error_of(R"({"additionalProperties": {"contains": {}}})") ==
        at + "/additionalProperties/contains" + what);
  for (const std::string keyword : {"anyOf", "oneOf", "allOf"})
    CHECK(error_of("{\"" + keyword + "\": [{\"contains\": {}}]}") ==
          at + "/" + keyword + "/0/contains" + what);
  CHECK(error_of(R"({"$ref": "#/$defs/a", "$defs": {"a": {"propertyNames": {}}}})") ==
        at + "/$defs/a/propertyNames" + what);
  CHECK(error_of(R"({"$defs": {"a": {"propertyNames": {}}}})") == "");  // nothing refers to it
  CHECK(error_of(R"({"items": {"id": 3}})") == "");  // names nothing, so no reference changes its meaning
  CHECK(error_of(R"({"items": {"id": "a.json"}})") == "");  // there is no reference in it
  CHECK(error_of(R"({"items": {"id": "a.json", "items": {"$ref": "#"}}})") == at + "/items/id" + what);
  CHECK(
      error_of(
          R"({"uniqueItems": false, "patternProperties": {}, "title": "t", "$comment": 1, "default": []})") ==
      "");
}

TEST_CASE("each keyword that restricts values and is not built is refused") {
  for (const std::string keyword :
       {"$dynamicRef", "$recursiveRef", "contains", "contentEncoding", "contentMediaType", "disallow",
        "divisibleBy", "extends", "maxContains", "minContains", "multipleOf", "propertyNames",
        "unevaluatedItems", "unevaluatedProperties", "uniqueItems"})
    CHECK(error_of("{\"" + keyword + "\": 1}") ==
          "the schema cannot be used at /" + keyword + ": this keyword is not supported");
}

TEST_CASE("each format of the standard that is not built is refused with those that are") {
  for (const std::string format :
       {"duration", "hostname", "idn-email", "idn-hostname", "iri", "iri-reference", "ipv6", "json-pointer",
        "regex", "relative-json-pointer", "uri-reference", "uri-template"})
    CHECK(error_of(R"({"format": ")" + format + R"("})") ==
          "the schema cannot be used at /format: the supported formats are date, time, date-time, uuid, "
          "ipv4, email and uri");
}

TEST_CASE(
    "lengths of the strings in an enum count characters, and objects are equal only with the same members") {
  const auto accepts = [](const std::string& schema, const std::string& text) {
    const Grammar grammar(json_schema_rules(schema, written_members));
    return grammar.accepts(grammar.after(grammar.start(), text));
  };
  const std::string accents = R"({"enum": ["\u00e9\u00e9", "abc"], "maxLength": 2})";
  CHECK(accepts(accents, "\"\u00e9\u00e9\""));
  CHECK_FALSE(accepts(accents, "\"abc\""));
  const std::string both =
      R"({"allOf": [{"enum": [{"a": 1}, {"b": 2}]}, {"enum": [{"a": 1, "c": 3}, {"b": 2}]}]})";
  CHECK(accepts(both, R"({"b":2})"));
  CHECK_FALSE(accepts(both, R"({"a":1})"));
  const std::string none = R"({"type": "string", "not": {"enum": ["a", "b"]}})";
  CHECK(accepts(none, "\"c\""));
  for (const char* one : {"\"a\"", "\"b\""}) CHECK_FALSE(accepts(none, one));
}

TEST_CASE("a name that JSON Schema does not define is a note, unless it looks like a keyword") {
  for (const std::string note : {"readonly", "_uniqueItems", "faker", "x-order", "$async", "min", "name",
                                 "note", "form", "links", "contentSchema", "$anchor", "media"})
    CHECK(error_of("{\"properties\": {\"a\": {\"" + note + "\": 3}}}") == "");
  for (const auto& [name, keyword] :
       std::vector<std::pair<std::string, std::string>>{{"minLenght", "minLength"},
                                                        {"maxlength", "maxLength"},
                                                        {"max_items", "maxItems"},
                                                        {"min Itmes", "minItems"},
                                                        {"item", "items"},
                                                        {"additionalproperties", "additionalProperties"},
                                                        {"Required", "required"},
                                                        {"enums", "enum"},
                                                        {"multiple_of", "multipleOf"},
                                                        {"uniqueItem", "uniqueItems"},
                                                        {"Else", "else"},
                                                        {"$Ref", "$ref"}})
    CHECK(error_of("{\"properties\": {\"a\": {\"" + name + "\": 3}}}") ==
          "the schema cannot be used at /properties/a/" + name + ": there is no such keyword; did you mean " +
              keyword + "?");
}

TEST_CASE("a value of the wrong type is refused") {
  for (const auto& [schema, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "text"})",
            "/type: the types are null, boolean, integer, number, string, array and object"},
           {R"({"type": ["string", 3]})",
            "/type: the types are null, boolean, integer, number, string, array and object"},
           {R"({"type": []})", "/type: it must be the name of a type or a list of names"},
           {R"({"enum": 3})", "/enum: it must be a list that is not empty"},
           {R"({"anyOf": []})", "/anyOf: it must be a list that is not empty"},
           {R"({"anyOf": [3]})", "/anyOf/0: a schema is an object, true or false"},
           {R"({"properties": []})", "/properties: it must be an object of schemas"},
           {R"({"properties": {"a": 1}})", "/properties/a: a schema is an object, true or false"},
           {R"({"required": "a"})", "/required: it must be a list of names"},
           {R"({"required": [1]})", "/required: it must be a list of names"},
           {R"({"minItems": -1})", "/minItems: it must be a whole number that is not negative"},
           {R"({"maxLength": 1.5})", "/maxLength: it must be a whole number that is not negative"},
           {R"({"minimum": "1"})", "/minimum: it must be a number"},
           {R"({"pattern": 1})", "/pattern: it must be a string"},
           {R"({"items": 1})", "/items: a schema is an object, true or false"},
           {R"({"nullable": 1})", "/nullable: it must be true or false"},
           {R"({"type": "string", "nullable": "x"})", "/nullable: it must be true or false"},
           {R"({"$ref": 1})", "/$ref: it must be a string"}})
    CHECK(error_of(schema) == "the schema cannot be used at " + what);
  CHECK(error_of("3") == "the schema must be an object, true or false");
  CHECK(error_of("[") == "the schema is not valid JSON: the parser stops at byte 1 of 1");
  CHECK(error_of(R"({"a": 1, "a": 2})") == "the schema has the key \"a\" twice");
}

TEST_CASE("a reference leads to a place within the schema, and not in a circle") {
  const std::string at = "the schema cannot be used at ";
  CHECK(error_of(R"({"$ref": "#/$defs/a"})") == at + "/$ref: there is nothing at #/$defs/a");
  CHECK(error_of(R"({"$ref": "#/items/1", "items": [true]})") == at + "/$ref: there is nothing at #/items/1");
  for (const std::string outside :
       {"http://example.com/a.json", "other.json", "#name", "", "file:///etc/passwd"})
    CHECK(error_of("{\"$ref\": \"" + outside + "\"}") ==
          at + "/$ref: only references within the schema are followed, as in #/$defs/name");
  CHECK(error_of(R"({"$ref": "#"})") == at + "its root: it refers to itself");
  CHECK(
      error_of(
          R"({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}})") ==
      at + "/$defs/a: it refers to itself");
  CHECK(error_of(R"({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}})") == "");
  for (const std::string digit : {"1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b",
                                  "c", "d", "e", "f", "A", "B", "C", "D", "E", "F"}) {
    const char name = static_cast<char>(0x40 + std::stoi(digit, nullptr, 16));
    CHECK(error_of("{\"$ref\": \"#/$defs/%4" + digit + "\", \"$defs\": {\"" + name + "\": true}}") == "");
  }
  CHECK(error_of(R"({"items": {"$ref": "#"}})") == "");
  const auto chain = [](int length) {
    std::string text = R"({"$ref": "#/$defs/0", "$defs": {)";
    for (int i = 0; i < length; ++i)
      text += "\"" + std::to_string(i) + "\": {\"$ref\": \"#/$defs/" + std::to_string(i + 1) + "\"},";
    return text + "\"" + std::to_string(length) + "\": true}}";
  };
  CHECK(error_of(chain(100)) == "");
  CHECK(error_of(chain(101)).ends_with(": more than 100 schemas refer to one another"));
}

TEST_CASE("in each old draft a reference stands alone") {
  const auto error = [](const std::string& draft) {
    return error_of("{\"$schema\": \"https://json-schema.org/" + draft +
                    R"(/schema", "$ref": "#/definitions/a",
        "type": "string", "definitions": {"a": {"type": "null"}}})");
  };
  for (const char* const draft : {"draft-03", "draft-04", "draft-06", "draft-07"}) CHECK(error(draft) == "");
  for (const char* const draft : {"draft/2019-09", "draft/2020-12"})
    CHECK(error(draft) == "no JSON value is valid under the schema");
}

TEST_CASE("an escape takes each hexadecimal digit, and an exponent each sign") {
  const auto accepts = [](const std::string& type, const std::string& text) {
    const Grammar grammar(json_schema_rules("{\"type\": \"" + type + "\"}", nothing));
    return grammar.accepts(grammar.after(grammar.start(), text));
  };
  for (const char digit : std::string("0123456789abcABCefEF")) {
    CAPTURE(digit);
    CHECK(accepts("string", std::string("\"\\u") + digit + "123\""));
    CHECK(accepts("string", std::string("\"\\u12") + digit + "3\""));
  }
  CHECK(!accepts("string", "\"\\ug123\""));
  for (const std::string exponent : {"e3", "E3", "e-3", "E-3", "e+3", "E+3"})
    CHECK(accepts("number", "1" + exponent));
  CHECK(!accepts("number", "1e--3"));
}

TEST_CASE("a pattern has the escapes and anchors of ECMAScript") {
  const auto schema = [](const std::string& pattern) {
    return nlohmann::json{{"type", "string"}, {"pattern", pattern}}.dump();
  };
  const auto accepts = [&](const std::string& pattern, const std::string& text) {
    const Grammar grammar(json_schema_rules(schema(pattern), nothing));
    return grammar.accepts(grammar.after(grammar.start(), "\"" + text + "\""));
  };
  for (const auto& [pattern_, text, other] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"^\\x41$", "A", "B"},
                                                                      {"^\\x411$", "A1", "\u0411"},
                                                                      {"^\\u00e9$", "\u00e9", "e"},
                                                                      {"^\\uD7FF$", "\uD7FF", "\uE000"},
                                                                      {"^\\uE000$", "\uE000", "\uD7FF"},
                                                                      {"^\\v$", "\\u000b", "v"},
                                                                      {"^\\f$", "\\f", "f"},
                                                                      {"^\\s$", "\uFEFF", "\uFEFE"},
                                                                      {"^\\s$", "\u00A0", "\uFF00"},
                                                                      {"^\\s$", "\u200A", "\u200B"},
                                                                      {"^a$|b", "a", "ax"},
                                                                      {"^a$|b", "xbx", "xa"},
                                                                      {"b|^a", "ax", "xa"},
                                                                      {"b|a$", "xa", "ax"}}) {
    const auto& pattern = pattern_;  // clang 14 captures no structured binding
    CAPTURE(pattern);
    CHECK(accepts(pattern, text));
    CHECK_FALSE(accepts(pattern, other));
  }
  for (const char* half : {"\\uD800", "\\uDFFF"})
    CHECK(error_of(schema(half)).ends_with("half a surrogate pair is not a character"));
  for (const char* cut : {"\\x4", "\\u00e", "\\xg1"})
    CHECK(error_of(schema(cut)).ends_with("\\x41 has two hexadecimal digits, and \\u00e9 four"));
}

TEST_CASE("members come in the order in which a schema names them, wherever it does") {
  const auto accepts = [](const std::string& schema, const std::string& text) {
    const Grammar grammar(json_schema_rules(schema, written_members));
    return grammar.accepts(grammar.after(grammar.start(), text));
  };
  const std::string ab = R"({"a":1,"b":1})", ba = R"({"b":1,"a":1})";
  const std::string a = R"("properties": {"a": true})", b = R"({"properties": {"b": true}})";
  for (const std::string& others :
       {R"("allOf": [)" + b + "]", R"("anyOf": [)" + b + "]", R"("oneOf": [)" + b + ", false]",
        std::string(R"("$ref": "#/$defs/b")")}) {
    CAPTURE(others);
    const std::string more = R"(, "required": ["b", "a"], "$defs": {"b": )" + b + "}}";
    const std::string first = "{" + a + ", " + others + more, last = "{" + others + ", " + a + more;
    CHECK(accepts(first, ab));
    CHECK_FALSE(accepts(first, ba));
    CHECK(accepts(last, ba));
    CHECK_FALSE(accepts(last, ab));
  }
  for (const std::string& condition :
       {R"("if": true, "then": )" + b, R"("dependentSchemas": {"a": )" + b + "}"}) {
    CAPTURE(condition);
    CHECK(accepts("{" + condition + ", " + a + "}", ab));
    CHECK_FALSE(accepts("{" + condition + ", " + a + "}", ba));
  }
  // What one schema names between two names of another comes between them.
  const std::string between =
      R"({"oneOf": [{"properties": {"a": {"const": 1}, "c": true}}, false], "required": ["c", "d"],
          "properties": {"a": true, "b": true, "c": true, "d": true}})";
  CHECK(accepts(between, R"({"a":1,"b":1,"c":1,"d":1})"));
  CHECK_FALSE(accepts(between, R"({"a":1,"c":1,"b":1,"d":1})"));
  CHECK_FALSE(accepts(between, R"({"a":1,"c":1,"d":1,"b":1})"));
  // Where they lie in memory does not count.
  std::string all, text = "{";
  for (int i = 0; i < 12; ++i) {
    all += fmt::format(R"({}{{"properties": {{"m{}": true}}, "required": ["m{}"]}})", i ? ", " : "", i, i);
    text += fmt::format(R"({}"m{}":1)", i ? "," : "", i);
  }
  CHECK(accepts("{\"allOf\": [" + all + "]}", text + "}"));
  CHECK_FALSE(accepts("{\"allOf\": [" + all + "]}", R"({"m1":1,"m0":1)" + text.substr(15) + "}"));
}

TEST_CASE("a schema without any valid value is refused") {
  for (const std::string schema :
       {"false", R"({"type": "integer", "minimum": 3, "maximum": 2})",
        R"({"type": "integer", "exclusiveMinimum": 3, "maximum": 3})",
        R"({"type": "number", "exclusiveMinimum": 3, "maximum": 3})",
        R"({"type": "string", "minLength": 3, "maxLength": 2})",
        R"({"type": "array", "minItems": 1, "items": false})",
        R"({"type": "array", "minItems": 2, "maxItems": 1})", R"({"enum": []})",
        R"({"enum": [1], "type": "string"})", R"({"allOf": [{"type": "string"}, {"type": "null"}]})",
        R"({"allOf": [{"const": 1}, {"const": 2}]})", R"({"anyOf": [false]})",
        R"({"type": "array", "minItems": 1, "items": {"$ref": "#"}})"}) {
    CAPTURE(schema);
    CHECK(error_of(schema) == "no JSON value is valid under the schema");
  }
  CHECK(error_of(R"({"anyOf": [false, {"type": "null"}]})") == "");
}

TEST_CASE("of oneOf, not and if, what is not valid must be describable") {
  const std::string error =
      "the schema cannot be used at /oneOf: two of its alternatives may hold at once; anyOf allows that";
  for (const std::string one :
       {R"({"type": "string"})", R"({"const": "b"})", R"({"type": "integer"})",
        R"({"enum": [1, true, null]})", R"({"minimum": 2})", R"({"exclusiveMaximum": 2})",
        R"({"maxLength": 3})", R"({"pattern": "a"})", R"({"minItems": 1})", R"({"maxProperties": 1})",
        R"({"required": ["a", "b"]})", R"({"properties": {"a": {"properties": {"b": {"minimum": 1}}}}})",
        R"({"not": {"items": {}}})", R"({"$ref": "#/$defs/a"})",
        R"({"allOf": [{"minimum": 1}, {"title": "t"}]})", R"({"anyOf": [{"const": "a"}, {"enum": [3, 4]}]})",
        R"({"additionalProperties": true})", "{}"}) {
    CAPTURE(one);
    const std::string defs = R"(, "$defs": {"a": {"type": "null"}}})";
    CHECK(error_of(R"({"oneOf": [{"type": ["string", "object", "number", "boolean", "array"]}, )" + one +
                   "]" + defs) == "");
    CHECK(error_of(R"({"if": )" + one + R"(, "then": {}, "else": {"type": ["string", "null"]})" + defs) ==
          "");
    const bool is_all = one == "{}" || one == R"({"additionalProperties": true})";
    CHECK(error_of(R"({"not": )" + one + defs) == (is_all ? "no JSON value is valid under the schema" : ""));
  }
  for (const std::string one :
       {R"({"items": {"type": "null"}})", R"({"type": "object", "additionalProperties": false})",
        R"({"format": "date"})", R"({"patternProperties": {"a": {"type": "null"}}})", R"({"enum": [[1], 2]})",
        R"({"oneOf": [{}]})", R"({"if": {}, "then": {}})", R"({"dependentRequired": {"a": ["b"]}})",
        R"({"$ref": "#/$defs/a"})", R"({"properties": {"a": {"items": false}}})"}) {
    CAPTURE(one);
    const std::string defs = R"(, "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}})";
    CHECK(error_of(R"({"oneOf": [{}, )" + one + "]" + defs) == error);
    for (const std::string keyword : {"not", "if"})
      CHECK(error_of("{\"" + keyword + "\": " + one + R"(, "then": {})" + defs) ==
            "the schema cannot be used at /" + keyword + ": what is not valid under it cannot be described");
  }
  // Alternatives that exclude each other need no description.
  const auto object = [](const std::string& kind, const std::string& required) {
    return R"({"type": "object", "additionalProperties": {}, "properties": {"kind": {"const": ")" + kind +
           R"("}, "a": {"items": {"type": "null"}}}, "required": [)" + required + "]}";
  };
  CHECK(error_of("{\"oneOf\": [" + object("a", "\"kind\"") + "," + object("b", "\"kind\"") + "]}") == "");
  CHECK(error_of("{\"oneOf\": [" + object("a", "\"kind\"") + "," + object("a", "\"kind\"") + "]}") == error);
  CHECK(error_of("{\"oneOf\": [" + object("a", "\"kind\"") + "," + object("b", "") + "]}") == "");
  CHECK(error_of("{\"oneOf\": [" + object("a", "") + "," + object("b", "") + "]}") == error);
  // Such a schema may contain itself.
  CHECK(
      error_of(R"({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "dependentRequired": {"a": ["b"]},
                     "oneOf": [{"required": ["x"]}, {"required": ["y"]}]})") == "");
  CHECK(error_of(R"({"then": {"contains": {}}})") == "");  // without if, it does nothing
  CHECK(error_of(R"({"not": {"type": "text"}})").starts_with("the schema cannot be used at /not/type: "));
  CHECK(error_of(R"({"not": 1})") ==
        "the schema cannot be used at /not: a schema is an object, true or false");
}

TEST_CASE("combinations that are not built are refused") {
  for (const std::string schema :
       {R"({"format": "email", "maxLength": 254})", R"({"format": "hostname"})",
        R"({"type": "number", "minimum": 1e-9})", R"({"type": "integer", "minimum": 1e300})",
        R"({"enum": ["a"], "format": "date"})", R"({"enum": [{}], "additionalProperties": false})",
        R"({"enum": [{}], "patternProperties": {"a": {}}})", R"({"enum": [[]], "items": [{}]})",
        R"({"enum": [[]], "prefixItems": [{}]})", R"({"enum": [1e300]})", R"j({"pattern": "(?=a)"})j",
        R"({"pattern": "a^b"})", R"({"pattern": "\\bx"})"}) {
    CAPTURE(schema);
    CHECK(error_of(schema).starts_with("the schema cannot be used at "));
  }
  const std::string at = "the schema cannot be used at ";
  const std::string large = ": bounds beyond 1e15 are not supported";
  const std::string near_zero = ": a bound so close to zero is not supported";
  const std::string formats =
      "/format: the supported formats are date, time, date-time, uuid, ipv4, email and uri";
  const std::string rules = ": together they become more than 5000 rules";
  const std::string closed =
      R"({"type": "object", "additionalProperties": false, "properties": {"a": {}, "b": {}}, )";
  for (const auto& [schema_, error] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "integer", "minimum": 1000000000000000})", ""},
           {R"({"type": "integer", "minimum": 1000000000000001})", "/minimum" + large},
           {R"({"type": "integer", "maximum": -1000000000000000})", ""},
           {R"({"type": "integer", "maximum": -1000000000000001})", "/maximum" + large},
           {R"({"type": "number", "minimum": 0.0001})", ""},
           {R"({"type": "number", "minimum": 0.00001})", "/minimum" + near_zero},
           {R"({"type": "number", "maximum": -0.00001})", "/maximum" + near_zero},
           {R"({"type": "integer", "maximum": 0.5})", ""},
           {R"({"type": "number", "minimum": -1000000000000000, "maximum": 1000000000000000})", ""},
           {R"({"pattern": "a", "maxLength": 3})", ""},
           {R"({"format": "email", "maxLength": 254})", "/format" + rules},
           {R"({"format": "host-name"})", formats},
           {R"({"format": "idn-email"})", formats},
           {R"({"format": "datetime"})", "/format: there is no such format; did you mean date-time?"},
           {R"({"format": "int32"})", ""},
           {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", ""},
           {R"({"type": "string", "pattern": "^a$", "minLength": 2})", "none"},
           {R"({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]})", "none"},
           {R"({"patternProperties": {"[": true}})",
            "/patternProperties/[: the regular expression cannot be read at its end: it ends too early"},
           {R"({"patternProperties": {"a": 1}})",
            "/patternProperties/a: a schema is an object, true or false"},
           {R"({"patternProperties": [1]})", "/patternProperties: it must be an object of schemas"},
           {R"({"patternProperties": {"a": true, "b": true, "c": true, "d": true}})", ""},
           {R"({"patternProperties": {"a": true, "b": true, "c": true, "d": true, "e": true}})",
            "its root: more than 4 patterns of names are not supported"},
           {R"({"dependencies": 1})", "/dependencies: it must be an object"},
           {R"({"dependentRequired": {"a": [1]}})", "/dependentRequired/a: it must be a list of names"},
           {R"({"dependentRequired": {"a": "b"}})", "/dependentRequired/a: it must be a list of names"},
           {R"({"dependencies": {"a": [true]}})", "/dependencies/a: it must be a list of names"},
           {R"({"dependentSchemas": {"a": 1}})", "/dependentSchemas/a: a schema is an object, true or false"},
           {closed + R"("required": ["a"], "minProperties": 1})", ""},
           {closed + R"("minProperties": 3})", "none"},
           {closed + R"("minProperties": 1e300})", "none"},
           {closed + R"("maxProperties": 1e300})", ""},
           {closed + R"("required": ["a"], "maxProperties": 0})", "none"},
           {R"({"type": "object", "minProperties": 2, "maxProperties": 1})", "none"},
           {R"({"$ref": "#/$defs/a/items", "$defs": {"a": {"$id": "x", "items": {}}}})",
            "/$ref: a schema with an $id of its own lies on the way"},
           {R"({"$ref": "#/properties/$id", "properties": {"$id": {"type": "null"}}})", ""}}) {
    const auto& schema = schema_;  // clang 14 captures no structured binding
    CAPTURE(schema);
    CHECK(error_of(schema) == (error == "none" ? "no JSON value is valid under the schema"
                               : error.empty() ? ""
                                               : at + error));
  }
  // What is said of names that no name can be both of matters to nothing.
  const std::string day = R"(": {"format": "date"}}})";
  CHECK(error_of(R"({"patternProperties": {"^a": {"enum": ["x"]}, "^b)" + day) == "");
  CHECK(error_of(R"({"patternProperties": {"^a": {"enum": ["x"]}, "^ab)" + day)
            .ends_with("beside enum or const, this keyword is not supported"));
  CHECK(error_of(R"({"enum": [9e15]})").ends_with("a number above 9e15 in an enum may be rounded"));
  CHECK(error_of(R"({"enum": [8999999999999999.0]})") == "");
  CHECK(error_of(R"({"pattern": "[a"})") ==
        "the schema cannot be used at /pattern: the regular expression cannot be read at its end: it ends "
        "too early");
}

TEST_CASE("large and deep schemas take bounded time and memory") {
  CHECK(error_of(std::string(999'998, ' ') + "{}") == "");
  CHECK(error_of(std::string(999'999, ' ') + "{}") ==
        "the schema has 1000001 bytes, but at most 1000000 are read");
  CHECK(error_of("{\"properties\": {\"" + std::string(1000, 'a') + "\": true}}") == "");
  CHECK(error_of("\"" + std::string(10'000'000, 'a') + "\"") ==
        "the schema has 10000002 bytes, but at most 1000000 are read");
  std::string deep = "true";
  for (int i = 0; i < 99; ++i) deep = "{\"items\":" + deep + "}";
  CHECK(error_of(deep) == "");
  CHECK(error_of("{\"items\":{\"items\":" + deep + "}}") ==
        "the schema nests JSON values more than 100 deep");
  std::string chain = R"({"$ref": "#/$defs/0", "$defs": {)";
  for (int i = 0; i < 5000; ++i)
    chain += fmt::format(R"("{}": {{"items": {{"$ref": "#/$defs/{}"}}}},)", i, i + 1);
  CHECK(error_of(chain + R"("5000": true}})") == "");
  std::string product = "{\"allOf\": [";
  for (int i = 0; i < 11; ++i) product += R"({"anyOf": [{"minLength": 1}, {"maxLength": 9}]},)";
  CHECK(error_of(product + "true]}").ends_with(": it has more than 1000 combinations of alternatives"));
  std::string names = "{\"properties\": {";
  for (int i = 0; i < 8000; ++i)
    names += fmt::format("\"{}{}\": {{\"type\": \"null\"}},", std::string(100, 'x'), i);
  CHECK(error_of(names + "\"y\": true}}").find("parts as a grammar") != std::string::npos);
  CHECK(error_of("{\"properties\": {\"" + std::string(1001, 'a') + "\": true}}")
            .ends_with(": a name has more than 1000 bytes"));
  CHECK(error_of(R"({"minProperties": 1e300})").ends_with("parts as a grammar"));
  CHECK(error_of(R"({"maxProperties": 1e300})").ends_with("parts as a grammar"));
  CHECK(error_of(R"({"items": {}, "maxItems": 1e300, "minLength": 1e300})") == "");
}

TEST_CASE("a schema is read from a file") {
  const TemporaryFolder folder;
  folder.write("a.json", "{\"type\": \"null\"}");
  CHECK(read_json_schema((folder.path() / "a.json").string(), nothing).size() == 1);
  CHECK(read_json_schema("", nothing).empty());
  CHECK(error_message([&] { read_json_schema("/nonexistent", nothing); }) != "");
}
TEST_CASE("a value under then must be one under if, and of several lists of items the longest counts") {
  const auto accepts = [](const std::string& schema, const std::string& text) {
    const Grammar grammar(json_schema_rules(schema, written_members));
    return grammar.accepts(grammar.after(grammar.start(), text));
  };
  const std::string choice = R"({"if": {"const": 1}, "then": {"enum": [1, 2]}, "else": {"enum": [3]}})";
  CHECK(accepts(choice, "1"));
  CHECK_FALSE(accepts(choice, "2"));
  CHECK(accepts(choice, "3"));
  const std::string two = R"({"prefixItems": [{"const": 1}, {"const": 2}]})",
                    one = R"({"prefixItems": [{"type": "integer"}]})";
  for (const std::string& both : {two + ", " + one, one + ", " + two}) {
    CAPTURE(both);
    CHECK(accepts("{\"allOf\": [" + both + "]}", "[1,2,5]"));
    CHECK_FALSE(accepts("{\"allOf\": [" + both + "]}", "[1,3]"));
  }
}
