"""The command line of a page: its words are those that a shell finds, options are set in their places, and a link keeps
a run."""

import json
import random
import shutil
import subprocess
import unittest

from support import ROOT, Limited

SCRIPTS = "\n".join((ROOT / "playground" / name).read_text(encoding="utf-8") for name in ("shell.js", "link.js"))
STEP = "06-top-k"


def made(code, *values):
    """What a function body of JavaScript returns, or its sentence as [sentence]."""
    script = (
        SCRIPTS
        + """
      const values = JSON.parse(require("fs").readFileSync(0, "utf8"));
      const attempt = (...of) => {
        try {
          return body(...of);
        } catch (sentence) {
          if (typeof sentence === "string") return [sentence];
          throw sentence;
        }
      };
      const body = (value) => {"""
        + code
        + """};
      console.log(JSON.stringify(values.map(attempt)));"""
    )
    done = subprocess.run(
        ["node", "-e", script], input=json.dumps(values), capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@unittest.skipUnless(shutil.which("node"), "no Node.js is installed")
class CommandLines(Limited):
    LIMIT = 60

    def test_words_are_those_of_a_shell(self):
        lines = [
            '--prompt "A fox" --top-k 3',
            "--prompt 'a \"b\" c'",
            '--prompt "a \'b\' \\"c\\" \\\\d \\e"',
            "a\\ b c\\'d",
            "'' \"\" a''b\"c\"",
            '--prompt "one \\\ntwo" --x \\\n y',
            "--prompt 'one \\\ntwo'",
            "--prompt \"\\$5 and \\`x\\`\" '$5 `x`'",
            "a#b '#c' # no word | at all",
            "--prompt 'é ü 狐'",
            '--prompt="A  b"',
            "a\tb   c",
            "5$ 'x'$",
            "x ~ * !",
        ]
        draw = random.Random(3)
        lines += [
            "".join(
                draw.choice(["a", "B", " ", " ", "\\ ", "'x y'", '"u v"', '"\\""', "\\'", "'\"'", "--k", "=", "3"])
                for _ in range(12)
            )
            for _ in range(300)
        ]
        found = made("return shellWords(value).map(({ text }) => text);", *lines)
        script = "set -f\nHOME='~'\nargs() { printf '%s\\0' \"$#\" \"$@\"; }\n" + "\n".join(
            f"args {line}" for line in lines
        )
        shell = iter(
            subprocess.run(
                ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=30, check=True
            ).stdout.split("\0")
        )
        for line, words in zip(lines, found, strict=True):
            with self.subTest(line):
                self.assertEqual(words, [next(shell) for _ in range(int(next(shell)))])
        self.assertEqual(list(shell), [""])

    def test_what_a_page_cannot_do_is_named(self):
        cases = {
            "--prompt a | head": "has |, for a shell a pipe",
            "a > out.txt": "has >",
            "a; b": "has ;",
            "a & b": "has &",
            "a < in": "has <",
            '--prompt "it costs $5"': r"write \$5",
            "--prompt $name": r"write \$name",
            "--prompt ${a}": "${a}",
            "--prompt $(date)": "$(",
            "--prompt `date`": "has `",
            '--prompt "`date`"': "has `",
            "--prompt $'a'": "$'",
            "--prompt “A fox”": "has “",
            "–prompt A": "long dash in –prompt",
            "--prompt 'open": "a quotation mark ' is open",
            '--prompt "open\\"': 'a quotation mark " is open',
            "tools/run": "without the number of a step",
        }
        for (line, words), found in zip(cases.items(), made("return commandLines(value);", *cases), strict=True):
            with self.subTest(line):
                self.assertEqual(len(found), 1)
                self.assertIn(words, found[0])

    def test_a_line_may_have_what_a_terminal_shows_before_it(self):
        code = """return commandLines(value).map(({ step, words, text }) =>
          [step ?? null, words.map((word) => word.text), text]);"""
        cases = {
            "": [[None, [], ""]],
            "--top-k 3": [[None, ["--top-k", "3"], "--top-k 3"]],
            "$ tools/run 06 --top-k 3 2>&1": [["06", ["--top-k", "3"], "--top-k 3"]],
            "./tools/run top-k": [["top-k", [], ""]],
            "--x 1\ntools/run 6 \\\n  --prompt 'A b'\n--y": [
                [None, ["--x", "1"], "--x 1"],
                ["6", ["--prompt", "A b", "--y"], "--prompt 'A b'\n--y"],
            ],
            "--prompt 'a\ntools/run 07'": [[None, ["--prompt", "a\ntools/run 07"], "--prompt 'a\ntools/run 07'"]],
        }
        self.assertEqual(made(code, *cases), list(cases.values()))

    def test_a_step_is_meant_as_tools_run_means_it(self):
        names = {
            "06": True,
            "6": True,
            STEP: True,
            "top-k": True,
            "top": True,
            "7": False,
            "07": False,
            "06-other": False,
            "k": False,
            "x": False,
        }
        self.assertEqual(made(f"return meansStep(value, '{STEP}');", *names), list(names.values()))

    def test_an_option_is_set_in_its_place_and_nothing_else_changes(self):
        cases = {
            ("--p 'a b' --k 3 --q", "--k", "5"): "--p 'a b' --k 5 --q",
            ("--p a", "--k", "5"): "--p a --k 5",
            ("--k 1 --p a --k 2", "--k", "9"): " --p a --k 9".strip(),
            ("--p a --k=3 --q", "--k", "it's"): "--p a --k 'it'\\''s' --q",
            ("--p a --k 3 --q", "--k", None): "--p a --q",
            ("--k 3 --q", "--k", None): "--q",
            ("--f --p a", "--f", False): "--p a",
            ("--p a", "--f", True): "--p a --f",
            ("--p a --f", "--f", True): "--p a --f",
            ("", "--k", "2"): "--k 2",
            ("--p a\ntools/run 06 --q", "--k", "1"): "--p a --k 1\ntools/run 06 --q --k 1",
            ("--p a --k", "--k", "4"): "--p a --k 4",
        }
        self.assertEqual(made("return withOption(...value);", *cases), list(cases.values()))

    def test_a_link_gives_back_what_it_was_made_of(self):
        runs = [
            {"line": '--prompt "é & = + % # \u2028 狐" \\\n--x', "input": "a\nb\n", "inside": True, "head": "0,3"},
            {"line": "", "input": "", "inside": False, "head": ""},
        ]
        links = made(f"return linkTo('{STEP}', value);", *runs)
        for link in links:
            self.assertRegex(link, r"^#[\w.*+%&=-]+$")  # no program that passes it on sees its end too early
        self.assertEqual(made(f"return runOfLink(value, '{STEP}');", *links), runs)

    def test_a_link_that_cannot_be_used_says_why(self):
        (link,) = made(f"return linkTo('{STEP}', value);", {"line": "--prompt 'A fox'", "input": "x"})
        cases = {
            **{link[:end]: "is broken" for end in range(len("#run"), len(link)) if link[:end] != "#run=1"},
            link.replace("fox", "cat"): "is broken",
            link.replace("#run=1", "#run=2"): "of version 2, and this page reads version 1",
            link.replace("#run=1", "#run=x"): "is broken",
            "#run=1&line=" + "x" * 9000: "has 9,012 characters, and a link has at most 8,000",
        }
        for address, found in zip(cases, made(f"return runOfLink(value, '{STEP}');", *cases), strict=True):
            with self.subTest(address[:80]):
                self.assertEqual(len(found), 1)
                self.assertIn(cases[address], found[0])
        self.assertIn(
            "for step 06-top-k, but this page runs 07-top-p",
            made("return runOfLink(value, '07-top-p');", link)[0][0],
        )
        self.assertEqual(
            made(f"return runOfLink(value, '{STEP}');", "", "#the-diff", "#running", "#generate.h-7"), [None] * 4
        )


if __name__ == "__main__":
    unittest.main()
