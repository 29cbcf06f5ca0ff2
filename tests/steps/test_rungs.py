"""Rungs of kernels as tasks: each has one, the right file is green, and a wrong one is red with one sentence."""

import contextlib
import io
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import BUILD, ROOT, Scratch, call

from step_commands import rungs
from step_commands.series import Problem

TASKS = [rung for ladder in rungs.ladders().values() for rung in ladder.rungs[1:]]


def is_built(ladder):
    """A build with sanitizers does not count what a GPU's rungs ask of memory."""
    return call("ninja", "-C", BUILD, "-t", "query", ladder.program).returncode == 0


# One of each ladder is compiled.
TRIED = {name: ladder.rungs[len(ladder.rungs) // 2] for name, ladder in rungs.ladders().items() if is_built(ladder)}
GPU = [ladder for ladder in rungs.ladders().values() if ladder.is_gpu]


class Tasks(Scratch):
    def test_each_rung_has_a_task_from_its_file_and_its_page(self):
        self.assertGreater(len(TASKS), 20)
        for rung in TASKS:
            with self.subTest(rung.full_name):
                text, solution = rungs.emptied(rung), rung.file.read_text()
                names = rungs.left(text)
                self.assertTrue(names)
                gone = [line for line in solution.splitlines() if line.strip() and line not in text]
                self.assertGreater(len(gone), 2)
                page = rungs.readme(rung, rung.folder)
                self.assertRegex(page, rf"\A# {rung.number}\. ")
                self.assertNotIn("```", page)
                self.assertNotIn(f"({rung.file.name})", page)
                self.assertGreater(len(page.split("## Your turn")[0].split()), 10, "the idea")
                for line in gone:
                    self.assertNotIn(line.strip() if len(line) > 30 else "\0", page)
                for target in re.findall(r"\]\((?!https?:)([^)#]+)", page):
                    self.assertTrue((rung.folder / target).resolve().exists(), target)

    def test_the_page_of_a_task_names_its_own_commands_and_the_rung_below(self):
        for rung in TASKS:
            with self.subTest(rung.full_name):
                number = int(rung.file.name.split("_")[0])
                below, = rung.file.parent.glob(f"{number - 1}_*{rung.file.suffix}")
                page = rungs.readme(rung, rung.folder)
                self.assertEqual(re.findall(r"^    (tools/step .*)$", page, re.MULTILINE),
                                 [f"tools/step check {rung.ladder.name}/{number}", f"tools/step practice {rung.ladder.name}/{number} --solution"])
                (name, target), = re.findall(r"You can begin with those of the rung below, \[`([^`]+)`\]\(([^)]+)\)", page)
                self.assertEqual((name, (rung.folder / target).resolve()), (below.name, below))
                self.assertIn(f"The check compares with {rung.ladder.rungs[0].name} in odd sizes", page)
                ladder_page, = re.findall(r"\[The page of the ladder\]\(([^)]+)\)", page)
                self.assertIn(f"/{rung.file.name})", (rung.folder / ladder_page).resolve().read_text(encoding="utf-8"))
                self.assertIn("\n    tools/step check '/a b'\n", rungs.readme(rung, Path("/a b")))

    def test_a_ladder_shows_its_rungs(self):
        said = self.step("practice", "matvec")
        for rung in rungs.ladders()["matvec"].rungs:
            self.assertIn(f"  {rung.name} ", said)
            self.assertIn(rung.idea(), said)

    def test_which_folder_a_name_means(self):
        ladder, usual, mine = rungs.ladders()["matvec"], self.folder / "usual", self.folder / "mine"
        rung = ladder.rungs[2]
        with mock.patch.object(rung, "folder", usual), mock.patch.object(rungs, "ladders", lambda: {"matvec": ladder}):
            self.assertEqual([rungs.find(name) for name in ("matvec/3", rung.full_name, "matvec", "06", "none/3")], [rung, rung, None, None, None])
            with self.assertRaisesRegex(Problem, rf"^{usual} does not exist yet, or was moved; tools/step practice matvec/3 makes it\.$"):
                rungs.called("matvec/3")
            for folder in usual, mine:
                folder.mkdir()
                (folder / rungs.MARK).write_text(f"{rung.full_name}\n")
            for name, folder, typed in (("matvec/3", usual, "matvec/3"), (rung.full_name, usual, "matvec/3"), (str(mine), mine, str(mine))):
                found = rungs.called(name)
                self.assertEqual((found.path, found.rung, found.file, found.called()), (folder, rung, folder / rung.file.name, typed))
            self.assertIsNone(rungs.called("06"))
            with mock.patch.object(rungs.Path, "cwd", lambda: mine):
                self.assertEqual(rungs.called(None).path, mine)
            with mock.patch.object(rungs.Path, "cwd", lambda: self.folder):
                self.assertIsNone(rungs.called(None))
            (mine / rungs.MARK).write_text("matvec")
            with self.assertRaisesRegex(Problem, "no longer names a rung"):
                rungs.called(str(mine))

    def test_each_end_of_a_check_is_told(self):
        """With a script in place of the compiled check."""
        rung, last = rungs.find("matvec/3"), rungs.ladders()["matvec"].rungs[-1]
        program = self.folder / "build/check-rung"
        program.parent.mkdir()

        def said(script, rung=rung, status=None, sanitize=False, limit=60.0):
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            folder = SimpleNamespace(rung=rung, path=self.folder, file=self.folder / rung.file.name, called=lambda: "matvec/3")
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                found = rungs.run(folder, SimpleNamespace(sanitize=sanitize, limit=limit))
            self.assertEqual(found, status, shown.getvalue())
            return shown.getvalue().splitlines()

        self.assertEqual(said("echo first; echo number 0 differs; exit 1", status=1), ["RED: number 0 differs"])
        with self.assertRaisesRegex(Problem, "^there is no such rung$"):
            said("echo there is no such rung; exit 3")
        self.assertEqual(said("exit 2", status=1), ["RED: it crashed (status 2). tools/step check matvec/3 --sanitize shows where."])
        self.assertEqual(said("kill -SEGV $$", status=1)[0], "RED: it crashed (SIGSEGV). tools/step check matvec/3 --sanitize shows where.")
        report = f"echo '==1==ERROR: AddressSanitizer: heap-buffer-overflow' >&2; for i in 1 2 3; do echo \" #$i {rung.file.name}:$i\" >&2; done; echo x; exit 1"
        self.assertEqual(said(report, status=1, sanitize=True), ["RED: it crashed (status 1).", "==1==ERROR: AddressSanitizer: heap-buffer-overflow",
                                                                 f"#1 {rung.file.name}:1", f"#2 {rung.file.name}:2"])
        self.assertEqual(said("sleep 20", status=1, limit=0.2)[0], "RED: it took longer than 0.2 seconds, and was ended; an endless loop? "
                         "--limit SECONDS gives it more.")
        green = said('echo "$@"', status=0)
        self.assertEqual(green[:3], [f"GREEN: {rung.full_name} computes what 1-plain does, in every odd size.", "matvec 3",
                                     f"  compare     kernels/rungs/cpu/matvec/{rung.file.name} is the project's own"])
        self.assertRegex(green[3], r"^  next        tools/step practice matvec/4 +\S")
        self.assertEqual(said('echo "$@"', status=0, sanitize=True)[1], "matvec 3 compare")
        self.assertFalse([line for line in said("true", rung=last, status=0) if line.startswith("  next")])

    def test_what_cannot_be_practised_is_told_in_one_sentence(self):
        for words, said in ((("practice", "matvec/1"), "matvec/1-plain is the one that the others are compared with; begin "
                             "with matvec/2."),
                            (("practice", "matvec/77"), "matvec has no rung '77'; it has 1-plain, "),
                            (("practice", "vector/2"), "There is no step 'vector/2'"),
                            (("practice", "matvec/2", ROOT / "kernels/rungs/cpu/mine"), "belongs to the project's own rungs"),
                            (("practice", "matvec/2", ROOT / "README.md"), "README.md is a file; name a folder."),
                            (("practice", "matvec/2", ROOT / "tests"), "is not empty: name another folder"),
                            (("check", "product/77"), "product has no rung '77'")):
            with self.subTest(words):
                self.assertIn(said, self.step(*words, status=2))

    def test_begun_code_is_kept(self):
        mine = self.folder / "mine"
        self.step("practice", "matvec/3", mine)
        (mine / "3_registers.cpp").write_text("// begun\n")
        self.assertIn("you have begun there", self.step("practice", "matvec/3", mine, status=2))
        (mine / "README.md").write_text("")
        self.assertIn("your code is unchanged", self.step("practice", "matvec/3", mine, "--update"))
        self.assertIn("# 3. ", (mine / "README.md").read_text())
        self.assertEqual((mine / "3_registers.cpp").read_text(), "// begun\n")
        self.step("practice", "matvec/3", mine, "--force")
        self.assertEqual((mine / "old/3_registers.cpp").read_text(), "// begun\n")
        self.assertIn("your turn", (mine / "3_registers.cpp").read_text())


@unittest.skipUnless(is_built(GPU[0]), "the build has sanitizers")
class Counters(unittest.TestCase):
    def test_the_page_of_a_gpu_ladder_has_the_counters_of_its_rungs(self):
        subprocess.run(["ninja", "-C", BUILD, GPU[0].program], check=True, stdout=subprocess.DEVNULL)
        for ladder in GPU:
            shown = call(BUILD / ladder.program, ladder.name).stdout
            page = ladder.rungs[0].page()[0].read_text()
            for rung in ladder.rungs:
                with self.subTest(rung.full_name):
                    cells = re.search(rf"^  {rung.name} +((?:[\d.]+ +)+)", shown, re.MULTILINE)[1].split()
                    row = re.search(rf"^\| {rung.name} \| (.*) \|$", page, re.MULTILINE)[1].replace(",", "").split(" | ")
                    self.assertEqual([float(cell) for cell in row], [float(cell) for cell in cells[:7]])
                    self.assertEqual(float(cells[7]), 0, "bank conflicts")


class Checks(Scratch):
    def check(self, status, *options):
        done = call(ROOT / "tools/step", "check", self.mine, "--build", BUILD, *options)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout + done.stderr

    def practise(self, name):
        self.rung = rungs.find(name)
        self.mine = self.folder / name.replace("/", "-")
        self.step("practice", name, self.mine)
        self.file = self.mine / self.rung.file.name

    def solve(self, old="", new=""):
        text = self.rung.file.read_text()
        self.assertIn(old, text)
        self.file.write_text(text.replace(old, new, 1) if old else text)

    def test_the_emptied_file_is_red_with_one_sentence(self):
        self.practise("matvec/3")
        self.assertEqual(self.check(1), "RED: your turn in 3_registers.cpp: Registers::run, Registers::multiply.\n")

    def test_the_right_file_is_green_in_every_ladder_and_stands_between_its_neighbours(self):
        for name, rung in TRIED.items():
            with self.subTest(rung.full_name):
                self.practise(rung.short)
                shutil.copyfile(rung.file, self.file)
                said = self.check(0)
                self.assertIn(f"GREEN: {rung.full_name} computes what {rung.ladder.rungs[0].name} does", said)
                at = rung.ladder.rungs.index(rung)
                for neighbour in rung.ladder.rungs[at - 1:at + 2]:
                    self.assertRegex(said, rf"\n  {neighbour.name} +[\d.]")
                self.assertRegex(said, rf"\n  {rung.name} +.* yours")

    def test_a_wrong_file_names_the_first_number_that_differs(self):
        self.practise("matvec/3")
        self.solve("for (; o < shape_.n_out; ++o) {", "for (; o < 0; ++o) {")
        self.assertRegex(self.check(1), r"\ARED: With x \[1, 1\] and W \[1, 1\], number 0 of the result is still 0\.5, as before the run, and 1-plain has "
                                        r"-?\d+\.\n\Z")
        self.practise("attention/5")
        self.solve("softmax.finish(out)", "softmax.finish(out), out[7] += 1.0f")
        self.assertRegex(self.check(1), r"\ARED: With \d+ heads?, .* number 7 of the result is .*, and 1-plain has .*\.\n\Z")

    @unittest.skipUnless(is_built(GPU[0]), "the build has sanitizers")
    def test_what_a_gpu_would_not_report_is_named(self):
        for name, old, new, said in (
                ("2", "distance = 16", "distance = 8", r"With W \[3, 31\] and x \[31\], number 0 of the result is .*, and 1-thread has .*\."),
                ("5", "  __syncthreads();\n", "", r"The kernel is wrong: block .* shared memory that another thread touched .*\."),
                ("7", "wait_group<kStages - 1>", "wait_group<kStages>", r"With W .* is -?nan, and 1-thread has .*\.")):
            with self.subTest(name):
                self.practise(f"gpu-matvec/{name}")
                self.solve(old, new)
                self.assertRegex(self.check(1), rf"\ARED: {said}\n\Z")
        self.assertIn("--sanitize is for code of the CPU", self.check(2, "--sanitize"))

    def take_below(self):
        """The code of the rung below, under this rung's name."""
        below = self.rung.below()
        text = below.file.read_text().replace(below.variable(), self.rung.variable()).replace(f'"{below.name}"', f'"{self.rung.name}"')
        self.file.write_text(text)

    @unittest.skipUnless(is_built(GPU[0]), "the build has sanitizers")
    def test_the_code_of_the_rung_below_is_red_on_a_gpu(self):
        for name, has in (("gpu-matvec/2", "32 sectors a request, and 1-thread has 32"), ("gpu-matvec/4", "16 bytes that a thread requests at once, and 3-wide-loads has 16"),
                          ("gpu-boundaries/3", "0 graphs, and 2-launches has 0")):
            with self.subTest(name):
                self.practise(name)
                self.take_below()
                self.assertEqual(self.check(1), f"RED: It computes what {self.rung.ladder.rungs[0].name} does, but not by the idea of "
                                                f"{self.rung.name}: it has {has}.\n")

    def test_a_rung_without_its_idea_is_green_with_a_question_on_a_cpu(self):
        self.practise("matvec/2")
        self.take_below()
        text = self.file.read_text()
        self.file.write_text(text.replace("for (std::int64_t o", "for (int time = 0; time < 2; ++time)\n      for (std::int64_t o", 1))
        self.assertIn("\n  No faster here than 1-plain: is the idea in?\n", self.check(0))
        shutil.copyfile(self.rung.file, self.file)
        self.assertNotIn("No faster", self.check(0))

    def test_writing_beyond_the_result_is_named(self):
        self.practise("matvec/2")
        self.solve("y[o] += x[i] * row[o];", "y[o] += x[i] * row[o];\n    y[shape_.n_out] = 0.0f;")
        self.assertRegex(self.check(1), r"\ARED: With .* it writes beyond the end of the result\.\n\Z")

    def test_code_that_cannot_be_compiled_or_crashes_is_named_with_its_line(self):
        self.practise("matvec/2")
        self.solve("y[o] += x[i]", "y[o] += z[i]")
        said = self.check(1)
        self.assertTrue(said.startswith("RED: 2_loop_order.cpp does not compile.\n2_loop_order.cpp:"), said)
        self.assertIn("'z'", said)
        self.solve("y[o] += x[i] * row[o];", "y[o] += x[i] * row[o - (1L << 42)];")
        self.assertRegex(self.check(1), r"\ARED: it crashed \((SIG\w+|status 1)\)\. tools/step check .* --sanitize shows where\.\n")

    def test_a_rung_that_never_ends_is_ended(self):
        self.practise("matvec/2")
        self.solve("y[o] += x[i] * row[o];", "while (x != y) y[o] += 1.0f;")
        self.assertIn("RED: it took longer than 2 seconds", self.check(1, "--limit", 2))

    def test_a_file_that_the_ladder_cannot_find_is_red(self):
        self.practise("matvec/2")
        self.solve("constexpr Rung kLoopOrder", "constexpr Rung kMine")
        self.assertEqual(self.check(1), "RED: 2_loop_order.cpp no longer defines kLoopOrder, by which the ladder finds it.\n")
        self.file.unlink()
        self.assertIn("2_loop_order.cpp is missing", self.check(1))


if __name__ == "__main__":
    unittest.main()
