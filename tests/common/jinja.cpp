// Templates render as Python's jinja2 renders them, keep the origin of each byte, and end within their
// limits.
#include "common/text/jinja.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/error_message.h"

using namespace staircase;
using nlohmann::ordered_json;

namespace {

/// What jinja2 made of small templates: tests/reference/make_jinja.py.
const ordered_json& reference() {
  static const ordered_json read = [] {
    std::ifstream in(STAIRCASE_SOURCE_TREE "/tests/reference/jinja.json");
    return ordered_json::parse(in);
  }();
  return read;
}

void check_as_jinja2(const std::string& subject) {
  const auto seconds = reference()["now"].get<std::time_t>();
  const std::tm now = *std::gmtime(&seconds);
  const ordered_json& cases = reference()["cases"][subject];
  REQUIRE_FALSE(cases.empty());
  for (const ordered_json& one : cases) {
    const auto source = one["template"].get<std::string>();
    CAPTURE(source);
    std::string text;
    const std::string error = error_message([&] {
      text = JinjaTemplate(source).render({reference()["data"], {}, now}).text;
    });
    if (one.contains("text")) {
      CHECK(error == "");
      CHECK(text == one["text"].get<std::string>());
    } else {
      CHECK(says(error, "the template's line "));
    }
  }
}

const ordered_json kTalk = {{"user", "<|end|> x"}, {"n", 7}, {"list", {"a<|b|>", "c"}}};

/// The text of a template with marks around text from the data.
std::string marked(const std::string& source) {
  const Rendered rendered = JinjaTemplate(source).render({kTalk, {{"eos_token", "<|end|>"}}, {}});
  REQUIRE(rendered.own.size() == rendered.text.size());
  std::string text;
  for (std::size_t i = 0; i < rendered.text.size(); ++i) {
    const bool before = i == 0 || rendered.own[i - 1];
    if (rendered.own[i] != before) text += before ? "[" : "]";
    text += rendered.text[i];
  }
  return text + (rendered.own.empty() || rendered.own.back() ? "" : "]");
}

std::string refusal(const std::string& source, const RenderLimits& limits = {}) {
  return error_message([&] { JinjaTemplate(source).render({kTalk, {}, {}}, limits); });
}

}  // namespace

TEST_CASE("white space around blocks is removed as with trim_blocks and lstrip_blocks") {
  check_as_jinja2("white space");
}

TEST_CASE("operators bind and chain as in Jinja") {
  check_as_jinja2("precedence");
}

TEST_CASE("slices count characters, from both ends and in both directions") {
  check_as_jinja2("slices");
}

TEST_CASE("loops know where they are, skip, break and have an else") {
  check_as_jinja2("loops");
}

TEST_CASE("a variable that a loop sets ends with its turn, one that an if sets stays") {
  check_as_jinja2("scope");
}

TEST_CASE("macros take defaults and names, and see the variables of their block") {
  check_as_jinja2("macros");
}

TEST_CASE("texts have the methods of Python's and the filters of Jinja") {
  check_as_jinja2("texts");
}

TEST_CASE("lists and dicts are indexed, filtered and sorted, and never changed") {
  check_as_jinja2("lists and dicts");
}

TEST_CASE("numbers are computed and written as in Python") {
  check_as_jinja2("numbers");
}

TEST_CASE("letters change their case as in Python, alone and at the end of a word") {
  check_as_jinja2("case");
}

TEST_CASE("a text has lines wherever Python ends one") {
  check_as_jinja2("lines");
}

TEST_CASE("a zero keeps its sign, a remainder has that of its divisor, and no integer is rounded") {
  check_as_jinja2("zeros and remainders");
}

TEST_CASE("what Python refuses is refused") {
  check_as_jinja2("what Python refuses");
}

TEST_CASE("an undefined argument is none that is missing") {
  check_as_jinja2("what is given");
}

TEST_CASE("what would be written otherwise than in Python is refused in a sentence") {
  for (const char* const source : {"{{ range(3) }}",
                                   "{{ 'a'.isdigit is defined }}",
                                   "{{ (1).real }}",
                                   "{{ user.__class__ }}",
                                   "{{ '1_000' | int }}",
                                   "{{ '\u0663' | float }}",
                                   "{{ 1e22 | int }}",
                                   "{{ 9223372036854775808.0 | int }}",
                                   "{{ '1e400' | float }}",
                                   "{{ 99999999999999999 / 3 }}",
                                   "{{ 'ʰa'.title() }}",
                                   "{{ 'ª' is lower }}",
                                   "{{ 'a' is sameas 'a' }}",
                                   "{{ '\\101' }}",
                                   "{{ '\\ud800' }}",
                                   "{{ '\\udfff' }}",
                                   "{{ '\\N{DIGIT ONE}' }}",
                                   "{{ ['<' | safe] }}",
                                   "{{ ('<' | safe).upper() }}",
                                   "{{ ('<' | safe) * 2 }}",
                                   "{{ {'a': 1}.keys() == {'a': 1}.keys() }}",
                                   "{% macro f() %}{% endmacro %}{{ f.name }}",
                                   "{% for x in [1] %}{{ loop.cycle }}{% endfor %}",
                                   "{% for x in [1] %}{{ loop.depth }}{% endfor %}",
                                   "{% for x in [1] %}{{ loop.depth0 }}{% endfor %}",
                                   "{% for x in [1] %}{{ loop.changed }}{% endfor %}"}) {
    CAPTURE(source);
    CHECK(says(refusal(source), "the template's line 1 "));
  }
  const ordered_json large = {{"n", 18446744073709551615u}};
  CHECK(error_message([&] {
          JinjaTemplate("{{ n }}").render({large, {}, {}});
        }) == "a conversation that has the integer 18446744073709551615, which is too large");
}

TEST_CASE("filters take the arguments that few templates give them") {
  check_as_jinja2("rare arguments");
}

TEST_CASE("literals have all escapes and exponents of Python's") {
  check_as_jinja2("rare literals");
}

TEST_CASE("a member that Python's type has and a template here lacks is refused by name") {
  // Of dir(str), dir(list), dir(range), dir(int), dir(float), dir(dict) and views of dicts.
  const std::map<std::string, std::vector<std::string>> members{
      {"'a'",
       {"casefold",  "center",       "encode",       "expandtabs", "find",    "format_map",   "index",
        "isalnum",   "isalpha",      "isascii",      "isdecimal",  "isdigit", "isidentifier", "islower",
        "isnumeric", "isprintable",  "isspace",      "istitle",    "isupper", "ljust",        "maketrans",
        "partition", "removeprefix", "removesuffix", "rfind",      "rindex",  "rjust",        "rpartition",
        "rsplit",    "swapcase",     "translate",    "zfill"}},
      {"list", {"copy", "count", "index"}},
      {"range(3)", {"count", "index", "start", "step", "stop"}},
      {"{'a': 1}.keys()", {"isdisjoint", "mapping"}},
      {"(1)",
       {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag",
        "numerator", "real", "to_bytes"}},
      {"(1.5)", {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"}},
      {"{'a': 1}", {"fromkeys"}}};
  for (const auto& [value, names] : members) {
    for (const std::string& name : names) {
      CAPTURE(name);
      CHECK(says(refusal("{{ " + value + "." + name + " is defined }}"),
                 "the template's line 1 reads \"" + name + "\" of ", "which is not known here"));
    }
  }
}

TEST_CASE("JSON is written as by transformers: no HTML escapes, other characters unchanged") {
  check_as_jinja2("json");
}

TEST_CASE("an undefined value is empty, and an error where a value is needed") {
  check_as_jinja2("what is defined");
}

TEST_CASE(
    "text from the template belongs to it, including literals in expressions; the data's stays the data's") {
  CHECK(marked("<|a|>{{ user }}<|b|>") == "<|a|>[<|end|> x]<|b|>");
  CHECK(marked("{{ '<|a|>' + user ~ '<|b|>' }}") == "<|a|>[<|end|> x]<|b|>");
  CHECK(marked("{{ user }}{{ eos_token }}") == "[<|end|> x]<|end|>");
  CHECK(marked("{{ nope }}{{ 'a' }}") == "a");
  CHECK(marked("{{ n }}{{ [n] }}") == "[7[7]]");
}

TEST_CASE("origins survive the template's operations on texts") {
  CHECK(marked("{{ (' a' + user + 'b ').strip() }}") == "a[<|end|> x]b");
  CHECK(marked("{{ ('a,' + user).split(',')[1] }}{{ 'a,b'.split(',')[1] }}") == "[<|end|> x]b");
  CHECK(marked("{{ list | join('<|s|>') }}") == "[a<|b|>]<|s|>[c]");
  CHECK(marked("{{ 'a-b'.replace('-', user) }}") == "a[<|end|> x]b");
  CHECK(marked("{{ user.replace('x', '<|y|>') }}") == "[<|end|> ]<|y|>");
  CHECK(marked("{{ ('ab' + user)[1:4] }}{{ ('a' + user)[::-1][-2:] }}") == "b[<|<]a");
  CHECK(marked("{{ '<|{}|>'.format(user) }}") == "<|[<|end|> x]|>");
  CHECK(marked("{% set x %}<|a|>{{ user }}{% endset %}{{ x | trim }}") == "<|a|>[<|end|> x]");
  CHECK(marked("{% macro f(x) %}<|a|>{{ x }}{% endmacro %}{{ f(user) * 2 }}") ==
        "<|a|>[<|end|> x]<|a|>[<|end|> x]");
  CHECK(marked("{{ ('a\nb' + user) | indent(1) }}") == "a\n b[<|end|> x]");
  CHECK(marked("{% for c in 'a' + user[:2] %}{{ c }}{% endfor %}") == "a[<|]");
  CHECK(marked("{% set ns = namespace(t='') %}{% set ns.t = ns.t + '<|a|>' + user %}{{ ns.t }}") ==
        "<|a|>[<|end|> x]");
}

TEST_CASE("a newly made text belongs to the data if any of it did") {
  CHECK(marked("{{ 'a' | upper }}{{ ('a' + user) | upper }}") == "A[A<|END|> X]");
  CHECK(marked("{{ list | tojson }}{{ '<|end|>' | tojson }}") == "[[\"a<|b|>\", \"c\"]\"<|end|>\"]");
  CHECK(marked("{{ list }}") == "[['a<|b|>', 'c']]");
  CHECK(marked("{{ strftime_now('<|a|>') }}{{ strftime_now(user) }}") == "<|a|>[<|end|> x]");
}

TEST_CASE("a refusal is one sentence with the line and what is there") {
  CHECK(refusal("a\n{{ 'x' | xmlattr }}") ==
        "the template's line 2 uses the filter \"xmlattr\", which is not known here");
  CHECK(refusal("{{ 1 is odder }}") ==
        "the template's line 1 uses the test \"odder\", which is not known here");
  CHECK(refusal("\n\n{% include 'x' %}") ==
        "the template's line 3 uses the tag \"include\", which is not known here");
  CHECK(refusal("{{ a.b }}") == "the template's line 1 reads \"b\" of \"a\", which is undefined");
  CHECK(refusal("{%- if n -%}\n{{ raise_exception('Roles must alternate.') }}{% endif %}") ==
        "the template's line 2 raises an exception: Roles must alternate.");
  CHECK(refusal("{{ user(1) }}") == "the template's line 1 calls a text");
  CHECK(refusal("{{ user.strip(\n  n) }}") ==
        "the template's line 1 uses strip with an integer instead of a text");
  CHECK(refusal("{% for x in n %}{% endfor %}") ==
        "the template's line 1 iterates over an integer as if it were a list");
  // A tag over several lines has the line where its statement begins, and a text the one where it begins.
  CHECK(refusal("{% for\n x in n %}{% endfor %}") ==
        "the template's line 1 iterates over an integer as if it were a list");
  CHECK(refusal("\n{% set\n a, b = [1, 2, 3] %}") == "the template's line 2 unpacks 3 values into 2 names");
  CHECK(refusal("{%\nset\n a.b = 1 %}") ==
        "the template's line 2 sets an attribute of \"a\", which is not a namespace");
  CHECK(refusal("{% include\n 'x' %}") ==
        "the template's line 1 uses the tag \"include\", which is not known here");
  CHECK(says(refusal("{% for x in [1, 2] %}abc\n{{ x }}{% endfor %}", {.output = 6}),
             "the template's line 1 makes"));
  CHECK(refusal("{% if n %}\n") == "the template's line 1 has its end where \"endif\" is expected");
}

TEST_CASE("each mistake in a template has a sentence of its own") {
  for (const auto& [source_, error] : std::vector<std::pair<const char*, const char*>>{
           // what it computes
           {"{{ 'a'.split('') }}", "splits a text at nothing"},
           {"{{ '{'.format(1) }}", "formats a text with a single brace"},
           {"{{ '}'.format(1) }}", "formats a text with a single brace"},
           {"{{ '{}{}'.format(1) }}", "formats a text with \"{}\", for which nothing is given"},
           {"{{ '{a}'.format(b=1) }}", "formats a text with \"{a}\", for which nothing is given"},
           {"{{ 'a'.strip('a', 'b') }}", "gives \"strip\" 2 arguments, but it takes 1"},
           {"{{ 'a'.replace('a') }}", "calls \"replace\" without its argument \"new\""},
           {"{{ 'a' | dictsort }}", "uses dictsort with a text instead of a dict"},
           {"{{ {} | dictsort(by='both') }}", "uses dictsort by \"both\""},
           {"{{ [1] | selectattr }}", "uses selectattr without the name of an attribute"},
           {"{{ [1] | rejectattr }}", "uses rejectattr without the name of an attribute"},
           {"{{ 1 / 0 }}", "divides by zero"},
           {"{{ 1 // 0 }}", "divides by zero"},
           {"{{ 1 % 0 }}", "divides by zero"},
           {"{{ 1.5 / 0 }}", "divides by zero"},
           {"{{ 1.5 // 0.0 }}", "divides by zero"},
           {"{{ 1.5 % 0 }}", "divides by zero"},
           {"{{ 9007199254740993 / 1 }}", "divides too large an integer"},
           {"{{ 1 / -9007199254740993 }}", "divides too large an integer"},
           {"{{ 9007199254740992 / -9007199254740992 }}", ""},
           {"{{ 'a' | abs }}", "uses abs with a text instead of a number"},
           {"{{ '1_0' | int }}", "reads a number from \"1_0\", which is not possible here"},
           {"{{ '9223372036854775808' | int }}",
            "makes an integer of \"9223372036854775808\", which is too large"},
           {"{{ x | int }}", "makes an integer of \"x\", which is undefined"},
           {"{{ x | float }}", "makes a number of \"x\", which is undefined"},
           {"{{ '1e999' | float }}", "makes a number of \"1e999\", which is not possible here"},
           {"{{ 1 | tojson(separators=(',',)) }}", "uses tojson with separators that are not two"},
           {"{{ 1 | tojson(separators=(',', ':', ';')) }}", "uses tojson with separators that are not two"},
           {"{{ x() }}", "calls \"x\", which is undefined"},
           {"{{ 1 | tojson(indent=1.5) }}", "uses tojson with a number instead of an integer"},
           {"{{ x[0] }}", "reads an item of \"x\", which is undefined"},
           {"{{ x[:1] }}", "takes a slice of \"x\", which is undefined"},
           {"{{ {}[:1] }}", "takes a slice of a dict"},
           {"{{ 'abc'['a':] }}", "uses a slice with a text instead of an integer"},
           {"{{ 'abc'[::0] }}", "takes a slice with a step of 0"},
           {"{{ 1 is sameas 1 }}", "uses sameas with an integer"},
           {"{{ 1 is none(2) }}", "uses the test \"none\" with 1 arguments instead of none"},
           {"{{ 1 is eq(2, 3) }}", "uses the test \"eq\" with 2 arguments instead of one"},
           {"{{ 1 is eq }}", "uses the test \"eq\" with 0 arguments instead of one"},
           {"{{ range(stop=3) }}", "gives range an argument by name"},
           {"{{ range('3') }}", "calls range with a text instead of an integer"},
           {"{{ range(1, 2.5) }}", "calls range with a number instead of an integer"},
           {"{{ range(1, 5, 0) }}", "calls range with a step of 0"},
           {"{{ range(5, 1, 0) }}", "calls range with a step of 0"},
           {"{{ range(3, 3, 0) }}", "calls range with a step of 0"},
           {"{{ dict([1]) }}", "makes a dict of a list"},
           {"{{ strftime_now(1) }}", "calls strftime_now with an integer instead of a text"},
           {"{% for a, b in [[1, 2], [1]] %}{% endfor %}", "unpacks 1 values into 2 names"},
           {"{% set a, b = [1, 2, 3] %}", "unpacks 3 values into 2 names"},
           {"{{ 1 | length }}", "uses the length of an integer"},
           {"{{ {(1, 2): 3} | tojson }}", "uses tojson on a dict with a key that is not a text"},
           {"{{ dict | tojson }}", "uses tojson on a function"},
           {"{{ 1 in 'a' }}", "looks for an integer in a text"},
           {"{{ [1] < 2 }}", "compares a list with an integer"},
           {"{{ {[1]: 2} }}", "uses a list as a key"},
           {"{{ {({},): 2} }}", "uses a dict as a key"},
           // how it is written
           {"a {# b", "begins a comment that does not end"},
           {"a {% if b", "begins a tag without its %}"},
           {"a {{ b", "begins a tag without its }}"},
           {"{{ a) }}", "has a \")\" that closes nothing"},
           {"{{ (a] }}", "has a \"]\" that closes nothing"},
           {"{{ 'a }}", "begins a string that does not end"},
           {"{{ '\\x4' }}", "has a string with a broken \\x"},
           {"{{ 012 }}", "has the integer \"012\", which begins with a 0"},
           {"{% endif %}", "uses the tag \"endif\", which is not known here"},
           {"{% if a b %}{% endif %}", "has \"b\" where the tag should end"},
           {"{% for 1 in a %}{% endfor %}", "has \"1\" where a name is expected"},
           {"{% set a, user.b = 1, 2 %}", "has \".\" where \"=\" is expected"},
           {"{% set none = 1 %}", "sets \"none\", which is a constant"},
           {"{% break %}", "uses \"break\" outside of a loop"},
           {"{% continue %}", "uses \"continue\" outside of a loop"},
           {"{% for loop in [1] %}{% endfor %}", "sets \"loop\", which the loop itself sets"},
           {"{% macro f(a=1, b) %}{% endmacro %}",
            "has a parameter without a default after one with a default"},
           {"{{ }}", "has \"}}\" where an expression is expected"},
           {"{{ a[] }}", "has an index without a value"},
           {"{{ a[1:2:3:4] }}", "has a slice of more than three parts"},
           {"{{ f(a=1, 2) }}", "has an argument without a name after one with a name"},
           {"{{ 1 is eq(a=1) }}", "gives a test an argument by name"}}) {
    const auto& source = source_;  // clang 14 captures no structured binding
    CAPTURE(source);
    CHECK(refusal(source) == (*error ? std::string("the template's line 1 ") + error : ""));
  }
}

TEST_CASE("no template changes a list or a dict, by whichever method") {
  for (const std::string name : {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}) {
    CHECK(refusal("{{ list." + name + "(0) }}") ==
          "the template's line 1 calls \"" + name + "\", but a template may not change a list");
  }
  for (const std::string name : {"clear", "pop", "popitem", "setdefault", "update"}) {
    CHECK(refusal("{{ dict(a=1)." + name + "() }}") ==
          "the template's line 1 calls \"" + name + "\", but a template may not change a dict");
  }
}

TEST_CASE("blocks of every kind are nested only so deeply") {
  for (const std::string begin : {"{% if n %}", "{% for x in n %}", "{% macro f() %}", "{% set x %}",
                                  "{% filter e %}", "{% generation %}"}) {
    CAPTURE(begin);
    std::string source;
    for (int i = 0; i < 100'000; ++i) source += begin;
    CHECK(says(refusal(source), "too deeply"));
  }
}

TEST_CASE("a stranger's program ends: by its steps, its depth and its output") {
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  CHECK(says(refusal(loops), "makes more text"));
  CHECK(says(refusal("{{ range(10 ** 9) }}"), "line 1"));
  CHECK(says(refusal("{{ range(1000000000) }}"), "a range of more than 100000 integers"));
  CHECK(says(refusal("{{ 'x' * 1000000000000 }}"), "more text"));
  CHECK(says(refusal("{{ [0] * 1000000000000 }}"), "more text"));
  CHECK(says(refusal("{{ 'x' | indent(1000000000000, true) }}"), "more text"));
  CHECK(says(refusal("{{ list | tojson(indent=1000000000000) }}"), "more text"));
  CHECK(says(refusal("{% for i in range(9) %}{{ 'x' * 9999999 }}{% endfor %}"), "bytes of text"));
  const std::string twice =
      "{% set ns = namespace(t='x') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}";
  CHECK(says(refusal(twice), "more text"));
  CHECK(says(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "nested too deeply"));
  const std::string nest =
      "{% set ns = namespace(t=[]) %}{% for i in range(999) %}{% set ns.t = [ns.t] %}{% endfor %}";
  CHECK(says(refusal(nest), "nests lists too deeply"));
  const auto times = [](const std::string& text) {
    std::string all;
    for (int i = 0; i < 100'000; ++i) all += text;
    return all;
  };
  for (const std::string& source :
       {"{{ " + times("(") + "1" + times(")") + " }}", "{{ " + times("[") + times("]") + " }}",
        "{{ " + times("not ") + "1 }}", "{{ " + times("-") + "1 }}", "{{ 1" + times("+1") + " }}",
        "{{ n" + times(".a") + " }}", "{{ n" + times("|e") + " }}", times("{% if n %}"),
        "{% if n %}" + times("{% elif n %}"), "{{ " + times("1 if 1 else ") + "1 }}",
        "{{ 'a' | map(" + times("'map',") + ") }}"}) {
    CHECK(says(refusal(source), "too deeply"));
  }
  CHECK(says(refusal("{{ 'a' * 4999999 + 'b' in 'a' * 9999999 }}"), "more steps"));
  CHECK(says(refusal("{{ 1 + 1 + 1 }}", {.steps = 5}), "more steps"));
  CHECK(refusal("{{ 1 + 1 + 1 }}", {.steps = 6}) == "");
}

TEST_CASE("a range has up to 100,000 integers, in either direction") {
  for (const char* range : {"range(100000)", "range(100000, 0, -1)", "range(7, 300006, 3)"}) {
    CAPTURE(range);
    CHECK(refusal(fmt::format("{{% if {} | length != 100000 %}}{{{{ nope.x }}}}{{% endif %}}", range)) == "");
  }
  for (const char* range : {"range(100001)", "range(100001, 0, -1)", "range(7, 300008, 3)"}) {
    CAPTURE(range);
    CHECK(says(refusal(fmt::format("{{{{ {} }}}}", range)), "a range of more than 100000 integers"));
  }
}

TEST_CASE("an integer that has no room is refused by each operation, and its neighbour is computed") {
  const std::string least = "(-9223372036854775807 - 1)", most = "9223372036854775807";
  for (const std::string& wrong : {most + " + 1", least + " - 1", least + " * -1", least + " // -1",
                                   least + " % -1", "-" + least, least + " | abs"}) {
    CAPTURE(wrong);
    CHECK(says(refusal("{{ " + wrong + " }}"), "makes an integer that is too large"));
  }
  const auto text = [](const std::string& source) {
    return JinjaTemplate("{{ " + source + " }}").render({kTalk, {}, {}}).text;
  };
  CHECK(text(least + " // 1") == "-9223372036854775808");
  CHECK(text(least + " // -2") == "4611686018427387904");
  CHECK(text(least + " % -2") == "0");
  CHECK(text("-" + most + " // -1") == most);
  CHECK(text("(" + least + " + 1) | abs") == most);
}

TEST_CASE("lists nest 200 deep, those of the data and those of a template") {
  const auto of_data = [](int depth, const std::string& begin = "[", const std::string& end = "]") {
    std::string text = begin.front() == '[' ? "[]" : "{}";
    for (int i = 1; i < depth; ++i) text = begin + text + end;
    const ordered_json data = {{"x", ordered_json::parse(text)}};
    return error_message([&] { JinjaTemplate("{{ x }}").render({data, {}, {}}); });
  };
  CHECK(of_data(200) == "");
  CHECK(says(of_data(201), "nests lists too deeply"));
  CHECK(of_data(200, "{\"a\": ", "}") == "");
  CHECK(says(of_data(201, "{\"a\": ", "}"), "nests lists too deeply"));
  const auto made = [](int depth) {
    return refusal(
        fmt::format("{{% set ns = namespace(t=[]) %}}{{% for i in range({}) %}}{{% set ns.t = [ns.t] %}}"
                    "{{% endfor %}}",
                    depth - 1));
  };
  CHECK(made(200) == "");
  CHECK(says(made(201), "nests lists too deeply"));
}

TEST_CASE("a dict is as deep as the deepest of its values, wherever that stands") {
  const auto error_of = [](int depth, bool is_last) {
    const std::string brackets =
        std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
    const std::string text =
        is_last ? R"({"b": 1, "a": )" + brackets + "}" : R"({"a": )" + brackets + R"(, "b": 1})";
    const ordered_json data = {{"x", ordered_json::parse(text)}};
    return error_message([&] { JinjaTemplate("{% set y = [x] %}").render({data, {}, {}}); });
  };
  for (const bool is_last : {false, true}) {
    CHECK(error_of(198, is_last) == "");
    CHECK(says(error_of(199, is_last), "nests lists too deeply"));
  }
}

TEST_CASE("only the words not and in ask whether something is not in a list") {
  CHECK(refusal("{{ 1 not in [2] }}") == "");
  CHECK(refusal("{{ 1 not 'in' [2] }}") != "");
}

TEST_CASE("a namespace may hold itself") {
  CHECK(
      refusal(
          "{% set ns = namespace() %}{% set ns.me = ns %}{% macro f() %}{% endmacro %}{% set ns.f = f %}") ==
      "");
  CHECK(says(refusal("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}"),
             "a namespace, which has no text"));
}
