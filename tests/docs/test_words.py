"""The words of the pages, the headlines, the help texts and the code's comments: short sentences in plain English. Also
that everything made from the steps is current."""

import io
import json
import os
import re
import subprocess
import sys
import tokenize
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "docs/book"), str(ROOT / "docs/pictures")]

import draft_run  # noqa: E402
from pages import derived  # noqa: E402
from step_commands import series  # noqa: E402

STEPS = series.steps()
README = (ROOT / "README.md").read_text(encoding="utf-8")
README_WORDS, SENTENCE_WORDS, COLUMNS = 900, 32, 120
BANNED = re.compile(r"\b(behind|whoever|nobody|somebody|so many|it were|stands? (on|in)|side rooms?|(?<!in )flight|flights|what comes of|comes about"
                    r"|is told|or else|beforehand|hands out|asks for|says|tells)\b|\bat most(?=[.;!?]|$)", re.IGNORECASE | re.MULTILINE)


IN_CODE = re.compile(r"\b(whoever|nobody|somebody|so many|(?<!as if )it were|stands? (on|in(?! for))|side rooms?|what comes of"
                     r"|comes about|is told|or else|beforehand|hands out|asks for|one (behind|after) the other"
                     r"|behind(?! (a proxy|nginx|HAProxy|the numbers)))\b", re.IGNORECASE)
UNREAD = ("tests/docs/test_words.py",)
CODE = (".h", ".cpp", ".cu", ".cuh", ".js")
CPP = re.compile(r'(?P<comment>//[^\n]*(?:\n[ \t]*//[^\n]*)*)|R"(?P<end>[^()\s\\]*)\(.*?\)(?P=end)"'
                 r'|(?P<string>"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*)|(?<!\w)\'(?:\\.|[^\\\'\n])+\'', re.DOTALL)


def prose(text):
    """What is read as sentences: no code, no comments, no addresses of links."""
    text = re.sub(r"<!--.*?-->|^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)


def words(text):
    return [word for word in text.split() if re.search(r"[^\W_]", word)]


def sentences(text):
    """Of paragraphs, items, headings and cells of tables."""
    for block in re.split(r"\n\s*\n|\n(?=[-|#>])|\|", prose(text)):
        yield from (part for part in re.split(r"(?<=[.!?])[\"*]*\s+(?=[\"*`(]*[A-Z])", " ".join(block.split())) if part.strip())


def help_of_options():
    """{help text: a place of it} of all declarations of options in steps/ and common/."""
    found = {}
    for path in [*ROOT.glob("steps/*/*.h"), *ROOT.glob("steps/*/*.cpp"), *ROOT.glob("common/**/*.h"), *ROOT.glob("common/**/*.cpp")]:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r'\badd\w*\(\s*"-[\w,-]+(?:\{\w+\})?",\s*&?[\w.\[\]>()-]+,\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text):
            found.setdefault("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1])), f"{path.relative_to(ROOT)}")
        for match in re.finditer(r'Program program\("([^"]+)"', text):
            found.setdefault(match[1], f"{path.relative_to(ROOT)}")
    return found


def comments(name, text):
    """The comments and docstrings of a file, line by line, without the marks of a comment."""
    if name.endswith(CODE):
        found = [(match.start(), match["comment"]) for match in CPP.finditer(text) if match["comment"]]
    else:
        found = [(match.start(), match[0]) for match in re.finditer(r"(?:^[ \t]*#(?!!)[^\n]*\n)+", text, re.MULTILINE)]
    for start, comment in found:
        lines = [re.sub(r"^[ \t]*(//[/!]?<?|#) ?", "", line) for line in comment.splitlines()]
        if text[text.rfind("\n", 0, start) + 1:start].strip():  # of the code on its left
            yield lines[:1]
            lines = lines[1:]
        yield lines
    if name.endswith(".py") or re.match(r"#!.*python", text):
        for match in re.finditer(r'^([ \t]*)"""(.*?)"""', text, re.MULTILINE | re.DOTALL):
            yield [line.removeprefix(match[1]) for line in match[2].splitlines()]


def sentences_of_comment(lines):
    """Indented lines are an example or a table."""
    for block in re.split(r"\n\s*\n|\n(?=- )", "\n".join("" if line.startswith("  ") else line for line in lines)):
        yield from re.split(r"(?<=[\w)\]}`\"'%!])(?<!\bal)[.!?][\"')]*\s+", " ".join(block.split()))


def said_in_code(name, text):
    """The comments of a file, neighbouring lines joined, and its strings."""
    if name.endswith(CODE):
        for match in CPP.finditer(text):
            if match["comment"]:
                yield " ".join(re.sub(r"^[ \t]*//[/!]?<?", "", match["comment"], flags=re.MULTILINE).split())
            elif match["string"]:
                yield "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', match["string"]))
    elif name.endswith(".py") or re.match(r"#!.*python", text):
        comment = ""
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comment += token.string[1:]
            elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT):
                yield comment
                comment = ""
                if token.type == tokenize.STRING:
                    yield " ".join(token.string.split())
        yield comment
    else:
        yield from (" ".join(re.sub(r"^[ \t]*#", "", block[0], flags=re.MULTILINE).split())
                    for block in re.finditer(r"(?:^[ \t]*#[^\n]*\n)+", text, re.MULTILINE))


def code():
    """(name, text) of every file of code that git tracks, but for those that are yet to be read."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        tool = name.startswith("tools/") and "." not in Path(name).name
        if (tool or name.endswith((*CODE, ".py", ".sh", "meson.build"))) and not name.startswith(UNREAD):
            yield name, (ROOT / name).read_text(encoding="utf-8")


class Words(unittest.TestCase):
    def plain(self, text, place):
        found = BANNED.search(text)
        self.assertIsNone(found, found and f"{place}: '{found[0]}' in: {text}")

    def test_the_readme_is_short(self):
        self.assertLessEqual(len(words(prose(README))), README_WORDS)
        for sentence in sentences(README):
            self.assertLessEqual(len(words(sentence)), SENTENCE_WORDS, sentence)

    def test_the_readme_has_none_of_the_banned_words(self):
        quoted = re.sub(r"^>.*$", "", README, flags=re.MULTILINE)  # a tale may say what it likes
        for line in re.sub(r"<!--.*?-->", "", quoted, flags=re.DOTALL).splitlines():
            self.plain(line, "README.md")

    def test_the_pages_and_the_steps_have_short_sentences_without_banned_words(self):
        for page in sorted([*ROOT.glob("steps/*/*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/benchmarks/*.md")]):
            text = re.sub(r"<details>.*?</details>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            if page.name == "ANSWERS.md":  # the items of a list, and the blocks in them
                text = re.sub(r"^(\d+\. |   )", "", text, flags=re.MULTILINE)
            text = re.sub(r"`[^`]*`", "`Code`", text)  # is quoted, not said
            with self.subTest(str(page.relative_to(ROOT))):
                for sentence in sentences(text):
                    self.assertLessEqual(len(words(sentence)), SENTENCE_WORDS, sentence)
                    self.plain(sentence, page.name)

    def test_headlines_are_one_line_that_a_search_finds(self):
        seen = set()
        for step in STEPS:
            with self.subTest(step.name):
                headline = step.summary()
                self.assertNotIn(headline, seen)
                seen.add(headline)
                self.assertTrue(headline.isascii(), "every terminal can show it")
                self.plain(headline, step.name)
                for sentence in sentences(headline):
                    self.assertLessEqual(len(words(sentence)), SENTENCE_WORDS)

    def test_each_branch_has_a_name_one_sentence_and_a_story(self):
        begun = [slug for *_, beginners in series.BRANCHES for slug in beginners]
        self.assertEqual(sorted(begun), sorted(set(begun)))
        self.assertEqual(set(begun) - {step.slug for step in STEPS}, set(), "no step has this name")
        for name, told, story, _ in series.BRANCHES:
            with self.subTest(name):
                self.plain(told, name)
                self.assertLessEqual(len(words(told)), SENTENCE_WORDS)
                self.plain(story, name)
                self.assertIn(len(list(sentences(story))), (1, 2), "one case")
                for sentence in sentences(story):
                    self.assertLessEqual(len(words(sentence)), SENTENCE_WORDS, sentence)

    def test_help_texts_of_options(self):
        found = help_of_options()
        self.assertGreater(len(found), 50)
        for text, place in found.items():
            with self.subTest(text):
                self.plain(text, place)

    def test_help_of_tools(self):
        for tool in sorted(path for path in (ROOT / "tools").iterdir() if path.is_file() and not path.suffix):
            text = tool.read_text(encoding="utf-8")
            top = re.match(r'#![^\n]*\n(?:((?:#[^\n]*\n)+)|"""(.*?)""")', text, re.DOTALL)
            with self.subTest(tool.name):
                self.assertIsNotNone(top)
                for line in (top[1] or top[2]).splitlines():
                    self.plain(line, tool.name)
        for command in ("list", "diff", "practice", "next", "check", "watch", "answer", "history", "climb"):
            done = subprocess.run([ROOT / "tools/step", command, "--help"], capture_output=True, text=True, timeout=60)
            with self.subTest(command):
                self.plain(" ".join(done.stdout.split()), command)

    def test_comments_and_strings_of_the_code(self):
        seen = 0
        for name, text in code():
            for said in said_in_code(name, text):
                seen += 1
                found = IN_CODE.search(said)
                with self.subTest(name):
                    self.assertIsNone(found, found and f"{name}: '{found[0]}' in: {said}")
        self.assertGreater(seen, 10000)

    def test_comments_have_short_sentences(self):
        seen = 0
        for name, text in code():
            for lines in comments(name, text):
                for sentence in sentences_of_comment(lines):
                    seen += 1
                    with self.subTest(name):
                        self.assertLessEqual(len(words(sentence)), SENTENCE_WORDS, f"{name}: {sentence}")
        self.assertGreater(seen, 10000)

    def test_lines_of_comments_fit_a_screen(self):
        for name, text in code():
            docstrings = re.findall(r'(?:\A(?:#!.*\n)?|:\n)([ \t]*"""(?:.|\n)*?""")', text)
            for line in [*re.findall(r"^[ \t]*(?://|#).*", text, re.MULTILINE), *"\n".join(docstrings).splitlines()]:
                with self.subTest(name):
                    self.assertLessEqual(len(line), COLUMNS, line)

    def test_each_line_of_a_block_has_one_command(self):
        seen = 0
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("steps/*/README.md")]:
            for line in re.findall(r"^    (?:tools/|\.ci/).*", page.read_text(encoding="utf-8"), re.MULTILINE):
                with self.subTest(page.name):
                    self.assertLessEqual(len(re.findall(r"\s#\s", line)), 1, line)
                seen += 1
        self.assertGreater(seen, 300)

    def test_sentences_of_comments(self):
        for name, text, expected in (
                ("a.h", "int a;  ///< one. 2 two\n/// Three et al. 2020.\n///\n///   x  a table\n///\n/// Four\n/// five.\n",
                 ["one", "2 two", "Three et al. 2020.", "Four five."]),
                ("a.py", '#!/bin/python\n# A `b`. c\nd = """x y"""\ndef e():\n    """F\n    g.\n\n        h\n    """\n',
                 ["A `b`", "c", "F g."])):
            found = [sentence for lines in comments(name, text) for sentence in sentences_of_comment(lines) if sentence]
            self.assertEqual(found, expected)

    def test_a_banned_word_in_code_is_found(self):
        for name, text in (("a.cpp", "int a;  // so\n        // many\n"), ("a.h", 'f("one behind "\n  "the other");\n'),
                           ("a.py", "x = 1  # nobody\n"), ("a.py", '\'\'\'It\nis told.\'\'\'\n'), ("tools/a", "#!/bin/bash\n# asks\n# for\n")):
            self.assertTrue(any(IN_CODE.search(said) for said in said_in_code(name, text)), text)
        for name, text in (("a.cpp", "int behind;\n"), ("a.h", "// two servers behind nginx\n"), ("a.py", "nobody = 1\n"),
                           ("a.cpp", "// as if it were a list, which stands in for one\n")):
            self.assertFalse(any(IN_CODE.search(said) for said in said_in_code(name, text)), text)

    def test_a_banned_word_is_found(self):
        for text in ("go on behind the end", "how many, at most", "It is told.", "nobody waits", "Side rooms measure", "one flight", "it says so"):
            self.assertTrue(BANNED.search(text), text)
        for text in ("at most 120 lines", "asks", "a standing order", "tell me", "two requests in flight"):
            self.assertFalse(BANNED.search(text), text)

    def test_a_sentence_ends_where_the_next_begins(self):
        self.assertEqual(list(sentences("# A\n\nOne. Two [x](y.md)? \"Three!\"\n\n- four\n- `five`. Six\n\n"
                                        "    code. Code\n\n```cpp\nint a; // B. C\n```\n")),
                         ["# A", "One.", "Two x?", '"Three!"', "- four", "- `five`.", "Six"])


class Derived(unittest.TestCase):
    def test_what_is_made_from_the_steps_is_current(self):
        for path, text in derived.files().items():
            with self.subTest(path.name):
                self.assertEqual(path.read_text(encoding="utf-8"), text, "old; docs/book/build.py derive writes it")

    def test_each_step_is_in_the_page_of_steps_with_its_headline(self):
        page = (ROOT / "docs/steps.md").read_text(encoding="utf-8")
        for step in STEPS:
            self.assertEqual(page.count(f"| [{step.name}](../steps/{step.name}) |"), 1)
            self.assertIn(f"| {step.summary()} |", page)

    def test_each_branch_begins_in_the_page_of_steps_with_its_story(self):
        page = (ROOT / "docs/steps.md").read_text(encoding="utf-8")
        for name, told, story, _ in series.branches(STEPS):
            self.assertTrue(" ".join(page.split(f"\n## {name}\n")[1].split()).startswith(f"{story} {told} | step |"), name)

    def test_each_branch_is_in_the_readme(self):
        for name, told, *_ in series.branches(STEPS):
            self.assertIn(f"| [{name}](docs/steps.md#", README)
            self.assertIn(f"| {told} |", README)

    def test_an_address_to_clone_from_shows_no_password_and_works_elsewhere(self):
        for remote, address in {"https://example.org/a/b.git": "https://example.org/a/b.git",
                                "https://me:secret@example.org/a/b": "https://example.org/a/b",
                                "git@example.org:a/b.git": "https://example.org/a/b.git",
                                "ssh://git@example.org/a/b": "https://example.org/a/b",
                                "/home/me/b": "", "../b": "", "file:///srv/b": "", "http://localhost/b": ""}.items():
            self.assertEqual(derived.public(remote), address, remote)

    def test_the_readme_shows_how_to_get_the_source(self):
        part = re.search(r"<!-- clone -->\n\n(.*)\n\n<!-- end of clone -->", README, re.DOTALL)[1]
        self.assertRegex(part, rf"^({re.escape(derived.UNKNOWN)}|    git clone https://\S+ staircase\n    cd staircase)$")

    def test_the_first_picture_is_of_a_run_of_today(self):
        if not any(path.is_file() for path in (BUILD / "steps").glob(f"*-{draft_run.STEP}")):
            self.skipTest("step 17 is not built")
        self.assertEqual(json.loads(draft_run.FILE.read_text(encoding="utf-8")), draft_run.run(BUILD),
                         "python3 docs/pictures/draft_run.py build records it again")


if __name__ == "__main__":
    unittest.main()
