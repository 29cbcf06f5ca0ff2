"""tools/step history: the same repository each time, the steps in it, and a program that builds.

The first and the last commit are configured and their main.cpp is compiled. With STAIRCASE_ALL_COMMITS=1 every commit
is built whole and passes its test."""

import os
import subprocess
import unittest

from support import STEPS, Scratch, call

FLOOR = ("common/model/gpt2.cpp", "kernels/cpu/linear.cpp", "models/tales-6m/model.safetensors", "models/tales-1m/vocab.json",
         "tests/step.h", "tests/doctest_main.cpp", "tests/reference/greedy.json", "meson.build", "LICENSE", ".gitignore")


class History(Scratch):

    def setUp(self):
        super().setUp()
        self.repository = self.folder / "history"
        self.said = self.step("history", self.repository)

    def blob(self, revision):
        return subprocess.run(["git", "show", revision], cwd=self.repository, capture_output=True, check=True).stdout

    def test_each_commit_is_a_step(self):
        log = self.git(self.repository, "log", "--reverse", "--format=%s|%an|%cn|%D").splitlines()
        self.assertEqual([line.rsplit(", ", 1)[-1] for line in log],
                         [f"{step.heading()}|Staircase|Staircase|tag: {step.name}" for step in STEPS[:-1]] +
                         [f"tag: {STEPS[-1].name}"])
        dates = list(map(int, self.git(self.repository, "log", "--reverse", "--format=%ct").split()))
        self.assertEqual(dates, sorted(set(dates)))
        self.assertEqual(self.git(self.repository, "status", "--porcelain"), "")
        floor = None
        for step in STEPS:
            with self.subTest(step.name):
                names = self.git(self.repository, "ls-tree", "-r", "--name-only", step.name).splitlines()
                for name, path in step.files().items():
                    self.assertEqual(self.blob(f"{step.name}:{name}"), path.read_bytes(), name)
                rest = set(names) - set(step.files())
                self.assertEqual(rest, floor or rest)
                floor = rest
                for name in FLOOR:
                    self.assertIn(name, rest)
                message = self.git(self.repository, "log", "-1", "--format=%B", step.name)
                prose = [line for line in message.splitlines() if not line.startswith("    ")]  # formulas stay whole
                self.assertLessEqual(max(map(len, prose)), 80)
                idea = "".join(step.section("The idea").split())
                self.assertEqual("".join(message.split()), "".join(step.heading().split()) + idea)

    def test_later_commits_touch_the_program_only(self):
        first = STEPS[0].name
        changed = set(self.git(self.repository, "diff", "--name-only", first, "main").splitlines())
        self.assertLessEqual(changed, {name for step in STEPS for name in step.files()})
        log = self.git(self.repository, "log", "--name-only", "--format=", f"{first}..main", "--", "*.h", "main.cpp")
        self.assertNotIn("/", log)

    def test_the_same_hashes_whoever_asks(self):
        home = self.folder / "home"
        home.mkdir()
        (home / ".gitconfig").write_text("[user]\nname = Me\nemail = me@here\n[core]\nautocrlf = true\n"
                                         "[commit]\ngpgsign = true\n[init]\ndefaultBranch = odd\n")
        mask = os.umask(0o077)
        self.addCleanup(os.umask, mask)
        again = self.folder / "again"
        again.mkdir()  # an empty folder will do
        self.step("history", again, env={**os.environ, "HOME": str(home), "TZ": "Asia/Tokyo", "LANG": "C",
                                         "GIT_AUTHOR_NAME": "Me", "GIT_DIR": "/nowhere"})
        self.assertEqual(self.git(again, "rev-parse", "main"), self.git(self.repository, "rev-parse", "main"))
        self.assertEqual(self.git(again, "tag"), self.git(self.repository, "tag"))

    def test_a_folder_in_use_is_refused(self):
        self.assertIn("not empty", self.step("history", self.repository, status=2))
        file = self.folder / "file"
        file.write_text("mine")
        self.step("history", file, status=2)
        self.assertEqual(file.read_text(), "mine")

    def test_it_builds(self):
        clone = self.folder / "clone"
        self.git(self.folder, "clone", "-q", str(self.repository), str(clone))
        everything = bool(os.environ.get("STAIRCASE_ALL_COMMITS"))
        for step in STEPS if everything else (STEPS[0], STEPS[-1]):
            with self.subTest(step.name):
                self.git(clone, "checkout", "-q", step.name)
                build = clone / "build"
                commands = [] if build.exists() else [["meson", "setup", build, clone]]
                if everything:
                    commands += [["ninja", "-C", build], ["meson", "test", "-C", build]]
                else:
                    commands += [["ninja", "-C", build, "staircase.p/main.cpp.o"]]
                for command in commands:
                    done = call(*command, timeout=1200)
                    self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])


if __name__ == "__main__":
    unittest.main()
