"""tools/step list, diff, practice and check: their output, files and refusals. test_practice.py tries every step."""

import errno
import os
import pty
import re
import shutil
import subprocess
import sys
import types
import unittest
import unittest.mock
from pathlib import Path

from support import ROOT, STEPS, Scratch, series, snapshot

from step_commands.compiling import absolute, warnings
from step_commands import check
from step_commands import folder as practice_folder
from step_commands.series import Problem
from step_commands.folder import LIBRARY, Folder, copy_library
from step_commands.history import copy
from step_commands.running import stat_of

README = "# 0{} {}\n\n*Summary of {}.*\n\n## The idea\n\nA sentence,\nin two lines. Second one.\n\n## The task\n\nWork.\n"
STEPS_BEFORE_AFTER = {
    "01-a": {"main.cpp": "int one;\nint two;\n", "README.md": README.format(1, "First", 1), "test.cpp": "1\n"},
    "02-b-c": {"main.cpp": "int one;\nint three, two;\n", "new.h": "new\n", "README.md": README.format(2, "Second", 2),
               "test.cpp": "2\n"},
    "03-d": {"main.cpp": "int one;\nint three, two;\n", "test.cpp": "3\n"},
}


class Show(Scratch):
    def setUp(self):
        super().setUp()
        self.root = self.staircase(STEPS_BEFORE_AFTER)
        shutil.rmtree(self.root / ".git")  # none of this needs a repository

    def show(self, *arguments, **options):
        return self.step(*arguments, root=self.root, **options)

    def test_list(self):
        lines = self.show("list").split("\n\n")[0].splitlines()
        self.assertEqual([line.split() for line in lines], [["01", "First", "+2", "Summary", "of", "1."],
                                                            ["02", "Second", "+2", "-1", "Summary", "of", "2."],
                                                            ["03", "d", "+0", "-1", "d"]])

    def test_list_as_a_page(self):
        self.assertEqual(self.show("list", "--markdown").splitlines()[-3:], [
            "| [01-a](../steps/01-a) |  | Summary of 1. | +2 |",
            "| [02-b-c](../steps/02-b-c) |  | Summary of 2. | +2 −1 |",
            "| [03-d](../steps/03-d) |  | d | +0 −1 |"])

    def test_a_pipe_gets_a_patch_that_makes_the_next_step(self):
        patch = self.show("diff", "2", "--all")
        self.assertNotIn("\033", patch)
        work = self.folder / "work"
        shutil.copytree(self.root / "steps/01-a", work)
        subprocess.run(["git", "apply", "-p1"], cwd=work, input=patch, text=True, check=True)
        self.assertEqual(snapshot(work), snapshot(self.root / "steps/02-b-c"))

    def test_what_a_diff_shows(self):
        for name in ("2", "02", "02-b-c", "b-c", "c"):
            self.assertEqual(self.show("diff", name), self.show("diff", "2"))
        self.assertNotIn("README.md", self.show("diff", "2"))
        self.assertIn("README.md", self.show("diff", "2", "--all"))
        self.assertIn("+int two;", self.show("diff", "1"))  # all of it is new
        self.assertEqual(re.findall(r"^[+-]\w.*", self.show("diff", "1", "3"), re.MULTILINE), ["-int two;", "+int three, two;"])
        self.assertEqual([line.split() for line in self.show("diff", "2", "--stat").splitlines()],
                         [["main.cpp", "+1", "-1", "+-"], ["new.h", "+1", "+"]])

    def test_an_empty_file_is_in_every_kind_of_diff(self):
        (self.root / "steps/02-b-c/none.h").write_text("")
        plain = self.show("diff", "2")
        self.assertIn("02-b-c/none.h\nnew file mode 100644\n", plain)
        self.assertEqual(re.sub(r"\033\[\d+m", "", self.show("diff", "2", "--color", "always")), plain)
        self.assertEqual([line.split() for line in self.show("diff", "2", "--stat").splitlines()],
                         [["main.cpp", "+1", "-1", "+-"], ["new.h", "+1", "+"], ["none.h", "+0"]])

    def test_changed_words_stand_out(self):
        text = self.show("diff", "2", "--color", "always")
        self.assertIn("\033[32m+int\033[7m three,\033[27m two;\033[0m", text)
        self.assertIn("\033[31m-int two;\033[0m", text)
        plain = re.sub(r"\033\[\d+m", "", text)
        self.assertEqual(plain, self.show("diff", "2"))
        # Nothing is lost on the way, whatever the hunks look like.
        for step in STEPS if os.environ.get("STAIRCASE_ALL_STEPS") else STEPS[::6]:
            plain = re.sub(r"\033\[\d+m", "", self.step("diff", step.number, "--all", "--color", "always"))
            self.assertEqual(plain, self.step("diff", step.number, "--all"))

    def on_a_terminal(self, *arguments, **environment):
        clean = {name: value for name, value in os.environ.items() if name not in ("PAGER", "GIT_PAGER", "NO_COLOR", "LESS")}
        main, side = pty.openpty()
        done = subprocess.Popen([self.root / "tools/step", *arguments], stdin=subprocess.DEVNULL, stdout=side, stderr=side,
                                env={**clean, **environment})
        os.close(side)
        output = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # Linux's way to say that the other side is closed
                part = b""
            if not part:
                break
            output += part
        os.close(main)
        self.assertEqual(done.wait(), 0, output)
        return output.decode()

    def test_a_terminal_gets_colours_and_a_pager(self):
        pager = {"PAGER": "sed 's/^/paged /'"}
        text = self.on_a_terminal("diff", "2", **pager)
        self.assertIn("paged ", text)
        self.assertIn("\033[31m", text)
        self.assertNotIn("\033", self.on_a_terminal("diff", "2", NO_COLOR="1", **pager))
        self.assertNotIn("paged", self.on_a_terminal("diff", "2", "--no-pager", **pager))
        self.assertNotIn("paged", self.on_a_terminal("diff", "2", GIT_PAGER="cat", **pager))
        self.assertIn("three", self.on_a_terminal("diff", "2", PAGER="no-such-pager"))

    def test_wrong_usage(self):
        for arguments, words in {
            (): "COMMAND", ("frobnicate",): "frobnicate", ("frobnicate", "--x"): "invalid choice: 'frobnicate'", ("diff",): "STEP", ("diff", "9"): "There is no step '9'",
            ("diff", "2", "1"): "does not come after", ("diff", "2", "2"): "does not come after",
            ("diff", "02-x"): "steps:\n  01-a    02-b-c  03-d\n", ("diff", "2", "--colour"): "--colour",
            ("check",): "no practice folder", ("check", "2"): "does not exist yet", ("check", "/"): "not a practice folder",
            ("practice", "0"): "There is no step", ("history",): "DIR", ("watch",): "no practice folder",
            ("check", "--limit", "0"): "0 is not a number of seconds above 0", ("check", "--limit", "x"): "--limit",
            ("practice", "2", "--force", "--update"): "not allowed", ("practice", "2", "--update"): "not a practice folder",
        }.items():
            with self.subTest(arguments):
                self.assertIn(words, self.show(*arguments, status=2))

    def test_an_option_in_the_wrong_place_is_a_sentence(self):
        for arguments, words in {
            ("practice", "2", "--build", "x"): "practice has no option --build; check and watch have it.",
            ("practice", "--build=x"): "practice has no option --build; check and watch have it.",
            ("check", "2", "--force"): "check has no option --force; practice has it.",
            ("list", "--colour"): "list has no option --colour; it has --help, --markdown, --color.",
            ("check", "2", "--solve"): "check has no option --solve; it has --help, --only, --limit, --sanitize.",
            ("--only", "x", "check"): "--only belongs after its command: tools/step check --only.",
            ("--nothing",): "there is no option --nothing; tools/step --help shows the commands.",
            ("practice", "2", "a", "b"): "'b' is one argument too many; tools/step practice --help shows what it takes.",
        }.items():
            with self.subTest(arguments):
                self.assertEqual(self.show(*arguments, status=2), f"tools/step: {words}\n")

    def test_a_step_of_any_number_has_its_folder_by_that_number(self):
        with unittest.mock.patch.object(practice_folder, "PRACTICE", self.folder / "practice"):
            for step in series.steps():
                for name in str(step.number), step.name:
                    with self.assertRaisesRegex(Problem, f"/{step.name} does not exist yet, or was moved; tools/step practice {name} makes it"):
                        practice_folder.called(name)

    def test_a_part_of_a_name_is_enough_where_no_other_has_it(self):
        self.assertEqual(self.step("diff", "top-p"), self.step("diff", "07"))
        self.assertIn("'beam' is in the names of 4 steps: 40-beam-search, 41-finished-beams, 42-beam-rows, 46-beam-tree.", self.step("diff", "beam", status=2))
        self.assertIn("02-b-c does not exist yet", self.show("check", "b-c", status=2))
        for columns, names in ((40, 1), (80, 3), (200, 7)):  # as many of the longest name as fit
            rows = -(-len(STEPS) // names)
            said = self.step("diff", "00", status=2, env={**os.environ, "COLUMNS": str(columns)}).splitlines()
            self.assertEqual(len(said), rows + 1)
            self.assertLessEqual(max(map(len, said[1:])), columns)
            self.assertEqual(set(" ".join(said[1:]).split()), {step.name for step in STEPS})

    def test_what_the_system_refuses_is_a_sentence(self):
        (self.folder / "file").write_text("")
        under = self.folder / "file/x"
        self.assertEqual(self.step("history", under, status=1), f"tools/step: {under}: Not a directory.\n")
        self.assertEqual(self.show("practice", "2", under, status=2),
                         f"tools/step: {under.parent} is a file; name another folder.\n")
        for redirection, reason in {">&-": "standard output is closed", ">/dev/full": "No space left on device"}.items():
            done = subprocess.run(f"tools/step diff 2 {redirection}", shell=True, cwd=self.root, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (1, f"tools/step: {reason}.\n"))

    def test_a_reader_that_has_seen_enough_ends_it_without_a_word(self):
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run([self.root / "tools/step", "list"], stdout=write, stderr=subprocess.PIPE, text=True)
        finally:
            os.close(write)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_program_that_is_missing_is_named_with_what_brings_it(self):
        done = subprocess.run([sys.executable, self.root / "tools/step", "diff", "2"], capture_output=True, text=True, env={"PATH": str(self.folder)})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "tools/step: git is missing; tools/setup installs it.\n"))

    def test_help(self):
        for command in ("list", "diff", "practice", "check", "watch", "next", "answer", "history", "climb"):
            self.assertIn(f"tools/step {command}", self.show(command, "--help"))
            self.assertIn(command, self.show("--help"))

    def test_no_two_words_of_a_help_text_run_together(self):
        """A help text has several literals. Where a blank is missing between two, a word that no other text has ends in
        a word of theirs, and begins with another."""
        texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "steps").rglob("*.md"),
                 *(ROOT / "common").rglob("*.[ch]*"), *(ROOT / "tests/steps").glob("*.py")]
        known = {word for text in texts for word in re.findall(r"[a-z]+", text.read_text(encoding="utf-8").lower())}
        self.assertGreater(len(known), 3000)
        for command in ("list", "diff", "practice", "check", "watch", "next", "answer", "history", "climb"):
            prose = re.sub(r"--[\w-]+|\b[A-Z]+\b", "", self.show(command, "--help"))  # without options and their values
            for word in set(re.findall(r"[a-z]+", prose.lower())) - known:
                if re.sub("(s|l?ed|ing)$", "", word) not in known:
                    halves = [(word[:i], word[i:]) for i in range(1, len(word)) if {word[:i], word[i:]} <= known]
                    self.assertEqual([pair for pair in halves if min(map(len, pair)) > 1 or "a" in pair], [], command)

    def test_the_help_names_the_folder_that_is_made(self):
        form = re.search(r"DIR \(default: (\S+)\)", self.show("practice", "--help"))[1]
        self.show("practice", "2")
        made, = self.root.glob("practice/*")
        self.assertEqual(form.replace("NN-name", made.name), str(made.relative_to(self.root)))
        self.assertEqual(made.name, "02-b-c")

    def test_nothing_is_left_behind(self):
        before = snapshot(self.root)
        for arguments in (["list"], ["diff", "2"], ["practice", "2", "--solution"]):
            self.show(*arguments)
        self.assertEqual(snapshot(self.root), before)


class Ticks(Scratch):
    def test_a_program_computes_in_its_own_code_and_in_the_systems(self):
        stat = self.folder / "stat"  # Linux, proc_pid_stat(5): fields 14 and 15; a name may have a bracket and blanks
        stat.write_text("7 (a) b c) R 1 7 7 0 -1 0 0 0 0 0 30 12 500 600 20 0 1")
        self.assertEqual(stat_of(stat), 42)


class Answer(Scratch):
    EXERCISES = "\n## Exercises\n\n    tools/step answer 02 1     # a line\n\n1. Why\n   so?\n2. How much?\n\n## Sources\n\n1. Book\n"
    ANSWERS = "# Answers\n\n1. So.\n\n       $ tools/run 02\n       1. no item\n\n2. That\n   much.\n"

    def setUp(self):
        super().setUp()
        steps = {name: dict(files) for name, files in STEPS_BEFORE_AFTER.items()}
        steps["02-b-c"]["README.md"] += self.EXERCISES
        steps["02-b-c"]["ANSWERS.md"] = self.ANSWERS
        self.root = self.staircase(steps)

    def show(self, *arguments, **options):
        return self.step(*arguments, root=self.root, **options)

    def test_an_exercise_is_shown_with_its_answer(self):
        first = "1. Why\n   so?\n\n   So.\n\n       $ tools/run 02\n       1. no item\n"
        second = "2. How much?\n\n   That\n   much.\n"
        self.assertEqual(self.show("answer", "2", "1"), first)
        self.assertEqual(self.show("answer", "b-c", "2"), second)
        self.assertEqual(self.show("answer", "02"), first + "\n" + second)
        self.assertEqual(self.show("answer", "2", "2", "--color", "always"), second.replace("2. How much?", "\033[1m2. How much?\033[0m"))

    def test_what_has_no_answer_is_one_sentence(self):
        for number in ("0", "3", "-1", "two", "01", ""):
            self.assertEqual(self.show("answer", "2", "--", number, status=2),
                             f"tools/step: 02-b-c has no exercise '{number}'; it has 1 to 2.\n")
        self.assertEqual(self.show("answer", "1", "1", status=1), "tools/step: 01-a has no ANSWERS.md yet.\n")
        self.assertIn("There is no step '9'", self.show("answer", "9", status=2))
        self.assertIn("'3' is one argument too many", self.show("answer", "2", "1", "3", status=2))

    def test_answers_are_no_part_of_a_step(self):
        """Neither of its lines and its diff, nor of the folders that are made from it, nor of what a climb carries."""
        (self.root / "steps/02-b-c/ANSWERS.md").write_text(self.ANSWERS.replace("much", "little"))
        commands = (["list"], ["diff", "2", "--all"], ["practice", "2", "--solution"], ["climb", "2"])
        said = [self.show(*arguments) for arguments in commands]
        self.assertIn("Nothing to carry", said[-1])
        (self.root / "steps/02-b-c/ANSWERS.md").unlink()
        self.assertEqual([self.show(*arguments) for arguments in commands], said)
        (self.root / "steps/02-b-c/ANSWERS.md").write_text(self.ANSWERS)
        self.show("practice", "2", "mine", cwd=self.folder)
        self.assertEqual(list((self.folder / "mine").rglob("ANSWERS.md")), [])
        self.assertIn("    tools/step answer 02 1 ", (self.folder / "mine/README.md").read_text())


class Practice(Scratch):
    def setUp(self):
        super().setUp()
        steps = {name: dict(files) for name, files in STEPS_BEFORE_AFTER.items()}
        steps["01-a"]["kept.h"] = "inline int kept() {\n  return 1;\n}\n"
        steps["02-b-c"]["kept.h"] = "inline int kept() {\n  return 2;\n}\n"
        steps["02-b-c"]["new.h"] = "inline int fresh() {\n  return 3;\n}\n"
        steps["02-b-c"]["plain.h"] = "struct Plain {\n  int x = 0;\n};\n"
        self.root = self.staircase(steps)

    def practice(self, *arguments, **options):
        return self.step("practice", *arguments, root=self.root, **options)

    def test_the_outline_of_a_step_and_its_checks(self):
        """main.cpp is given as it will be; a function that has a body already keeps it, and a new one throws."""
        said = self.practice(2)
        folder = self.root / "practice/02-b-c"
        self.assertEqual((folder / "main.cpp").read_text(), "int one;\nint three, two;\n")
        self.assertEqual((folder / "test.cpp").read_text(), "2\n")
        self.assertIn("# 02 Second", (folder / "README.md").read_text())
        self.assertEqual((folder / "kept.h").read_text(), "inline int kept() {\n  return 1;\n}\n")
        self.assertEqual((folder / "new.h").read_text(), '#include "common/base/error.h"\n\ninline int fresh() {\n'
                         '  throw Error("your turn: fresh");\n}\n')
        self.assertIn("  files       new: new.h · change: kept.h · leave: main.cpp, plain.h\n", said)
        self.assertIn("tools/step check 02", said)
        self.assertEqual(self.practice(2, "--solution"), self.step("diff", 2, root=self.root))

    def test_the_first_step_is_like_the_others(self):
        self.assertIn("new: kept.h · leave: main.cpp\n", self.practice(1))
        self.assertIn("your turn", (self.root / "practice/01-a/kept.h").read_text())

    def test_any_folder(self):
        self.practice(2, "some where/else", cwd=self.folder)
        self.assertTrue((self.folder / "some where/else/main.cpp").is_file())

    def test_a_learners_work_is_safe(self):
        folder = self.folder / "mine"
        self.practice(2, folder)
        (folder / "main.cpp").write_text("mine")
        (folder / "more.h").write_text("mine")
        before = snapshot(self.folder)
        self.assertIn("not empty", self.practice(2, folder, status=2))
        self.assertIn("steps/", self.practice(2, self.root / "steps/03-d", "--force", status=2))
        (self.folder / "link").symlink_to(self.root / "steps")
        for own in (self.root / "steps", self.folder / "link", self.folder / "link/new"):
            self.assertIn("belongs to the project's own steps", self.practice(2, own, "--force", status=2))
        (self.folder / "link").unlink()
        self.assertIn("is a file", self.practice(2, folder / "main.cpp", "--force", status=2))
        self.assertEqual(snapshot(self.folder), before)
        with open(folder / "build.ninja", "a", encoding="utf-8") as file:
            file.write("# mine\n")
        self.practice(2, folder, "--force")
        self.assertTrue((folder / "old/build.ninja").read_text().endswith("# mine\n"))
        self.assertNotIn("# mine", (folder / "build.ninja").read_text())
        self.assertEqual((folder / "main.cpp").read_text(), "int one;\nint three, two;\n")
        self.assertEqual((folder / "more.h").read_text(), "mine")
        self.assertEqual((folder / "old/main.cpp").read_text(), "mine")
        (folder / "main.cpp").write_text("mine again")
        self.assertRegex(self.practice(2, folder, "--force"), r"What was there is in \S*mine/old-2\.")
        self.assertEqual((folder / "old/main.cpp").read_text(), "mine")
        self.assertEqual((folder / "old-2/main.cpp").read_text(), "mine again")

    def test_a_copied_file_is_a_program_if_it_was_one(self):
        for mode, copied in ((0o700, 0o755), (0o600, 0o644)):
            (self.folder / "file").write_text("x")
            (self.folder / "file").chmod(mode)
            copy(self.folder / "file", self.folder / "new/folder/file")
            self.assertEqual((self.folder / "new/folder/file").stat().st_mode & 0o777, copied)

    def test_a_folder_remembers_one_value_of_each_kind_and_keeps_its_rules(self):
        file = self.folder / "build.ninja"
        for rules in ("", "rule link\n  command = true = x\n"):
            file.write_text("# A comment.\nstep = 06-top-k\ngiven = 12\n" + rules)
            for day in ("2026-01-02", "2026-01-03"):
                Folder(self.folder).remember(green=day)
                self.assertEqual(Folder(self.folder).said, {"step": "06-top-k", "given": "12", "green": day})
                self.assertTrue(file.read_text().endswith(f"step = 06-top-k\ngiven = 12\ngreen = {day}\n{rules}"))
        Folder(self.folder).remember(given="13")
        self.assertEqual(Folder(self.folder).said, {"step": "06-top-k", "given": "13", "green": "2026-01-03"})

    def test_a_file_that_is_gone_comes_back_and_nothing_else_changes(self):
        folder = self.folder / "mine"
        self.practice(2, folder)
        (folder / "kept.h").unlink()
        (folder / "new.h").write_text("mine")
        said = self.step("check", folder, root=self.root, status=1)
        self.assertEqual(said, f"tools/step: kept.h is missing in {folder}; tools/step practice 02 {folder} --update writes it "
                         "again and leaves the rest unchanged.\n")
        # Without a name it is the folder in which one is.
        self.assertEqual(self.step("check", root=self.root, cwd=folder, status=1), said)
        self.practice(2, folder, "--update")
        self.assertIn("return 1;", (folder / "kept.h").read_text())
        self.assertEqual((folder / "new.h").read_text(), "mine")
        self.assertIn("everything is up to date", self.practice(2, folder, "--update"))

    def test_a_folder_of_an_older_staircase_says_so_and_can_be_updated(self):
        folder = self.folder / "mine"
        self.practice(2, folder)
        (folder / "kept.h").write_text("mine")
        (self.root / "steps/02-b-c/test.cpp").write_text("2, and more\n")
        said = self.step("check", folder, root=self.root, status=1)  # this small project has no build
        self.assertIn("The checks of 02-b-c have changed since this folder was made", said)
        self.practice(2, folder, "--update")
        self.assertEqual((folder / "test.cpp").read_text(), "2, and more\n")
        self.assertEqual((folder / "kept.h").read_text(), "mine")
        self.assertNotIn("have changed", self.step("check", folder, root=self.root, status=1))
        (folder / "test.cpp").write_text("2, and mine\n")
        self.assertNotIn("have changed", self.step("check", folder, root=self.root, status=1))  # the learner did
        self.assertIn("test.cpp.mine", self.practice(2, folder, "--update"))
        self.assertEqual((folder / "test.cpp.mine").read_text(), "2, and mine\n")

    def test_a_folder_that_was_moved_or_lost_its_mark(self):
        self.practice(2)
        folder = self.root / "practice/02-b-c"
        folder.rename(self.folder / "moved")
        self.assertIn("does not exist yet, or was moved", self.step("check", 2, root=self.root, status=2))
        (self.folder / "moved/kept.h").unlink()  # by its own name it is found; nothing is compiled
        self.assertIn("kept.h is missing", self.step("check", self.folder / "moved", root=self.root, status=1))
        (self.folder / "moved/build.ninja").write_text("# Made by tools/step, and made again by each\n")
        self.assertIn("no longer names its step", self.step("check", self.folder / "moved", root=self.root, status=1))
        (self.folder / "moved/build.ninja").unlink()
        self.assertIn("is not a practice folder", self.step("check", self.folder / "moved", root=self.root, status=2))

    def test_what_is_interrupted_leaves_nothing_half_written(self):
        """A file of the step that cannot be read stops it in the middle."""
        (self.root / "steps/02-b-c/z.txt").symlink_to("/proc/self/mem")
        before = snapshot(self.root)
        self.practice(2, status=1)
        self.assertEqual(snapshot(self.root), before)
        self.assertFalse((self.root / "practice/02-b-c").exists())

    def test_the_readme_has_the_commands_of_the_folder(self):
        text = README.format(2, "Second", 2) + ("\n## How to check it\n\n    tools/test 02\n    tools/step diff 02\n"
                                                "    tools/run 02 --prompt X\n\nSee [01-a](../01-a), `tools/run 02`, "
                                                "`tools/run 01`.\n\n## Exercises\n\n1. None.\n")
        (self.root / "steps/02-b-c/README.md").write_text(text)
        self.practice(2)
        folder = self.root / "practice/02-b-c"
        said = (folder / "README.md").read_text()
        checking, afterwards = said[said.index("## How to check it"):].split("## Afterwards\n")
        self.assertIn("\n    tools/step check 02\n    practice/02-b-c/build/program --prompt X\n", checking)
        self.assertIn("`practice/02-b-c/build/program`, `tools/run 01`", checking)
        self.assertNotIn("tools/step diff", checking)
        self.assertNotIn("tools/test", said)
        self.assertIn("\n    tools/step diff 02 ", afterwards.split("## Exercises")[0])
        self.assertTrue((folder / said.split("[01-a](")[1].split(")")[0] / "main.cpp").is_file())
        self.practice(2, "some where", cwd=self.folder)
        self.assertIn(f"\n    tools/step check '{self.folder}/some where'\n", (self.folder / "some where/README.md").read_text())

    def test_the_readme_does_not_show_the_solution(self):
        shown = "<!-- from main.cpp -->\nThis is new:\n\n```cpp\nint three, two;\n```\n\n" * 2
        text = README.format(2, "Second", 2)
        (self.root / "steps/02-b-c/README.md").write_text(text.replace("## The task", shown + "## The task"))
        self.practice(2)
        said = (self.root / "practice/02-b-c/README.md").read_text()
        self.assertIn("in two lines. Second one.\n\n## The task\n", said)
        self.assertNotIn("three", said)

    def test_the_path_through_the_steps(self):
        def said(*arguments):
            return self.step(*arguments, root=self.root)

        def is_green(name):
            build = self.root / f"practice/{name}/build.ninja"
            build.write_text(build.read_text() + "green = 2026-01-01\n")

        self.assertNotIn("✓", said("list"))
        self.assertIn("01-a is yours", said("next"))
        self.assertIn("01-a is not green yet: kept.h: kept. tools/step check 01", said("next"))
        is_green("01-a")
        self.assertRegex(said("list"), r"01 First ✓ +\+")
        self.assertIn("✓ 1 of 3 steps", said("list"))
        self.assertIn("02-b-c is yours", said("next"))
        is_green("02-b-c")
        said("practice", 3)
        is_green("03-d")
        self.assertIn("Every step is green", said("next"))

    def test_after_the_last_step_come_those_that_were_left_out(self):
        self.practice(3)
        build = self.root / "practice/03-d/build.ninja"
        build.write_text(build.read_text() + "green = 2026-01-01\n")
        self.assertIn("01-a is yours", self.step("next", root=self.root))

    def test_without_a_name_the_folder_that_was_used_last_is_meant(self):
        self.practice(1)
        self.practice(2)
        for last in ("01-a", "02-b-c", "01-a"):
            times = [path.stat().st_mtime for path in self.root.glob("practice/*/*")]
            os.utime(self.root / f"practice/{last}/kept.h", (max(times) + 10, max(times) + 10))
            self.assertIn(f"{last} is not green yet", self.step("next", root=self.root))

    def test_the_library_of_a_folder_is_what_its_step_may_see(self):
        step = next(step for step in STEPS if step.visible())
        library = self.folder / LIBRARY
        library.mkdir(parents=True)
        name = next(iter(step.visible()))
        for own in (name, "of_a_later_step.h"):
            (library / own).write_text("an older version")
        copy_library(self.folder, step)
        self.assertEqual({path.name: path.read_bytes() for path in library.iterdir()},
                         {name: landed.path.read_bytes() for name, landed in step.visible().items()})

    def test_a_full_disk_and_a_full_share_of_it_are_told_apart_from_other_refusals(self):
        self.assertEqual([series.is_full(OSError(number, "")) for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES)],
                         [True, True, False])

    def test_a_command_of_the_build_folder_works_in_any_folder(self):
        words = ["c++", "-I../common", "-Isteps/01-a.p", "-I/usr/include/x", "-DPATH=\"a/b\"", "-O2", "../a/b.cpp", "lib/c.a"]
        self.assertEqual(absolute(words, Path("/p/build")), [
            "c++", "-I/p/common", "-I/p/build/steps/01-a.p", "-I/usr/include/x", "-DPATH=\"a/b\"", "-O2", "/p/a/b.cpp",
            "/p/build/lib/c.a"])

    def test_warnings_are_those_in_the_learners_own_files(self):
        def found(file, is_error=False):
            return types.SimpleNamespace(file=file, is_error=is_error, message="unused", shown=("x",), place=lambda: file)
        files = ["../common/a.h", "/usr/include/b.h", "main.cpp", "library/c.h"]
        self.assertEqual(warnings([found(file) for file in files] + [found("d.h", True)]),
                         ["warning, main.cpp: unused", "x", "warning, library/c.h: unused", "x"])

    def test_a_function_written_in_other_words_is_named_with_its_line_in_the_projects_file(self):
        for step, expected in ((STEPS[1], ["generate", "finish_reason"]), (STEPS[13], ["StaticKvCache::use"])):
            mine = self.folder / step.name
            mine.mkdir()
            for name, path in step.lesson().items():
                (mine / name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            own = types.SimpleNamespace(step=step, path=mine)
            self.assertEqual(check.worth_reading(own), "")
            for path in mine.glob("*.h"):
                path.write_text(path.read_text(encoding="utf-8").replace("return ", "return 0 + "), encoding="utf-8")
            named = re.findall(r"(\S+) \(steps/([^/]+)/([^:]+):(\d+)\)", check.worth_reading(own))
            self.assertEqual([function for function, *_ in named], expected)
            for function, folder, name, line in named:
                self.assertEqual(folder, step.name)
                lines = (step.folder / name).read_text(encoding="utf-8").splitlines()
                self.assertIn(f" {function.rpartition(':')[2]}(", lines[int(line) - 1])


if __name__ == "__main__":
    unittest.main()
