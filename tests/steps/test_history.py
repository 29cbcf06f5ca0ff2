"""tools/step history: the same repository each time, the steps in it, and a program that builds.

The first commit and the ends of main and of the longest branch are configured and their main.cpp is compiled. With
STAIRCASE_ALL_COMMITS=1 every commit is built whole and passes its test."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import ROOT, STEPS, Scratch, call, hunks, series

FLOOR = ("common/model/gpt2.cpp", "kernels/cpu/linear.cpp", "models/tales-6m/model.safetensors", "models/tales-1m/vocab.json",
         "tests/step.h", "tests/doctest_main.cpp", "tests/reference/greedy.json", "meson.build", "LICENSE", ".gitignore")

# What steps get of other branches, since files that are given to them include it.
OF_OTHERS = {**dict.fromkeys(("94-continued-cache", "95-kept-answers", "96-dropped-turns", "143-saved-cache"),
                             ("ring_kv_cache.h",)),
             "121-drafts-in-a-batch": ("prompt_lookup.h", "speculative.h"),
             **dict.fromkeys(("66-http-server", "67-cancellation", "68-graceful-shutdown"), ("ring_kv_cache.h",)),
             "97-chat-server": ("known_tokens.h", "ring_kv_cache.h"),
             **dict.fromkeys(("122-urgent-requests", "123-draft-models"),
                             ("beam_search.h", "drafts.h", "known_tokens.h", "priorities.h", "prompt_lookup.h", "ring_kv_cache.h", "speculative.h"))}


class History(Scratch):

    @classmethod
    def setUpClass(cls):
        """One repository for all of them: none changes it."""
        cls.repository = Path(cls.enterClassContext(tempfile.TemporaryDirectory())).resolve() / "history"
        done = call(ROOT / "tools/step", "history", cls.repository)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.said = done.stdout + done.stderr

    def blob(self, revision):
        return subprocess.run(["git", "show", revision], cwd=self.repository, capture_output=True, check=True).stdout

    def test_each_commit_is_a_step_and_follows_that_of_its_parent(self):
        floor = None
        for step in STEPS:
            with self.subTest(step.name):
                said = self.git(self.repository, "log", "-1", "--format=%s|%an|%cn|%P", f"refs/tags/{step.name}").strip()
                parent = self.git(self.repository, "rev-parse", f"refs/tags/{step.parent.name}").strip() if step.parent else ""
                self.assertEqual(said, f"{step.heading()}|Staircase|Staircase|{parent}")
                landed = {f"common/decoding/{name}": file.path for name, file in step.visible().items()}
                landed |= {f"common/decoding/{name}": step.library[name].path for name in OF_OTHERS.get(step.name, ())}
                names = self.git(self.repository, "ls-tree", "-r", "--name-only", step.name).splitlines()
                for name, path in {**step.files(), **landed}.items():
                    if name == "README.md":
                        continue
                    self.assertEqual(self.blob(f"{step.name}:{name}"), path.read_bytes(), name)
                rest = set(names) - set(step.files()) - set(landed)
                self.assertEqual(rest, floor or rest)
                floor = rest
                for name in FLOOR:
                    self.assertIn(name, rest)
                message = self.git(self.repository, "log", "-1", "--format=%B", step.name)
                prose = [line for line in message.splitlines() if not line.startswith(("    ", "|"))]  # formulas stay whole
                self.assertLessEqual(max(map(len, prose)), 80)
                text = self.blob(f"{step.name}:README.md").decode()
                idea = "".join(series.section(hunks.without(text), "The idea").split())
                self.assertEqual("".join(message.split()), "".join(step.heading().split()) + idea)
        for file in STEPS[0].library:
            self.assertNotIn(f"common/decoding/{file}", floor)

    def test_a_readme_names_only_what_is_there(self):
        tags = set(self.git(self.repository, "tag").split())
        for step in STEPS:
            with self.subTest(step.name):
                text = hunks.without(self.blob(f"{step.name}:README.md").decode())
                names = set(self.git(self.repository, "ls-tree", "-r", "--name-only", step.name).split())
                names |= {str(parent) for name in names for parent in Path(name).parents}
                self.assertNotRegex(text, r"(?<![\w/])tools/", "a clone of the history has no tools")
                self.assertNotIn("../", text)
                self.assertNotRegex(text, r"(?m)^!", "what is left of a picture")
                self.assertNotIn("docs/benchmarks", text)
                for target in re.findall(r"\]\((?!https?:)([^)]*)\)", re.sub(r"(?m)^    .*", "", text)):
                    self.assertIn(target, names)
                for place in re.findall(r"`((?:common|kernels|tests|models)/[\w./-]+)`", text):
                    self.assertIn(place, names)
                for tag in re.findall(r"git show ([\w-]+)|the commit `([\w-]+)`", text):
                    self.assertIn("".join(tag), tags)
                self.assertIn("`meson setup build && ninja -C build` builds", text)
                self.assertRegex(text, r"\n    meson test -C build( +#.*)?\n")
                self.assertIn("build/staircase ", text)

    def test_branches(self):
        self.assertEqual(self.git(self.repository, "status", "--porcelain", "--branch"), "## main\n")
        last = [step for step in STEPS if int(step.number) <= series.CHAIN][-1]
        ends = {"main": last.name, **{step.slug: step.name for step in STEPS if not step.children and step is not last}}
        self.assertEqual(self.git(self.repository, "branch", "--format=%(refname:short)").split(), sorted(ends))
        for branch, step in ends.items():
            self.assertEqual(self.git(self.repository, "rev-parse", f"refs/heads/{branch}"),
                             self.git(self.repository, "rev-parse", f"refs/tags/{step}"))
        dates = list(map(int, self.git(self.repository, "log", "--reverse", "--format=%ct").split()))
        self.assertEqual(dates, sorted(set(dates)))

    def test_every_build_folder_is_ignored_and_nothing_else(self):
        clone = self.folder / "clone"
        self.git(self.folder, "clone", "-q", str(self.repository), str(clone))
        for folder in ("build", "build-debug", "build2", "steps/build", "notes"):
            (clone / folder).mkdir(parents=True)
            (clone / folder / "file").write_text("")
        self.assertEqual(self.git(clone, "status", "--porcelain"), "?? notes/\n?? steps/\n")

    def test_later_commits_touch_the_program_and_the_library_only(self):
        first = STEPS[0].name
        for step in STEPS[1:]:
            changed = self.git(self.repository, "diff", "--name-only", first, step.name).splitlines()
            names = {name for other in (STEPS[0], step) for name in other.files()}
            self.assertLessEqual({name for name in changed if not name.startswith("common/decoding/")}, names)

    def test_the_same_hashes_whoever_asks(self):
        home = self.folder / "home"
        home.mkdir()
        (home / ".gitconfig").write_text("[user]\nname = Me\nemail = me@here\n[core]\nautocrlf = true\n"
                                         "[commit]\ngpgsign = true\n[init]\ndefaultBranch = odd\n")
        (home / ".config/git").mkdir(parents=True)
        (home / ".config/git/ignore").write_text("*.h\n")  # a person's own
        mask = os.umask(0o077)
        self.addCleanup(os.umask, mask)
        again = self.folder / "again"
        again.mkdir()  # an empty folder will do
        self.step("history", again, env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"),
                                         "TZ": "Asia/Tokyo", "LANG": "C", "GIT_AUTHOR_NAME": "Me", "GIT_DIR": "/nowhere"})
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
        deepest = max(STEPS, key=lambda step: (len(step.ancestors()), step.number))
        last = [step for step in STEPS if int(step.number) <= series.CHAIN][-1]
        for step in STEPS if everything else dict.fromkeys((STEPS[0], last, deepest)):
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
