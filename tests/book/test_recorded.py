"""Recorded outputs: every command has one, and the READMEs show what it has. (test_replay.py runs the programs.)"""

import os
import re
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import ROOT

from pages import markdown, recorded

PAGES = markdown.pages()


def lines_of(page):
    """Every line that the commands of a page print, as plain text."""
    return {line.rstrip() for command in recorded.commands(page) if not command.why_not
            for line in recorded.plain(command.recording() or "").splitlines()}


def flowing(text):
    return re.sub(r"\s+", " ", recorded.masked(text)).strip()


class Recordings(unittest.TestCase):
    def test_each_command_has_one(self):
        for page in PAGES:
            for command in recorded.commands(page):
                if not command.why_not:
                    self.assertIsNotNone(command.recording(), f"{command.place}: no output of this command is recorded in "
                                                              f"{command.path.name}; tools/book --record does that")

    def test_none_is_left_over(self):
        known = {command.path.name for page in PAGES for command in recorded.commands(page) if not command.why_not}
        self.assertEqual(known, {path.name for path in recorded.FOLDER.glob("*.txt")})

    def test_most_commands_have_one(self):
        commands = [command for page in PAGES for command in recorded.commands(page)]
        skipped = [command for command in commands if command.why_not not in (None, "its model is not in the box")]
        self.assertGreater(len(commands), 100)
        self.assertLess(len(skipped), len(commands) / 10, [f"{one.place}: {one.why_not}" for one in skipped])


class Texts(unittest.TestCase):
    def test_an_output_in_a_text_is_what_a_command_printed(self):
        for page in PAGES:
            printed = lines_of(page)
            texts = [flowing(recorded.plain(command.recording() or "")) for command in recorded.commands(page)
                     if not command.why_not]
            for block, lines in recorded.shown(page):
                if any(flowing("\n".join(lines)) in text for text in texts):
                    continue  # a text that the page breaks into shorter lines
                for line in lines:
                    if line.strip():
                        self.assertTrue(any(recorded.alike(recorded.masked(line.rstrip()), recorded.masked(one)) for one in printed),
                                        f"{page.name}, in the block of line {block.line}: no command of this page prints\n{line}")

    def test_a_block_that_begins_as_an_output_is_one(self):
        """In the other sections, which may also have drawings: a block that equals an output in most lines must
        equal it in all."""
        for page in PAGES:
            printed = lines_of(page)
            known = {id(block) for block, _ in recorded.shown(page)}
            for block in page.blocks:
                lines = [line.rstrip() for line in block.lines if len(line.strip()) > 3]
                if id(block) in known or recorded.is_commands(block) or len(lines) < 3:
                    continue
                missing = [line for line in lines if line not in printed]
                if len(missing) < len(lines) / 3:
                    self.assertEqual(missing, [], f"{block.place}: all other lines of this block are printed by a command")

    def test_it_looks_at_many(self):
        self.assertGreater(sum(len(recorded.shown(page)) for page in PAGES), 7)


class Comparing(unittest.TestCase):
    def same(self, old, new):
        return recorded.difference(old, new) is None

    def test_times_and_speeds_may_differ(self):
        self.assertTrue(self.same("4 prompt tokens, prefill 1.3 ms (TTFT); 20 new tokens, 0.44 ms per token (TPOT), 2296.0 tokens/s",
                                  "4 prompt tokens, prefill 99.0 ms (TTFT); 20 new tokens, 7 ms per token (TPOT), 1,000 tokens/s"))
        self.assertTrue(self.same('"prefill_ms":0.910298,"tokens_per_second":910.55', '"prefill_ms":7,"tokens_per_second":1e3'))

    def test_texts_and_counts_may_not(self):
        self.assertFalse(self.same("Once upon a time", "Once upon a dime"))
        self.assertFalse(self.same("20 new tokens, 0.44 ms", "21 new tokens, 0.44 ms"))
        self.assertFalse(self.same("weights 22.6 MiB", "weights 23.6 MiB"))
        self.assertFalse(self.same("one\ntwo", "one"))
        self.assertFalse(self.same("one", "one\ntwo"))
        self.assertFalse(self.same("\033[32mthere\033[0m", "\033[31mthere\033[0m"))

    def test_what_moves_by_the_clock_may_differ_only_there(self):
        moved, still = "cache 12.0 MiB (12.0 MiB allocated, 0.9 MiB copied)", "cache 12.0 MiB"
        for one, other in ((moved, still), (still, moved), ("3 preemptions", "0 preemptions")):
            self.assertIsNone(recorded.difference(one, other, True))
            self.assertIsNotNone(recorded.difference(one, other))
        self.assertIsNotNone(recorded.difference(moved, "cache 11.0 MiB", True))

    def test_every_figure_that_depends_on_a_machine_may_differ(self):
        always = ["{} ms", "{} µs", "{} s", "{} seconds", "{} tokens/s", "{} GB/s", '"prefill_ms":{}', '"ms_per_token":{}', '"tokens_per_second":{}',
                  '"decode_ms_p50":{}', '"decode_ms_p99":{}', '"total_ms":{}', "takes {} of the target's", "verifies {}", "speed-up {}", "formula {}",
                  "{} (p50)", "{} (p99)", "{} (max)", "{} rows a pass"]
        by_the_clock = ["activations {} MiB", "{} MiB copied", "{} % of their positions"]
        whole = ["at most {} of 20 blocks", "{} % of the time", "{} preemptions", "{} of 90 tokens of texts", "{} of 90 drafts accepted"]
        for form, one, other, moves in [*((form, "3.25", "41.5", False) for form in always), *((form, "3.25", "41.5", True) for form in by_the_clock),
                                        *((form, "3", "41", True) for form in whole)]:
            with self.subTest(form):
                texts = [f"before {form.format(value)} after" for value in (one, other)]
                self.assertIsNone(recorded.difference(*texts, True))
                self.assertEqual(recorded.difference(*texts) is None, not moves)
                self.assertIsNotNone(recorded.difference(f"{texts[0]} 7", f"{texts[1]} 8", True))
        for form in ("{} tokens", "{} MiB", "{} blocks", "{} of 20 blocks", "{} rows", "{} %", '"ids":{}'):
            self.assertIsNotNone(recorded.difference(form.format("3.25"), form.format("41.5"), True), form)

    def test_the_last_digit_may_differ_by_one(self):
        self.assertTrue(self.same("> \" man\"   10.5 % ████▎", "> \" man\"   10.6 % ████▍"))
        self.assertFalse(self.same("> \" man\"   10.5 % ████▎", "> \" man\"   10.8 % ████▍"))
        self.assertTrue(self.same("-1.4169", "-1.4170"))
        self.assertFalse(self.same("-1.4169", "-1.4172"))
        # Of many digits, what float32 has; on both sides of zero.
        for one, near, far in (("0.1234567", "0.1234710", "0.1234727"), ("-12345.67", "-12345.70", "-12345.75"), ("12345.67", "12345.64", "12345.59")):
            self.assertTrue(self.same(one, near), (one, near))
            self.assertFalse(self.same(one, far), (one, far))


class Running(unittest.TestCase):
    """A command in the folder that a recording has, with programs of a line."""

    def setUp(self):
        build = tempfile.TemporaryDirectory()
        self.addCleanup(build.cleanup)
        self.build = Path(build.name)
        (self.build / "steps").mkdir()
        self.program("01-greedy-decoding", "echo \"$@\"; [ -t 1 ] && echo terminal; cat; pwd; ls -1; exit 1")
        self.machine = recorded.Machine(self.build)
        self.addCleanup(self.machine.close)

    def program(self, name, text):
        path = self.build / "steps" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def command(self, text, setup="", typed=""):
        return SimpleNamespace(text=text, setup=setup, input=typed, place="x.md:3")

    def test_a_program_has_a_terminal_its_input_and_a_folder_of_its_own(self):
        output = self.machine.run(self.command("tools/run 01 --seed $k 'a b'", "k=7", "typed")).splitlines()
        self.assertEqual(output, ["--seed 7 a b", "terminal", "typed", str(self.machine.folder), "bench", "models", "tests", "tools"])
        for name in ("bench", "models", "tests"):
            self.assertEqual((self.machine.folder / name).resolve(), ROOT / name)
        self.assertEqual(self.machine.run(self.command("tools/run 01-greedy-decoding")).splitlines()[:2], ["", "terminal"])
        self.program("01-greedy-decoding", "echo again")
        self.assertEqual(self.machine.run(self.command("tools/run 01 --seed $k 'a b'", "k=7", "typed")).splitlines(), output)  # it ran once
        self.assertEqual(self.machine.run(self.command("tools/run 01 --seed $k 'a b'", "k=8", "typed")), "again\n")

    def test_what_a_program_finds_in_its_environment(self):
        self.program("01-greedy-decoding", "echo $LC_ALL $TERM $STAIRCASE_MODELS ${NO_COLOR-none}")
        with mock.patch.dict(os.environ, NO_COLOR="1", STAIRCASE_MODELS="/elsewhere"):
            self.assertEqual(self.machine.run(self.command("tools/run 01")), f"C.UTF-8 xterm {ROOT / 'models'} none\n")

    def test_what_cannot_be_recorded_is_a_sentence(self):
        for text, setup, sentence in (("tools/run 999 --x", "", "there is no step '999'"), ("tools/run 02 --x", "", "the program of 02-eos-handling is not built"),
                                      ("echo end; exit 3", "", "ended with status 3: end"), ("exit 3", "", "ended with status 3: it wrote nothing"),
                                      ("no-such-program", "", "status 127: bash: line 2: no-such-program"), ("echo $unset", "", "unbound variable"),
                                      ("no-such-program; true", "", "ended with status 0: bash: line 2")):
            with self.subTest(text), self.assertRaisesRegex(recorded.Problem, "^x.md:3: .*" + re.escape(sentence)):
                self.machine.run(self.command(text, setup))
        for status in (0, 1, 2):
            self.assertEqual(self.machine.run(self.command(f"echo shown; exit {status}")), "shown\n")
        with mock.patch.object(recorded, "PATIENCE", 0.1), self.assertRaisesRegex(recorded.Problem, "did not end within 0.1 seconds"):
            self.machine.run(self.command("sleep 60"))


class Blocks(unittest.TestCase):
    def page(self, text):
        page = markdown.Page.__new__(markdown.Page)
        page.path, page.name, page.text = ROOT / "x.md", "x.md", text
        page.blocks = list(page.find_blocks())
        return page

    def test_indented_and_fenced(self):
        page = self.page("# T\n\n## S\n\n    tools/run 01\n\n    more\n\ntext\n    no code\n\n```json\n{}\n```\n")
        self.assertEqual([(block.line, block.language, block.section, block.text) for block in page.blocks],
                         [(5, "", "S", "tools/run 01\n\nmore"), (13, "json", "S", "{}")])

    def test_a_block_ends_with_the_fence_that_began_it(self):
        fences = ("```", "````", "~~~", "~~~~", ":::", "::::")
        for fence in fences:
            inside = [other for other in fences if other != fence] + ["# no heading", "", "    indented"]
            for language in ("", "cpp", " {toctree}"):
                page = self.page("\n".join(["## S", "", fence + language, *inside, fence, "text", "    no code", "", "    code", ""]))
                self.assertEqual([(block.line, block.language, block.section, block.lines) for block in page.blocks],
                                 [(4, language.strip() or "text", "S", inside), (16, "", "S", ["code"])], fence + language)

    def test_empty_lines_belong_to_a_block_if_more_of_it_follows(self):
        for end in ("", "\n", "\n\n", "\n\n\ntext\n"):
            page = self.page("    one\n\n\n    two\n\n      three  \n" + end)
            self.assertEqual([(block.line, block.lines) for block in page.blocks], [(1, ["one", "", "", "two", "", "  three  "])], end)

    def test_a_block_that_never_ends(self):
        with self.assertRaisesRegex(recorded.Problem, "x.md:3: this block of code never ends"):
            self.page("# T\n\n```\nabc\n")

    def test_a_loop_is_one_command_and_knows_what_was_defined(self):
        page = self.page("# T\n\n    k=1\n    for i in 1 2; do\n      tools/run 01 --x $i\n    done\n    tools/run 02 \\\n      --y\n")
        commands = recorded.commands(page)
        self.assertEqual([(one.line, one.text, one.setup, one.number) for one in commands],
                         [(4, "for i in 1 2; do\n  tools/run 01 --x $i\ndone", "k=1", 1),
                          (7, "tools/run 02 \\\n  --y", "k=1", 2)])

    def test_a_remark_after_any_line_of_a_command_is_not_run(self):
        page = self.page("# T\n\n    for i in 1 2; do  # twice\n      tools/run 01 --x $i # the number\n    done   # all\n"
                         "    tools/run 02 --y '#1'\n")
        self.assertEqual([one.text for one in recorded.commands(page)],
                         ["for i in 1 2; do\n  tools/run 01 --x $i\ndone", "tools/run 02 --y '#1'"])

    def test_what_is_typed_in_stands_below(self):
        page = self.page("# T\n\n    tools/run 51 --requests -\n\nand type\n\n    {\"prompt\": \"x\"}\n")
        self.assertEqual(recorded.commands(page)[0].input, '{"prompt": "x"}')

    def test_what_cannot_be_recorded_says_why(self):
        page = self.page("# T\n\n    tools/run 03 --model gpt2\n    tools/run 31 --prompts FILE\n")
        self.assertEqual([one.why_not for one in recorded.commands(page)], ["its model is not in the box", "it names a file or a step of your own"])
        not_in_the_box = "its model is not in the box"
        for text, why in (("03 --prompt A", None), ("03 --help", "the program itself lists its options"), ("66 --port 0", "it is a server, which ends on a signal"),
                          ("122 --port 0", "it is a server, which ends on a signal"), ("03 --model smollm2-135m", not_in_the_box),
                          ("17 --draft-model pythia-160m", not_in_the_box), ("03 --model build-bench/x", not_in_the_box), ("03 --model DIR", "it names a file or a step of your own")):
            command, = recorded.commands(self.page(f"# T\n\n    tools/run {text}\n"))
            self.assertEqual(command.why_not, why, text)
        command, = recorded.commands(self.page("# T\n\n    time tools/run 03 --prompt A\n"))
        self.assertEqual(command.why_not, "it is about time alone")

    def test_the_servers_are_those_whose_programs_include_one(self):
        for folder in sorted((ROOT / "steps").glob("[0-9][0-9]*-*")):
            command, = recorded.commands(self.page(f"# T\n\n    tools/run {folder.name.split('-')[0]} --port 0\n"))
            serves = '#include "common/server/' in (folder / "main.cpp").read_text(encoding="utf-8")
            self.assertEqual(command.why_not, "it is a server, which ends on a signal" if serves else None, folder.name)

    def test_progress_leaves_no_trace(self):
        self.assertEqual(recorded.on_a_terminal("one\r\n\r\033[K 1/2\r\033[K 2/2\r\033[Ktwo  \r\n\r\n"), "one\ntwo\n")


if __name__ == "__main__":
    unittest.main()
