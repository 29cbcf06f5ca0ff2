"""What a learner gets of a header: every declaration, what the step before had, and functions that throw."""

import re
import subprocess
import unittest

from support import Scratch, series  # noqa: F401  (support makes step_commands known)
from step_commands.outline import YOUR_TURN, Header, add_include, changed_names, flat, normal, outline, with_sentences

HEAD = """// What it is for.
#pragma once

#include <vector>

#include "common/base/message.h"

namespace staircase {

"""
TAIL = """
}  // namespace staircase
"""

BEFORE = HEAD + """struct Options {
  int count = 1;
  double gone = 0.0;
};

/// Grows; see "f(x) { }".
inline int grow(const Options& options, int by) {
  return options.count + by;  // } a bracket in a comment
}

inline double lost(const Options& options) {
  return options.gone;
}

inline int widen(int by) {
  if (by > 1) {
    return 2 * by;
  }
  return by;
}

inline int same(const Options& options) {
  return options.count;
}

class Cache {
 public:
  explicit Cache(int rows) : rows_(rows) {}
  int rows() const { return rows_; }
  int use() const { return rows_ * 2; }

 private:
  int rows_;
};
""" + TAIL

AFTER = HEAD + """/// Which.
enum class Kind : int {
  kOne,  ///< the first
  kTwo,
};

struct Options {
  int count = 1;
  Kind kind = Kind::kOne;                     ///< what else
  std::vector<std::vector<int>> rows = {{1}, {2, 3}};
};

/// Grows; see "f(x) { }".
inline int grow(const Options& options, int by) {
  return options.count + 2 * by;
}

inline double lost(const Options& options) {
  return options.count;
}

inline int widen(int by, Kind kind) {
  return kind == Kind::kOne ? by : 2 * by;
}

inline int same(const Options& options) {
  return options.count;
}

/// A constant.
constexpr float kLimit = 1'000.0f;
constexpr int twice(int x) {
  return 2 * x;
}
const std::vector<int> kTable{1, 2, 3};

/// Is new.
template <typename T = int>
T fresh(T value, char letter = '{', const char* text = "}") {
  return value;
}

class Shape {
 public:
  virtual ~Shape() = default;
  virtual int area(int unused) const = 0;
};

class Cache : public Shape {
 public:
  Cache(int rows, int columns) : rows_(rows), table_{rows, columns}, columns_(table_.size()) {
    table_.push_back(0);
  }
  Cache() = default;
  int rows() const { return rows_; }
  int use() const { return rows_ * 3; }
  int area(int unused) const override { return rows_ * 7; }
  bool operator==(const Cache& other) const { return rows_ == other.rows_ && columns_ == 7; }
  int cell(int index) const { return table_[index]; }

 private:
  int rows_ = 0;
  std::vector<int> table_;
  std::size_t columns_ = 0;
};

/// A name in a namespace of its own.
namespace detail {
inline void helper(int& x) {
  x += 3;
}
}  // namespace detail
""" + TAIL


class Outline(unittest.TestCase):
    def setUp(self):
        before, after = Header(BEFORE), Header(AFTER)
        self.text = outline(after, [before], changed_names([before], [after]), "04-before")

    def body(self, start):
        """What follows that declaration, up to its closing bracket."""
        self.assertEqual(self.text.count(start), 1, start)
        rest = self.text[self.text.index(start) + len(start):]
        return rest[:re.search(r"^ {0,2}\}", rest, re.MULTILINE).end()] if rest.startswith("\n") else rest.split("\n")[0]

    def test_every_declaration_stays_with_its_documentation(self):
        for words in ("  kOne,  ///< the first", "Kind kind = Kind::kOne;                     ///< what else",
                      "rows = {{1}, {2, 3}};", "/// Is new.\ntemplate <typename T = int>\nT fresh(T value, char letter = '{', "
                      "const char* text = \"}\") {", "constexpr float kLimit = 1'000.0f;", "const std::vector<int> kTable{1, 2, 3};",
                      "  virtual int area(int unused) const = 0;", "  std::size_t columns_ = 0;\n};", "/// Grows; see \"f(x) { }\".",
                      "  Cache() = default;", "}  // namespace detail"):
            self.assertIn(words, self.text)

    def test_a_function_that_the_step_before_has_is_as_it_was(self):
        self.assertIn("return options.count + by;  // } a bracket in a comment\n}", self.text)
        self.assertNotIn("2 * by;\n}\n\ninline double", self.text)
        self.assertIn("inline int same(const Options& options) {\n  return options.count;\n}", self.text)
        self.assertIn("int use() const { return rows_ * 2; }", self.text)

    def test_a_new_function_throws(self):
        for start, name in (("inline void helper(int& x) {", "helper"), ("\"}\") {", "fresh"),
                            ("int area(int unused) const override {", "Cache::area")):
            body = self.body(start)
            self.assertEqual([line.strip() for line in body.strip().splitlines() if "documents what it has" not in line],
                             [YOUR_TURN.format(name), "}"], start)
        self.assertIn("bool operator==(const Cache& other) const {\n    " + YOUR_TURN.format("Cache::operator==") + "\n  }\n",
                      self.text)
        self.assertNotIn("x += 3", self.text)

    def test_a_function_that_is_called_otherwise_throws_and_shows_what_it_was(self):
        self.assertIn(f"""inline int widen(int by, Kind kind) {{
  {YOUR_TURN.format("widen")}
  // In 04-before it was:
  // inline int widen(int by) {{
  //   if (by > 1) {{
  //     return 2 * by;
  //   }}
  //   return by;
  // }}
}}
""", self.text)

    def test_a_former_body_on_one_line_stands_below_its_head(self):
        old = Header("struct Row {\n  void cut(int length) { length_ = length; }\n  int length_;\n};\n")
        new = Header("struct Row {\n  void cut(int row, int length) { of_[row] = length; }\n  int of_[2];\n};\n")
        self.assertIn("    // void cut(int length) {\n    //   length_ = length;\n    // }\n", outline(new, [old], set(), "04-before"))

    def test_a_function_that_became_a_member_shows_what_it_was(self):
        old = Header("inline int answer(Model& model) {\n  if (model) {\n    return 1;\n  }\n  return 2;\n}\n")
        new = Header("class Talk {\n  int answer() {\n    ++asked_;\n    return 3;\n  }\n};\n")
        self.assertIn("""    // In 04-before it was:
    // inline int answer(Model& model) {
    //   if (model) {
    //     return 1;
    //   }
    //   return 2;
    // }
  }
""", outline(new, [old], set(), "04-before"))

    def test_a_function_that_the_step_still_has_elsewhere_has_become_no_other(self):
        old = Header("inline void add(Sink& sink, Old& options) {\n  sink.add(options);\n}\n")
        new = Header("inline void add(Sink& sink, New& options) {\n  sink.add(options, 1);\n}\n")
        self.assertIn("it was:", outline(new, [old], set(), "04-before"))
        self.assertEqual(outline(new, [old], set(), "04-before", [new, old]).count("it was:"), 0)

    def test_an_old_body_that_no_longer_compiles_throws(self):
        self.assertIn(f"inline double lost(const Options& options) {{\n  {YOUR_TURN.format('lost')}\n  // In 04-before it was:\n"
                      "  //   return options.gone;\n}\n", self.text)

    def test_members_are_initialised_and_getters_stay(self):
        self.assertIn("  Cache(int rows, int columns) : rows_(rows), table_{rows, columns}, columns_(table_.size()) {\n    "
                      + YOUR_TURN.format("Cache::Cache"), self.text)
        self.assertNotIn("push_back", self.text)
        self.assertIn("int rows() const { return rows_; }", self.text)
        self.assertIn("int cell(int index) const { return table_[index]; }", self.text)
        self.assertIn("constexpr int twice(int x) {\n  return 2 * x;\n}", self.text)  # constants may need it

    def test_what_it_throws_is_included_once_and_in_its_place(self):
        self.assertIn('#include "common/base/error.h"\n#include "common/base/message.h"\n', self.text)
        self.assertEqual(self.text.count("error.h"), 1)

    def test_the_first_step_has_nothing_before_it(self):
        text = outline(Header(BEFORE), [], set())
        self.assertEqual(text.count("your turn: "), 5)
        self.assertIn("int rows() const { return rows_; }", text)
        self.assertIn("explicit Cache(int rows) : rows_(rows) {}", text)

    def test_what_has_nothing_to_write_is_the_same_text(self):
        text = HEAD + "struct Plain {\n  int x = 0;\n  int get() const { return x; }\n};\n" + TAIL
        self.assertEqual(outline(Header(text), [], set()), text)
        self.assertEqual(outline(Header(BEFORE), [Header(BEFORE)], set()), BEFORE)

    def test_sentences_that_the_checks_demand_are_given(self):
        old = "void check(int x) {\n  use(x);\n}\n"
        new = ('void check(int x) {\n  if (x) fail("--beams is {}, but it "\n               "must be 1 or more", x);\n  fail("not asked for");\n}\n'
               'void fresh() {\n  say("the texts diverge at {}");\n  say("code");\n}\n')
        checks = 'CHECK(err == "error: --beams is 0, but it must be 1 or more");\nCHECK(out.find("texts diverge at") > 0);\n"code"'
        text = outline(Header(new), [Header(old)], set(), "04", (), checks)
        self.assertIn('void check(int x) {\n  // The checks know these words:\n  //   "--beams is {}, but it must be 1 or more"\n  use(x);\n}', text)
        self.assertIn('  throw Error("your turn: fresh");\n  // The checks know these words:\n  //   "the texts diverge at {}"\n}', text)
        self.assertNotIn("not asked for", text)
        self.assertEqual(outline(Header(new), [Header(new)], set(), "04", (), checks), new)  # it has them
        for body in "{ return 1; }", "{}", "{\n}":  # no room for them
            self.assertEqual(with_sentences(body, ["the texts diverge at {}"]), body)

    def test_a_number_in_the_checks_is_what_a_text_has_a_placeholder_for(self):
        new = Header('void fresh() {\n  throw UsageError("prompt and text have {} tokens together, but the context has {}", x, y);\n'
                     '  throw Error("take step 03-context");\n  throw Error("{} is another matter", x);\n}\n')
        for said in ("have 601 tokens together", "but the context has 512"):
            text = outline(new, [], set(), checks=f'CHECK(says(refusal(1), "{said}"));')
            self.assertIn('"prompt and text have {} tokens together, but the context has {}"', text, said)
            self.assertNotIn("another matter", text)

    def test_statistics_that_the_checks_read_are_given(self):
        new = Header('void fresh() {\n  output.add_statistic("filled", 1.0);\n  output.add_statistic("unread", 2.0);\n}\n')
        text = outline(new, [], set(), checks='CHECK(stats["filled"] > 0.1);')
        self.assertIn('  // The checks know these words:\n  //   "filled"\n}', text)
        self.assertNotIn("unread", text)
        new = Header('void fresh() {\n  say("all is filled");\n  output.add_statistic("filled", 1.0);\n}\n')
        text = outline(new, [], set(), checks='CHECK(says(err, "all is filled"));\nCHECK(stats["filled"] > 0.1);')
        self.assertIn('  //   "all is filled"\n  //   "filled"\n}', text)

    def test_a_function_of_an_interface_says_where_it_is_described(self):
        self.assertIn("    throw Error(\"your turn: Cache::area\");\n    // Shape, or a class above it, documents what it has to do.\n",
                      self.text)

    def test_an_old_body_brings_what_its_file_included(self):
        old = BEFORE.replace("#include <vector>", "#include <cmath>\n#include <vector>")
        text = outline(Header(AFTER), [Header(old)], changed_names([Header(old)], [Header(AFTER)]), "04")
        self.assertIn("#include <cmath>\n#include <vector>\n", text)

    def test_a_function_that_moved_to_another_file_keeps_its_body(self):
        moved = HEAD + "inline int widen(int by) {\n  return 3 * by;\n}\n" + TAIL
        text = outline(Header(moved), [Header(HEAD + TAIL), Header(BEFORE)], set(), "04")
        self.assertIn("    return 2 * by;\n", text)
        self.assertNotIn("3 * by", text)


class Parts(unittest.TestCase):
    def test_each_declaration_is_known_by_its_class_and_its_name(self):
        header = Header(HEAD + """using Ids = std::vector<int>;
class Row : public Base {
 public:
  Row(int a) noexcept : a_{a}, b_(a) {}
  using Id = int;
  int size() const;
  std::vector<int> ids = {}, more;
  enum class Kind { kOne, kTwo = 2 };
 private:
  int a_, b_ = 0;
};
int first(Row row);
int second(Ids ids = Ids{1, 2}, int (*call)(int) = [](int x) { return x; });
inline auto third(Row row) -> decltype(row)::Id { return row.size(); }
extern "C" { int last(); }
""" + TAIL)
        self.assertEqual(set(header.declared), {
            ((), "Ids"), ((), "Row"), (("Row",), "Row"), (("Row",), "Id"), (("Row",), "size"), (("Row",), "ids"), (("Row",), "more"),
            (("Row",), "Kind"), (("Row", "Kind"), "kOne"), (("Row", "Kind"), "kTwo"), (("Row",), "a_"), (("Row",), "b_"),
            ((), "first"), ((), "second"), ((), "third"), ((), "last")})
        self.assertEqual(header.declared[("Row",), "b_"], {"int"})
        self.assertEqual([(function.title(), function.body_text()) for function in header.functions],
                         [("Row::Row", ": a_{a}, b_(a) {}"), ("third", "{ return row.size(); }")])

    def test_what_is_in_brackets_is_no_part_of_a_declaration(self):
        for code, left in (("void f(std::function<void(int)> g, int h(int))", "void f()"), ("a(b(c)) d[(1)] {e()} f", "a()  d f"),
                           ("std::map<int, std::vector<(2)>> m", "std::map m"), ("if (a < b) c", "if () c"), ("x < (y)", "x < ()"),
                           ("template <class T> T f(T (*g)(int))", "template T f()"), ("bool operator()(int a) const", "bool operator() const"),
                           ("bool operator<(const A& b)", "bool operator()"), ("A& operator[](int i)", "A& operator()")):
            self.assertEqual(" ".join(flat(code).split()), " ".join(left.split()), code)

    def test_the_word_inline_changes_nothing_and_names_keep_it(self):
        self.assertEqual(normal("inline  int\nf(bool is_inline, int inline_count,\n  int inlined)"), "int f(bool is_inline, int inline_count, int inlined)")
        self.assertEqual(normal("static inline int x"), normal("inline static  int x"))

    def test_a_constructor_may_initialise_members_and_bases_in_braces(self):
        for members in ("a_{1}", "Base<int>{1}, a_(2)", "a_(1), b_ {2}", "std::vector<int>{1, 2}"):
            header = Header(f"class A : Base<int> {{\n  A(int x) : {members} {{\n    go(x);\n  }}\n  int f() {{\n    return 1;\n  }}\n}};\n")
            self.assertEqual([function.name for function in header.functions], ["A", "f"], members)
            self.assertEqual("".join(header.functions[0].body_text().split()), f":{members}{{go(x);}}".replace(" ", ""))

    def test_a_type_with_an_alignment_is_no_function(self):
        for words in ("struct alignas(16) Part", "alignas(16) struct Part", "class alignas(float4) Part"):
            header = Header(f"{words} {{\n  float mean;\n}};\n\nint f(int x) {{\n  return x + 1;\n}}\n")
            self.assertEqual([function.name for function in header.functions], ["f"], words)

    def test_an_include_stands_among_those_of_its_kind(self):
        for includes, include, result in [
                ("#include <b>\n#include <d>\n", "<c>", "#include <b>\n#include <c>\n#include <d>\n"),
                ("#include <b>\n#include <d>\n", "<e>", "#include <b>\n#include <d>\n#include <e>\n"),
                ("#include <b>\n#include <d>\n", "<d>", "#include <b>\n#include <d>\n"),
                ('#include "b"\n', "<e>", '#include <e>\n\n#include "b"\n'),
                ("#include <b>\n", '"a"', '#include <b>\n\n#include "a"\n'),
                ('#include <b>\n\n#include "d"\n', '"c"', '#include <b>\n\n#include "c"\n#include "d"\n')]:
            for head in ("#pragma once\n\n", ""):
                self.assertEqual(add_include(head + includes + "\nint x;\n", include), head + result + "\nint x;\n")
        self.assertEqual(add_include("// A.\n#pragma once\n\nint x;\n", "<b>"), "// A.\n#pragma once\n\n#include <b>\n\nint x;\n")
        self.assertEqual(add_include("int x;\n", "<b>"), "#include <b>\n\nint x;\n")


class Compiles(Scratch):
    def test_an_outline_compiles(self):
        base = self.folder / "common/base"
        base.mkdir(parents=True)
        (base / "message.h").write_text("#pragma once\n#include <stdexcept>\n")
        (base / "error.h").write_text("#pragma once\n#include <stdexcept>\nnamespace staircase {\nstruct Error : std::runtime_error {\n"
                                      "  using std::runtime_error::runtime_error;\n};\n}\n")
        before, after = Header(BEFORE), Header(AFTER)
        for name, text in {"before": outline(before, [], set()),
                           "after": outline(after, [before], changed_names([before], [after]), "04-before")}.items():
            (self.folder / f"{name}.cpp").write_text(text)
            done = subprocess.run(["c++", "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wno-unused-parameter", "-Wno-pragma-once-outside-header",
                                   "-I", self.folder, "-c", "-o", self.folder / f"{name}.o", self.folder / f"{name}.cpp"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
