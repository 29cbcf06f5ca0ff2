"""ANSWERS.md of each step: every exercise has one answer, and what an answer names exists."""

import functools
import re
import unittest

from support import ROOT, STEPS, hunks, series

WORDS = 250  # the most of an answer, commands and code aside
CALL = r"[A-Za-z_]\w*\.\w+(?=\()"  # of a member
SOURCES = [path for folder in ("common", "kernels", "steps", "tests", "tools", "bench", "docs", "models", "playground")
           for path in (ROOT / folder).rglob("*") if path.is_file()]


def text(step):
    return (step.folder / series.ANSWERS).read_text(encoding="utf-8")


def blocks(answer):
    """[(language, lines)] of the code in an answer; indented blocks have the language ''."""
    found = [(language, [line[3:] for line in code.splitlines()])
             for language, code in re.findall(r"^   ```(\w*)\n(.*?)^   ```$", answer, re.MULTILINE | re.DOTALL)]
    return found + [("", [line[7:]]) for line in re.findall(r"^ {7}.*", re.sub(r"^   ```.*?^   ```$", "", answer, flags=re.M | re.S), re.M)]


def quoted(answer):
    """What an answer quotes in its sentences."""
    sentences = re.sub(r"^   ```.*?^   ```$|^ {7}.*", "", answer, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", sentences)]


@functools.lru_cache(maxsize=None)
def known_names():
    """The identifiers and options of all code. An answer may also name what its own code or its exercise names."""
    found = set()
    for path in SOURCES:
        if path.suffix in (".h", ".cpp", ".cu", ".py", ".build") or path.parent.name == "tools":
            code = path.read_text(encoding="utf-8", errors="replace")
            found.update(re.findall(r"--[a-z][a-z0-9-]+|[A-Za-z_]\w*", code), re.findall(CALL, code))
    return found


@functools.lru_cache(maxsize=None)
def exists(step, name):
    """Whether a file is in the step, in the library that it sees, or in the project; a bare name may be anywhere."""
    return bool(step.resolve(name) or (ROOT / name).exists() or
                "/" not in name and any(path.name == name for path in SOURCES))


class Answers(unittest.TestCase):
    def test_each_exercise_has_exactly_one_answer(self):
        for step in STEPS:
            with self.subTest(step.name):
                self.assertEqual(text(step).splitlines()[:2], ["# Answers", ""])
                numbers = re.findall(r"^(\d+)\. ", text(step), re.MULTILINE)
                self.assertEqual(numbers, [str(number) for number in step.exercises()])
                self.assertEqual(numbers, [str(number) for number in range(1, len(numbers) + 1)])
                self.assertNotRegex(text(step), r"(?m)^(?!\d+\. |   |# Answers$).+$", "a line of an answer is indented by 3")

    def test_the_readme_shows_how_to_see_an_answer(self):
        for step in STEPS:
            with self.subTest(step.name):
                line = f"    tools/step answer {step.number} 1     # exercise 1 with its answer; without 1, all of them"
                lines = step.section("Exercises").splitlines()
                self.assertEqual([found for found in lines if "step answer" in found], [line.strip()])

    def test_an_answer_is_short(self):
        for step in STEPS:
            for number, answer in step.answers().items():
                with self.subTest(step.name, exercise=number):
                    prose = re.sub(r"^   ```.*?^   ```$|^ {7}.*", "", answer, flags=re.MULTILINE | re.DOTALL)
                    self.assertLessEqual(len(prose.split()), WORDS)
                    self.assertEqual([line for line in prose.splitlines() if len(line) > 120], [])

    def test_what_an_answer_names_exists(self):
        for step in STEPS:
            shown = " ".join(line for answer in step.answers().values() for _, lines in blocks(answer) for line in lines)
            known = known_names() | set(re.findall(r"[A-Za-z_]\w*", shown + step.section("Exercises")))
            for number, answer in step.answers().items():
                named = quoted(answer)
                commands = [line for _, lines in blocks(answer) for line in lines if line.startswith(("tools/", "$ tools/"))]
                for word in named:
                    with self.subTest(step.name, exercise=number, named=word):
                        if re.fullmatch(r"[\w./-]+\.(h|cpp|cu|py|md|json|jinja|txt|build)", word) or word.startswith(("tests/", "common/")):
                            self.assertTrue(exists(step, word), "there is no such file")
                        elif re.fullmatch(r"[A-Za-z_]\w{2,}(\(\))?", word):
                            self.assertTrue(word.removesuffix("()") in known, "no code has this name")
                        elif word.startswith("tools/"):
                            commands.append(word)
                        for call in re.findall(CALL, word):
                            self.assertTrue(call in known, f"no code has the call {call}")
                        for option in re.findall(r"(?<!\S)--[a-z][a-z0-9-]+", word):
                            self.assertTrue(option in known, f"no program has the option {option}")
                for line in commands:
                    with self.subTest(step.name, exercise=number, command=line):
                        self.assertTrue((ROOT / line.removeprefix("$ ").split()[0]).is_file())
                        for option in re.findall(r"(?<!\S)--[a-z][a-z0-9-]+", line):
                            self.assertTrue(option in known, f"no program has the option {option}")
                        for run in re.findall(r"tools/(?:run|test|step \w+) (\d\d+)\b", line):
                            self.assertIn(run, [one.number for one in STEPS])

    def test_the_old_lines_of_a_change_are_lines_of_its_file(self):
        for step in STEPS:
            for number, answer in step.answers().items():
                for language, lines in blocks(answer):
                    if language == "diff":
                        with self.subTest(step.name, exercise=number):
                            self.assertRegex(lines[0], r"^--- \S+$", "a change begins with its file")
                            file = step.resolve(lines[0][4:])
                            self.assertIsNotNone(file, lines[0])
                            old = [line[1:] for line in lines[1:] if not line.startswith("+")]
                            self.assertEqual([line for line in lines[1:] if line[:1] not in ("+", "-", " ", "")], [])
                            if any(map(str.strip, old)):
                                hunks.Hunk(file.name, "", old).numbers(file.read_text(encoding="utf-8"))


class Hunks(unittest.TestCase):
    """The numbers of a README's lines in the step's file."""

    SOURCE = "int f() {\n  one();\n  two();\n  three();\n}\n\nint g() {\n  one();\n  three();\n}\n"

    def numbers(self, *shown):
        return hunks.Hunk("a.h", "", list(shown)).numbers(self.SOURCE)

    def test_lines_follow_each_other_and_may_be_indented_less(self):
        self.assertEqual(self.numbers("int f() {", "  one();"), [1, 2])
        self.assertEqual(self.numbers("one();", "three();"), [8, 9])  # in f, another line is between them
        self.assertEqual(self.numbers("}", "", "int g() {"), [5, 6, 7])
        self.assertEqual(hunks.Hunk("a.h", "", ["a", "", "b"]).numbers("{\n  a\n\n  b\n}\n"), [2, 3, 4])

    def test_a_mark_leaves_one_line_or_more_out(self):
        self.assertEqual(self.numbers("one();", "// …", "three();"), [2, None, 4])
        self.assertEqual(self.numbers("int f() {", "  // …", "}"), [1, None, 5])

    def test_the_line_that_does_not_follow_is_named(self):
        for shown, wrong in ((["one();", "four();"], "four();"), (["four();"], "four();"), (["one();", "two();", "}"], "}"),
                             (["two();", "// …", "four();"], "four();"), (["int f() {", "// …", "}", "x"], "x")):
            with self.assertRaises(ValueError) as error:
                self.numbers(*shown)
            self.assertEqual(str(error.exception), wrong)

    def test_hunks_are_taken_from_a_readme_and_out_of_it(self):
        readme = "# A\n\n<!-- from a.h -->\nOne\nsentence:\n\n```cpp\nint f();\n\nint g();\n```\n\nMore.\n"
        self.assertEqual(hunks.hunks(readme), [hunks.Hunk("a.h", "One sentence:", ["int f();", "", "int g();"])])
        self.assertEqual(hunks.without(readme), "# A\n\nMore.\n")


if __name__ == "__main__":
    unittest.main()
