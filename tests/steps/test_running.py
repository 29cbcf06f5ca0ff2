"""What a learner reads about a check and of the compiler's messages, without compiling anything. A script writes the
events of a test program; the messages are those that GCC, Clang, ld and the sanitizers wrote."""

import contextlib
import io
import json
import re
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from step_commands import check, compiling, running
from step_commands.series import Problem, ROOT

# Writes the events of the cases --first to --last, as tests/doctest_main.cpp does; a case is a function.
SCRIPT = """#!{python}
import json, os, sys, time
options = dict(one[2:].split("=") for one in sys.argv[1:] if "=" in one)
out = open(options["out"], "w")
def say(**event):
    print(json.dumps(event), file=out, flush=True)
def at(line, **more):
    return dict(file="/x/test.cpp", line=line, logged=[], **more)
names = {names}
if "--list-test-cases" in sys.argv:
    for name in names:
        say(known=name)
else:
    for number in range(int(options["first"]), int(options["last"]) + 1):
        print(number, file=open("ran", "a"))
        say(case=names[number - 1], line=10 * number)
{body}"""


class Checks(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "build").mkdir()
        (self.folder / "build/program").write_text("1", encoding="utf-8")

    def runner(self, names, body, limit=5.0):
        """A Runner of a test program with these cases; `body` runs case `number`."""
        test = self.folder / "build/test"
        test.write_text(SCRIPT.format(python=sys.executable, names=names, body=textwrap.indent(textwrap.dedent(body), " " * 8)),
                        encoding="utf-8")
        test.chmod(0o755)
        return running.Runner(SimpleNamespace(path=self.folder), limit)

    def ran(self):
        """The numbers of the cases that ran since the last call."""
        file = self.folder / "ran"
        numbers = [int(line) for line in file.read_text().split()] if file.exists() else []
        file.unlink(missing_ok=True)
        return numbers

    def test_red_cases_are_told_as_they_end_and_green_ones_do_not_run_again(self):
        runner = self.runner(["a", "b", "c"], """
            if number == 2 and not os.path.exists("mended"):
                say(failure="x == y", values="1 == 2", **at(22))
                say(end=True, green=False)
            else:
                say(end=True, green=True)""")
        told = []
        cases, skipped, names = runner.run(told=told.append)
        self.assertEqual([(case.name, case.line, case.green) for case in cases],
                         [("a", 10, True), ("b", 20, False), ("c", 30, True)])
        self.assertEqual(([case.name for case in told], skipped, names), (["b"], 0, ["a", "b", "c"]))
        self.assertEqual(list(running.describe(told[0])), ["RED  b", "     test.cpp:22  x == y", "       got: 1   want: 2"])
        self.assertEqual(self.ran(), [1, 2, 3])
        (self.folder / "mended").touch()
        cases, skipped, _ = runner.run()
        self.assertEqual(([case.name for case in cases], skipped, self.ran()), (["b"], 2, [2]))
        self.assertEqual((runner.run()[:2], self.ran()), (([], 3), []))
        # Part of a name is enough, in any case; what was green runs again then, and nothing is recorded.
        cases, skipped, _ = runner.run(only="C")
        self.assertEqual(([case.name for case in cases], skipped, self.ran()), (["c"], 0, [3]))
        for name in ("program", "test"):  # another program: nothing is known
            with open(self.folder / "build" / name, "a", encoding="utf-8") as file:
                file.write("\n")
            runner.run(only="a")
            self.assertEqual((len(runner.run()[0]), self.ran()), (3, [1, 1, 2, 3]))
        (self.folder / "build/green.json").write_text("[]", encoding="utf-8")
        self.assertEqual(len(runner.run()[0]), 3)

    def test_the_cases_after_a_crash_run(self):
        cases, _, _ = self.runner(["a", "b", "c", "d"], """
            if number == 2:
                say(exception="SIGSEGV - Segmentation violation signal", crash=True, checked=True, **{**at(7), "logged": ["i := 3"]})
                say(end=True, green=True)  # of a case that crashed, the end is no news
                sys.exit(1)
            if number == 3:
                sys.exit(1)
            say(end=True, green=True)""").run()
        self.assertEqual([(case.name, case.green) for case in cases], [("a", True), ("b", False), ("c", False), ("d", True)])
        self.assertEqual(list(running.describe(cases[1])),
                         ["RED  b", "     crashed: it used memory that is not its own, or called itself without end (SIGSEGV)",
                          "       test.cpp:7, after this check", "       where i := 3"])
        self.assertEqual(list(running.describe(cases[2])), ["RED  c", "     crashed: the program ended"])
        self.assertEqual(self.ran(), [1, 2, 3, 4])

    def test_an_exception_is_a_failure_at_the_check_before_it(self):
        case, = self.runner(["a"], """
            say(exception="no such token", crash=False, checked=False, **at(7))
            say(end=True, green=False)""").run()[0]
        self.assertEqual(list(running.describe(case)), ["RED  a", "     test.cpp:7  before the first check of this case",
                                                        "       threw: no such token"])

    def test_what_computes_without_end_is_ended_and_after_two_of_them_the_rest_waits(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            cases, _, _ = self.runner(["a", "b", "c", "d", "e"], """
                while number in (1, 3):
                    pass
                say(end=True, green=True)""", limit=0.5).run()
        self.assertEqual([(case.name, case.green) for case in cases], [("a", False), ("b", True), ("c", False)])
        self.assertEqual(cases[0].ended, "took longer than 0.5 seconds of computing, and was ended; an endless loop? "
                                         "--limit SECONDS gives it more")
        self.assertEqual(said.getvalue(), "(2 more did not run, since two took too long)\n")

    def test_only_computing_counts_against_the_limit_and_waiting_has_its_own(self):
        runner = running.Runner(SimpleNamespace(path=self.folder), 60)
        case = running.Case("a", 1)
        case.before = case.now = (5.0, 500)
        case.start -= 1000  # other programs may have had the processors
        case.moved -= 59
        self.assertEqual(runner.overdue(case, (64.9, 500 + 1)), "")
        self.assertIn("took longer than 60 seconds", runner.overdue(case, (65.0, 6500)))
        self.assertEqual(runner.overdue(case, (6.0, 6500)), "")
        case.now, case.moved = (6.0, 6500), case.moved - 59
        self.assertEqual(runner.overdue(case, (6.0, 6500)), "")
        case.moved -= 1.2
        self.assertEqual(runner.overdue(case, (6.0, 6500)),
                         "exceeded its time: it has waited for 60 seconds without computing, and was ended")
        runner.limit = 1.5
        case.moved += 60 - 9
        self.assertEqual(runner.overdue(case, (6.0, 6500)), "")  # a short limit still lets it wait for 10 seconds
        case.moved -= 1
        self.assertIn("waited for 10 seconds", runner.overdue(case, (6.0, 6500)))
        self.assertIn("took longer", runner.overdue(case, None))  # where the system reports nothing


class Overdue(unittest.TestCase):
    def test_a_case_has_its_own_computing_and_its_own_waiting(self):
        runner = running.Runner.__new__(running.Runner)
        runner.limit = 5.0
        now = time.monotonic()

        def overdue(computed, limit=5.0, waited=0.0, since=0.0):
            runner.limit = limit
            case = SimpleNamespace(start=now - since, before=(3.0, 1), now=computed if waited else (3.0, 1), moved=now - waited)
            with mock.patch.object(running.time, "monotonic", lambda: now):
                return runner.overdue(case, computed)

        self.assertEqual([overdue((seconds, 2)) for seconds in (3.0, 7.9)], ["", ""])
        self.assertIn("took longer than 5 seconds of computing", overdue((8.0, 2)))
        self.assertEqual(overdue((7.9, 2), waited=running.IDLE - 1), "")
        self.assertIn(f"it has waited for {running.IDLE:.0f} seconds without computing", overdue((7.9, 2), waited=running.IDLE))
        longer = running.IDLE + 10.0
        self.assertEqual(overdue((7.9, 2), longer, running.IDLE), "")
        self.assertIn("without computing", overdue((7.9, 2), longer, longer))
        # Where the system does not report what a program computes, the clock counts.
        self.assertEqual(overdue(None, since=4.9), "")
        self.assertIn("took longer than 5 seconds", overdue(None, since=5.0))


class Compiling(unittest.TestCase):
    """What is compiled, without a compiler."""

    def setUp(self):
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.build = self.path / "project"
        (self.path / "build").mkdir()
        self.logs, self.status, self.calls, self.rules = {}, 0, [], []

    def compile(self, **options):
        def ninja(command, **_):
            self.calls.append([str(word) for word in command])
            for name, text in self.logs.items():
                (self.path / "build" / name).write_text(text)
            return SimpleNamespace(returncode=self.status, stdout="x: no such header\n", stderr="")

        def commands(step, build, product):
            return ["sh", "-std=c++20", "-DSTAIRCASE_STEP_PROGRAM=\"/other\""], ["sh", f"{self.build}/lib{product}.a", f"{self.build}/libb.a", "-lm", "/usr/x.a"]

        folder = SimpleNamespace(path=self.path, step=SimpleNamespace(name="05-this"), rules=self.rules.append)
        with mock.patch.multiple(compiling, project_commands=commands, precompile=lambda *_: None,
                                 compile_project=lambda build, targets: self.calls.append((build, targets))), \
                mock.patch.object(compiling.subprocess, "run", ninja), contextlib.redirect_stderr(io.StringIO()) as self.told:
            return compiling.compile_folder(folder, self.build, **options)

    def test_messages_of_both_products_and_of_the_linker_are_read(self):
        message = "{}:3:1: error: expected ';'\n    3 | int x\n      | ^\n"
        for log, file in (("test.o.log", "test.cpp"), ("program.o.log", "main.cpp")):
            self.status, self.logs = 1, {log: message.format(file)}
            self.assertEqual([(one.file, one.is_error) for one in self.compile()], [(file, True)])
            (self.path / "build" / log).unlink()
        for log in "test.log", "program.log":
            self.logs = {log: "/usr/bin/ld: a.o: in function `main':\na.cpp:(.text+0x1): undefined reference to `f()'\n"}
            self.assertEqual(len(self.compile()), 1, log)
            (self.path / "build" / log).unlink()
        self.logs = {}
        with self.assertRaisesRegex(Problem, "its last ones: x: no such header"):
            self.compile()
        self.status = 0
        self.assertEqual(self.compile(), [])

    def test_the_project_s_libraries_are_built_and_then_both_products(self):
        self.compile()
        self.assertEqual(self.calls, [(self.build, ["libb.a", "libprogram.a", "libtest.a"]),
                                      ["ninja", "-C", str(self.path), "-k0", "build/test", "build/program"]])
        self.assertIn("Compiling 05-this and its checks for the first time", self.told.getvalue())
        text = self.rules[0]
        self.assertEqual(text.count("-D_GLIBCXX_ASSERTIONS"), 2)
        self.assertNotIn("-fsanitize", text)
        self.assertNotIn("/other", text)  # the program is the learner's
        self.assertIn('STAIRCASE_STEP_PROGRAM="build/program"', text)
        for product in "test", "program":
            compile_rule, link_rule, build_object, build_product = re.search(
                rf"rule compile-{product}\n  command = (.*)\n(?:  dep.*\n)+rule link-{product}\n  command = (.*)\n(build .*)\n(build .*)\n", text).groups()
            self.assertIn(f" -I{compiling.LIBRARY} ", compile_rule)
            self.assertTrue(compile_rule.endswith(" -MD -MF $out.d -o $out -c $in 2>$out.log"), compile_rule)
            self.assertIn(f"-o $out $in {self.build}/lib{product}.a {self.build}/libb.a -lm /usr/x.a 2>$out.log", link_rule)
            source = {"test": "test.cpp", "program": "main.cpp"}[product]
            self.assertEqual(build_object, f"build build/{product}.o: compile-{product} {source}")
            # What the project has built anew is linked again.
            given, _, libraries = build_product.partition(" | ")
            self.assertEqual(given, f"build build/{product}: link-{product} build/{product}.o")
            self.assertLessEqual({f"{self.build}/lib{product}.a", f"{self.build}/libb.a"}, set(libraries.split()))
        (self.path / "build/test").touch()
        self.compile(sanitize=True, jobs=3)
        self.assertEqual(self.calls[3][3:5], ["-j", "3"])
        self.assertEqual((self.told.getvalue(), self.rules[1].count("-fsanitize=address,undefined")), ("", 4))
        with mock.patch.object(compiling.shutil, "which", lambda _: None), self.assertRaisesRegex(Problem, "there is no compiler: sh is not found"):
            self.compile()


class Results(unittest.TestCase):
    """What a check prints of its cases, those of single functions and one that runs the program."""

    NAMES = ["one", "two", "the program"]

    def setUp(self):
        self.remembered = {}
        parent = SimpleNamespace(name="04-before")
        self.step = SimpleNamespace(name="05-this", number="05", children=[], parent=parent)
        self.folder = SimpleNamespace(step=self.step, series=[], said={}, path=Path(self.enterContext(tempfile.TemporaryDirectory())),
                                      short=lambda: "05", remember=lambda **what: self.remembered.update(what))
        (self.folder.path / "test.cpp").write_text('TEST_CASE("the program") {\n  run_program(STAIRCASE_STEP_PROGRAM, "");\n}\n')
        self.waits, self.lacks, self.later = "", None, None

    def run_check(self, *reds, only="", crashed=False, sanitize=False, green_before=0, ran=None):
        cases = [SimpleNamespace(name=name, green=name not in reds, ended="crashed: x" if crashed and name in reds else "")
                 for name in (self.NAMES[green_before:] if ran is None else ran)]
        self.runner = mock.Mock(return_value=SimpleNamespace(run=lambda *_: (cases, green_before, self.NAMES)))
        with mock.patch.multiple(check, Runner=self.runner, left=lambda *_: self.waits, lacking_option=lambda *_: self.lacks,
                                 coming=lambda *_: self.later, worth_reading=lambda _: self.words, green_steps=lambda: set()), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            status = check.run(self.folder, SimpleNamespace(only=only, limit=2.0, sanitize=sanitize))
        return status, said.getvalue().splitlines()

    words = ""

    def test_red_cases_are_counted_by_what_they_run(self):
        core = "{} of the 2 checks of single functions (the core) are red, and {} of the 1 that run the whole program."
        self.assertEqual(self.run_check("two"), (1, ["RED: 1 of 3 checks red; begin with: two", core.format(1, 0)]))
        self.assertEqual(self.run_check("the program", "two"), (1, ["RED: 2 of 3 checks red; begin with: two", core.format(1, 1)]))
        self.assertEqual(self.run_check("two", green_before=1, ran=["two", "the program"])[1][0], "RED: 1 of 3 checks red; begin with: two")
        self.assertEqual(self.run_check("the program"), (1, ["RED: CORE GREEN, 1 check of the whole program left.",
                                                             "1 of 3 checks red; begin with: the program"]))
        self.assertEqual(self.run_check("the program", only="pro", ran=["the program"]),
                         (1, ["RED: 1 of 1 checks with 'pro' red; begin with: the program"]))
        (self.folder.path / "test.cpp").write_text("")
        self.assertEqual(self.run_check("two"), (1, ["RED: 1 of 3 checks red; begin with: two"]))
        self.assertEqual(self.remembered, {})

    def test_a_learner_reads_where_to_go_on(self):
        self.waits = "sampling.h: top_k"
        self.assertEqual(self.run_check("two", crashed=True)[1][2:], ["Your turn in sampling.h: top_k.",
                                                                      "tools/step check 05 --sanitize shows where it crashes."])
        self.assertEqual(self.run_check("two", crashed=True, sanitize=True)[1][2:], ["Your turn in sampling.h: top_k."])
        self.assertEqual(self.runner.call_args.args[1:], (20.0, True))
        self.run_check()
        self.assertEqual(self.runner.call_args.args[1:], (2.0, False))

    def test_some_cases_alone_make_no_step_green(self):
        self.assertEqual(self.run_check(only="t", ran=["two", "the program"]), (0, ["2 of 3 checks green, those with 't' in their names."]))
        self.assertEqual(self.remembered, {})
        with self.assertRaisesRegex(Problem, "no test case has 'x' in its name; the test cases are: one; two; the program."):
            self.run_check(only="x", ran=[])
        self.lacks = "--top-k", "sampling.h"
        self.assertEqual(self.run_check(), (1, ["RED: the checks pass, but the program has no option --top-k yet; sampling.h adds it."]))
        self.assertEqual(self.remembered, {})

    def test_a_green_step_leads_on(self):
        green = "GREEN: 05-this is done, all 3 checks"
        solution = "  solution    tools/step practice 05 --solution"
        self.assertEqual(self.run_check(), (0, [green + ".", solution]))
        self.assertRegex(self.remembered["green"], r"^\d{4}-\d\d-\d\d$")
        self.folder.said["green"] = "2030-01-02"
        self.words = "f (steps/05-this/a.h:3)"
        self.assertEqual(self.run_check(green_before=3)[1], [green + " (nothing has changed since the last check).",
                                                             "  compare     the project writes this in other words: " + self.words, solution])
        self.assertEqual(self.remembered["green"], "2030-01-02")
        self.words = ""
        self.later = SimpleNamespace(name="06-next", parent=self.step, summary=lambda: "Next.")
        self.step.children = [self.later, SimpleNamespace(name="20-a"), SimpleNamespace(name="30-b")]
        self.assertEqual(self.run_check(green_before=2)[1], [
            green + ".", solution, "  next        tools/step next       06-next: Next.", "  branches    20-a, 30-b"])
        self.step.children = [self.later]
        self.later.parent = self.step.parent
        self.assertEqual(self.run_check()[1][2:], ["  next        tools/step next       06-next, which continues 04-before: Next."])

    def test_a_limit_is_a_number_of_seconds(self):
        self.assertEqual([check.seconds(text) for text in ("0.001", "999999")], [0.001, 999999.0])
        for text in "0", "-1", "1e6", "nan", "inf":
            with self.assertRaisesRegex(check.argparse.ArgumentTypeError, f"{text} is not a number of seconds above 0"):
                check.seconds(text)

    def test_an_option_of_the_lesson_is_one_that_the_program_offers(self):
        folder = self.folder.path
        (folder / "before.h").write_text('sink.add("--old", x);\n')
        (folder / "now.h").write_text('sink.add("--old", x);\nsink.add_flag("--new", x);\nline.add("--of-a-line", x);\nrequest.add("--key", x);\n')
        program = folder / "program"
        step = SimpleNamespace(parent=SimpleNamespace(lesson=lambda: {"a.h": folder / "before.h"}), lesson=lambda: {"a.h": folder / "now.h"})
        for help_, lacking in ("--new N", None), ("--new-one\n--new", None), ("--new-one", ("--new", "a.h")), ("--old", ("--new", "a.h")):
            program.write_text(f"#!/bin/sh\ncat <<'END'\n{help_}\nEND\n")
            program.chmod(0o755)
            self.assertEqual(check.lacking_option(step, program), lacking, help_)
        step.parent = None
        for shown, lacking in ("--old --new", None), ("--new", ("--old", "a.h")):
            program.write_text(f"#!/bin/sh\necho {shown}\n")
            self.assertEqual(check.lacking_option(step, program), lacking)


class Words(unittest.TestCase):
    def test_values_are_compared_in_words(self):
        for text, words in [
                ("1 == 2", "got: 1   want: 2"), ("x == ", "got: x"), ("a  ==\n b", "got: a   want: b"), ("true", "true"),
                ("18446744073709551615 != 18446744073709551615", "want it to be there, and it is not"),
                ("7 == 18446744073709551615", "want it not to be there, and it is"),
                ("null == 5", "got nothing of that name   want: 5"),
                ("[1, 2] == [1, 3]", "got: [1, 2]   want: [1, 3]"),
                ("x" * 198 + " == " + "y" * 198, "got: " + "x" * 198 + "   want: " + "y" * 198),
                ("x" * 199 + " == " + "y" * 198, "x" * 199 + " == " + "y" * 157 + " … " + "y" * 36)]:
            self.assertEqual(running.compared(text), words)
        ones = ", ".join(["1"] * 30)
        self.assertEqual(running.compared(f"[{ones}, 4, 5, 6, 7, 8] == [{ones}, 9, 5, 6, 7]"),
                         "got 35 values, want 34; from number 30 on: got 4, 5, 6, 7 …, want 9, 5, 6, 7")
        self.assertEqual(running.compared(f"{{{ones}}} == {{{ones}, 2}}"),
                         "got 30 values, want 31; from number 30 on: got nothing, want 2")

    def test_a_long_text_keeps_its_ends(self):
        self.assertEqual(running.shortened("a" * 160), "a" * 160)
        self.assertEqual(running.shortened("a" * 100 + "b" * 61), "a" * 100 + "b" * 20 + " … " + "b" * 36)
        self.assertEqual(running.shortened(" a\n  b "), "a b")
        self.assertEqual(running.shortened('  f( "\\n   256  \\"  " )   !=  npos'), 'f( "\\n   256  \\"  " ) != npos')

    def test_texts_that_differ_in_spaces_only_show_them(self):
        self.assertEqual(running.compared('"  256  \n4" == "   256  \n4"'), 'only spaces or line ends differ: got "··256··⏎4"   want: "···256··⏎4"')
        self.assertEqual(running.compared("a b == a\tb"), "only spaces or line ends differ: got a·b   want: a⇥b")
        self.assertEqual(running.compared("a == b == a  == b"), "only spaces or line ends differ: got a·==·b   want: a··==·b")
        self.assertEqual(running.compared("a b == ab"), "got: a b   want: ab")

    def test_two_failures_of_a_case_are_enough_and_an_outline_s_turn_is_told_alone(self):
        case = running.Case("a", 1)
        one = {"file": "/x/test.cpp", "line": 3, "failure": "f() == 1", "values": "2 == 1", "logged": []}
        case.failures = [{**one, "values": "f() == 1"}, {**one, "line": 4, "failure": "", "logged": ["k :=  2", "l := 3"]},
                         {**one, "line": 5}]
        self.assertEqual(list(running.describe(case)), ["RED  a", "     test.cpp:3  f() == 1", "     got: 2   want: 1",
                                                        "       where k := 2; l := 3"])
        for values in ("threw: your turn: top_k", 'threw another type: "your turn: top_k"'):
            case.failures = [{**one, "values": values}, one]
            self.assertEqual(list(running.describe(case)), ["RED  a", "     your turn: top_k"])

    def test_signals_have_sentences(self):
        self.assertIn("divided an integer by zero (SIGFPE)", running.crash("SIGFPE - floating point"))
        self.assertIn("aborted (SIGABRT)", running.crash("SIGABRT - abort"))
        self.assertEqual(running.crash("SIGILL - illegal"), "crashed: SIGILL - illegal")

    def test_sanitizers_and_the_library_are_told_with_the_learner_s_own_lines(self):
        heap = textwrap.dedent("""\
            mine
            =================================================================
            ==12==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602 at pc 0x55 bp 0x7f sp 0x7f
            READ of size 4 at 0x602 thread T0
                #0 0x5581 in staircase::top_k(std::vector<float>&, int) /p/05/sampling.h:31
                #1 0x5582 in std::sort<int>(int) /usr/include/c++/12/bits/stl_algo.h:4820:3
                #2 0x5583 in DOCTEST_ANON_FUNC_12 /p/05/test.cpp:40:7

            freed by thread T0 here:
                #0 0x5584 in staircase::other() /p/05/sampling.h:9""")
        self.assertEqual(running.complaint(heap, "/p/05"),
                         ["crashed: AddressSanitizer found heap-buffer-overflow", "in top_k, sampling.h:31", "called, test.cpp:40"])
        self.assertEqual(running.StandardError().own_lines(heap.encode()), b"mine\n")
        self.assertIn("SIGSEGV", running.complaint(heap.replace("heap-buffer-overflow", "SEGV"), "/p/05")[0])
        self.assertIn("SIGFPE", running.complaint(heap.replace("heap-buffer-overflow", "FPE"), "/p/05")[0])
        undefined = "a\nsampling.h:7:3: runtime error: division by zero\n    #0 0x1 in f(int) /p/05/sampling.h:7:3\n"
        self.assertEqual(running.complaint(undefined, "/p/05"), ["crashed: division by zero", "in f, sampling.h:7"])
        self.assertEqual(running.StandardError().own_lines(undefined.encode()), b"a\n")
        refused = ("one\n/usr/include/c++/12/bits/stl_vector.h:1123: std::vector<_Tp, _Alloc>::reference std::vector<_Tp, "
                   "_Alloc>::operator[](size_type) [with _Tp = int; size_type = long]: Assertion '__n < this->size()' failed.\ntwo\n")
        self.assertEqual(running.complaint(refused, "/p/05"),
                         ["crashed: the standard library refuses std::vector::operator[], since n < this->size() is not so"])
        pieces, said = running.StandardError(), b""
        for i in range(len(refused)):
            said += pieces.own_lines(refused.encode()[i:i + 1])
        self.assertEqual(said, b"one\ntwo\n")
        self.assertEqual(pieces.messages.decode(), refused.split("\n")[1] + "\n")
        refused = "/usr/include/c++/12/bits/charconv.h:55: int __digits(int): Assertion '__base > 1' failed.\n"
        self.assertEqual(running.complaint(refused, "/p/05"),
                         ["crashed: the standard library refuses charconv.h, since base > 1 is not so"])
        self.assertEqual(running.complaint("nothing of that kind\n", "/p/05"), [])

    def test_cases_that_run_the_program_are_known_also_by_their_helpers(self):
        text = textwrap.dedent("""\
            ProgramRun answer(const char* more) {
              return run_program(STAIRCASE_STEP_PROGRAM, more);
            }

            TEST_CASE("one") {
              answer("x");
            }

            TEST_CASE(
                "two \\"quoted\\" "
                "parts") {
              run_program(STAIRCASE_STEP_PROGRAM, "");
            }

            TEST_CASE("three") {
              CHECK(my_answer(1) == 2);
            }""")
        self.assertEqual(running.program_cases(text), {"one", 'two "quoted" parts'})


class CompilersMessages(unittest.TestCase):
    FOLDER = Path("/p/05")

    def found(self, text):
        return [(one.kind, one.place(), one.message, one.shown)
                for one in compiling.diagnostics(textwrap.dedent(text), self.FOLDER)]

    def test_each_message_has_its_place_and_two_lines_of_the_source(self):
        self.assertEqual(self.found("""\
            /p/05/sampling.h: In function 'int f()':
            /p/05/sampling.h:8:3: error: 'x' was not declared in this scope
                8 |   x;
                  |   ^
                  |   y
            /p/05/sampling.h:9:1: warning: no return
                9 | }
            /p/05/sampling.h:2:5: note: declared here
                2 | int f();
            test.cpp:3: fatal error: no such file"""), [("error", "sampling.h:8", "'x' was not declared in this scope", ["    8 |   x;", "      |   ^"]),
                   ("warning", "sampling.h:9", "no return", ["    9 | }"]),
                   ("fatal error", "test.cpp:3", "no such file", [])])

    def test_an_error_in_a_library_is_told_at_the_line_that_uses_it(self):
        used = """\
            In file included from /usr/include/c++/12/algorithm:61:
            /usr/include/c++/12/bits/stl_algo.h:1950:5:   required from 'void std::__sort(int)'
            /p/05/sampling.h:12:7:   required from here
            /usr/include/c++/12/bits/stl_algo.h:1938:22: error: no match for 'operator-'
             1938 |   std::__lg(last - first);
            """
        self.assertEqual(self.found(used), [("error", "sampling.h:12", "no match for 'operator-'",
                                             [" 1938 |   std::__lg(last - first);"])])
        alone = f"{ROOT}/common/base/error.h:3:1: error: wrong\n"
        self.assertEqual(self.found(alone), [("error", "common/base/error.h:3", "wrong", [])])

    def test_the_linker_s_messages_have_no_line(self):
        self.assertEqual(self.found("""\
            /usr/bin/ld: build/test.o: in function `f()':
            test.cpp:(.text+0x1d): undefined reference to `staircase::top_k(int)'
            /usr/bin/ld: main.cpp:(.text+0x0): multiple definition of `main'; first"""), [("error", "the linker", "undefined reference to 'staircase::top_k(int)'", []),
                   ("error", "the linker", "multiple definition of 'main'; first", [])])

    def test_warnings_are_told_of_one_s_own_files_only(self):
        found = [compiling.Diagnostic(kind, file, 3, "wrong", ["  3 | x"])
                 for kind, file in (("warning", "a.h"), ("error", "b.h"), ("warning", "../common/c.h"), ("warning", "/usr/d.h"))]
        self.assertEqual(compiling.warnings(found), ["warning, a.h:3: wrong", "  3 | x"])

    def test_only_a_warning_lets_a_program_run(self):
        self.assertEqual({kind: compiling.Diagnostic(kind, "a.h", 1, "x", []).is_error for kind in ("warning", "error", "fatal error")},
                         {"warning": False, "error": True, "fatal error": True})
        self.assertEqual([compiling.Diagnostic("error", "a.h", line, "x", []).place() for line in (7, None)], ["a.h:7", "a.h"])

    def test_what_two_programs_include_is_told_once(self):
        def one(kind, file, line, message):
            return compiling.Diagnostic(kind, file, line, message, [])
        found = [one("error", "a.h", 1, "x"), one("warning", "a.h", 1, "x"), one("error", "b.h", 1, "x"),
                 one("error", "a.h", 2, "x"), one("error", "a.h", 1, "y")]
        self.assertEqual(len(compiling.unique([*found, one("error", "a.h", 1, "x")])), 5)

    def test_every_way_to_say_that_a_name_is_missing_is_understood(self):
        for message, name in [
                ("'top_k' was not declared in this scope; did you mean 'k'?", "top_k"),
                ("use of undeclared identifier 'top_k'", "top_k"), ("'Filter' has not been declared", "Filter"),
                ("'Filter' does not name a type", "Filter"), ("unknown type name 'Filter'", "Filter"),
                ("'const struct staircase::Row' has no member named 'ids'", "Row::ids"),
                ("'class Row' has no member named 'ids'", "Row::ids"),
                ("no member named 'ids' in 'staircase::Row'", "Row::ids"),
                ("no member named 'top_k' in 'staircase'", "top_k"),
                ("'staircase::Row' has no non-static data member named 'ids'", "Row::ids"),
                ("field designator 'ids' does not refer to any field in type 'Row'", "Row::ids"),
                ("'top_k' is not a member of 'staircase'", "top_k"),
                ("undefined reference to 'staircase::top_k(int)'", "top_k")]:
            with self.subTest(message):
                names, others = compiling.absent_names([compiling.Diagnostic("error", "test.cpp", 1, message, [])])
                self.assertEqual((list(names), others), ([name], []))

    def told(self, *found):
        step = SimpleNamespace(lesson=lambda: {"sampling.h": ROOT / "steps/06-top-k/sampling.h", "main.cpp": ROOT / "README.md"})
        return compiling.told([compiling.Diagnostic(*one, ["  1 | x"]) for one in found], step)

    def test_one_s_own_errors_come_first_and_three_of_them(self):
        own = [("error", f"{file}.h", line, "wrong") for file, line in (("a", 1), ("a", 2), ("b", 3), ("c", 4), ("d", 5), ("c", 6))]
        lines, whose = self.told(("error", "test.cpp", 9, "other"), ("warning", "w.h", 1, "w"), *own)
        self.assertEqual(lines, ["Your own a.h:1: wrong", "  1 | x", "Your own a.h:2: wrong", "  1 | x", "Your own b.h:3: wrong",
                                 "  1 | x", "and 3 more in c.h, d.h"])
        self.assertEqual(whose, "a.h does not compile")
        self.assertEqual(self.told(*own[:3])[0][-1], "  1 | x")

    def test_names_that_the_checks_miss_are_told_together_with_their_places_in_the_outline(self):
        missing = "'keep_top_k' was not declared in this scope"
        lines, whose = self.told(*(("error", "test.cpp", line, missing) for line in (3, 5, 5, 8, 9)),
                                 ("error", "main.cpp", 1, "'absent' does not name a type"), ("error", "test.cpp", 7, "other"))
        self.assertEqual(lines[0], "These names are needed and not there:")
        self.assertRegex(lines[1], r"^  keep_top_k {19}test\.cpp:3, test\.cpp:5; the outline has it in sampling\.h: .*keep_top_k\(")
        self.assertEqual(lines[2:], ["  absent                       main.cpp:1"])
        self.assertEqual(whose, "test.cpp does not fit your code")
        self.assertEqual(self.told(("error", "main.cpp", 1, "x"))[1], "main.cpp does not fit your code")

    def test_the_outline_s_place_of_a_name_is_that_of_its_class_or_else_of_any(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, text in {"a.h": "class Row {\n public:\n  int ids() const { return 1; }\n  int count = 0;\n};\n",
                           "b.h": "struct Text {\n  int ids();\n  void add(int token) { last = token; }\n  int last;\n};\ninline int ids(int row) {\n  return row;\n}\n",
                           "main.cpp": "int only_here() { return 1; }\n"}.items():
            (folder / name).write_text(text, encoding="utf-8")
        step = SimpleNamespace(lesson=lambda: {path.name: path for path in sorted(folder.iterdir())})
        for message, place in (("no member named 'ids' in 'Row'", "a.h: int ids() const"), ("no member named 'ids' in 'Text'", "b.h"),
                               ("no member named 'add' in 'Other'", "b.h: void add(int token)"), ("'add' was not declared in this scope", "b.h: void add(int token)"),
                               ("no member named 'count' in 'Row'", "a.h"), ("'last' was not declared in this scope", "b.h"),
                               ("'only_here' was not declared in this scope", None)):
            with self.subTest(message):
                (_, line), _ = compiling.told([compiling.Diagnostic("error", "test.cpp", 1, message, [])], step)
                self.assertEqual(line.partition("test.cpp:1")[2], f"; the outline has it in {place}" if place else "")

    def test_other_errors_of_the_checks_are_told_if_nothing_else_is(self):
        others = [("error", "test.cpp", line, "cannot convert") for line in range(1, 6)]
        lines, _ = self.told(*others)
        self.assertEqual(lines[::2][:3], [f"test.cpp:{line}: cannot convert" for line in (1, 2, 3)])
        self.assertEqual(lines[6:], ["and 2 more in test.cpp"])
        self.assertEqual(len(self.told(*others[:3])[0]), 6)

    def test_what_keeps_the_compiler_from_its_work_is_one_sentence(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.assertIn("full", compiling.reason("x: No space left on device", place))
        for said in ("c++: fatal error: Killed signal", "virtual memory: out of memory", "cannot allocate memory"):
            self.assertIn("ran out of memory", compiling.reason(said, place))
        self.assertEqual(compiling.reason("ninja: Entering\n[1/2] x\nFAILED: y\nLC_ALL=C c++\n\none\ntwo\nthree\n", place),
                         "the compiler ended without a message about your code; its last ones: two; three")

    def test_a_command_is_the_project_s_without_its_inputs_outputs_and_optimization(self):
        with tempfile.TemporaryDirectory() as build:
            build = Path(build)
            words = ["ccache", "c++", "-Isteps/x.p", "-I../include", f"-I{ROOT}/steps/05-multinomial", f"-I{ROOT}/common/decoding",
                     f"-I{ROOT}", "-O3", "-g", "-Wall", "-Werror", "-fdiagnostics-color=always", "-MD", "-MQ", "a.o", "-MF", "a.d",
                     "-o", "a.o", "-c", "../a.cpp", "b.cpp", "x.o"]
            kept = compiling.without(words, ROOT / "steps/05-multinomial", build)
            self.assertEqual(kept, ["ccache", "c++", "-I../include", f"-I{ROOT}", "-Wall"])
            self.assertEqual(compiling.absolute([*kept, "common/lib.a"], build),
                             ["ccache", "c++", f"-I{build.parent}/include", f"-I{ROOT}", "-Wall", f"{build}/common/lib.a"])

    def test_paths_are_quoted_for_ninja(self):
        self.assertEqual(compiling.quote("/a b/c$d:e"), "/a$ b/c$$d$:e")
        self.assertEqual(compiling.in_ninja("echo $x"), "echo $$x")

    def test_names_are_found_with_their_class_and_without(self):
        homes = compiling.declarations(SimpleNamespace(lesson=lambda: {
            "block_pool.h": ROOT / "common/decoding/block_pool.h", "main.cpp": ROOT / "steps/05-multinomial/main.cpp"}))
        for name in ("share", "BlockPool::share"):
            self.assertEqual(homes[name], "block_pool.h: void share(int block)")
        for name in ("users_", "BlockPool::users_"):
            self.assertEqual(homes[name], "block_pool.h")
        self.assertNotIn("main", homes)

    def test_one_process_at_a_time_works_in_a_folder_and_the_others_wait(self):
        folder, order = Path(self.enterContext(tempfile.TemporaryDirectory())) / "new", []

        def second():
            with compiling.locked(folder, "another check is running"):
                order.append("second")

        with contextlib.redirect_stderr(io.StringIO()) as told:
            with compiling.locked(folder, "not printed"):
                self.assertEqual(told.getvalue(), "")
                waiting = threading.Thread(target=second)
                waiting.start()
                while not told.getvalue() and waiting.is_alive():
                    time.sleep(0.001)
                order.append("first")
            waiting.join(10)
        self.assertEqual((order, told.getvalue()), (["first", "second"], "another check is running\n"))

    def test_the_library_that_does_not_build_ends_the_check(self):
        with self.assertRaisesRegex(Problem, "the project itself does not build"):
            compiling.library("false")


if __name__ == "__main__":
    unittest.main()
