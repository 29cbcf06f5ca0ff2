"""tools/step on a small tree with landed files: which step continues which, what is visible where, what is shown,
and what is refused."""

import os
import re
import shutil
import subprocess
import unittest
from unittest import mock

from support import ROOT, Scratch, snapshot

from step_commands import diff, series


def readme(number, title, *lines):
    """A step's README with `lines` below the summary."""
    return "\n\n".join([f"# {number} {title}", f"*Summary of {number}.*", *lines, "## The idea", "A sentence."]) + "\n"


def lines(count, start=1):
    return "".join(f"int line_{number};\n" for number in range(start, start + count))


def tree():
    """01 – 02 – 03 is the chain; 20 and 21 branch off 02, and 22 is a detour of 20. early.h of 01 and finished.h of
    02, which includes it, have landed; so early.h is visible from 02 on, and finished.h after 02."""
    early, finished = lines(3), '#include "early.h"\nint finished;\n'
    main = '#include "finished.h"\n'
    continued = "Continues [{0}](../{0})."
    return {
        "01-one": {"README.md": readme("01", "One"), "test.cpp": "1\n", "early.h": early, "main.cpp": '#include "early.h"\n'},
        "02-two": {"README.md": readme("02", "Two"),
                   "test.cpp": "2\n", "finished.h": finished, "main.cpp": main},
        "03-three": {"README.md": readme("03", "Three"), "test.cpp": "3\n", "main.cpp": main + "int three;\n"},
        "20-branch": {"README.md": readme("20", "Branch", continued.format("02-two")), "test.cpp": "20\n",
                      "main.cpp": main, "branch.h": lines(5)},
        "21-other": {"README.md": readme("21", "Other", continued.format("02-two")), "test.cpp": "21\n",
                     "main.cpp": main + lines(2)},
        "22-room": {"README.md": readme("22", "Room", "Continues [20-branch](../20-branch), as a detour."),
                    "test.cpp": "22\n", "main.cpp": main + lines(1), "branch.h": lines(5)},
        "23-beyond": {"README.md": readme("23", "Beyond", continued.format("20-branch")), "test.cpp": "23\n",
                      "main.cpp": main, "branch.h": lines(4)},
        "common/decoding": {"landed.txt": "# file, step\nearly.h 01-one\nfinished.h 02-two  # the last\n",
                            "early.h": early, "finished.h": finished, "always.h": "int always;\n"},
    }


class SmallTree(Scratch):
    def setUp(self):
        super().setUp()
        self.root = self.staircase(tree())

    def show(self, *arguments, **options):
        return self.step(*arguments, root=self.root, **options)

    def ask(self, expression):
        """What Python prints of this expression, where `steps` are the steps of the small tree by number."""
        code = ("import sys; sys.path.insert(0, 'tools'); from step_commands import series; "
                f"steps = {{step.number: step for step in series.steps()}}; print({expression})")
        done = subprocess.run(["python3", "-c", code], cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def path(self, name):
        return self.root / name

    def replace(self, name, old, new):
        text = self.path(name).read_text()
        self.assertIn(old, text)
        self.path(name).write_text(text.replace(old, new))


class Tree(SmallTree):
    def test_parents(self):
        self.assertEqual(self.ask("[step.parent and step.parent.number for step in steps.values()]"),
                         "[None, '01', '02', '02', '02', '20', '20']")
        self.assertEqual(self.ask("[step.number for step in steps['02'].descendants()]"), "['03', '20', '22', '23', '21']")
        self.assertEqual(self.ask("[step.number for step in steps.values() if step.detour]"), "['22']")

    def test_a_landed_file_is_visible_after_the_step_that_finished_it_and_all_that_it_includes(self):
        self.assertEqual(self.ask("[sorted(step.visible()) for step in steps.values()][:3]"),
                         "[[], ['early.h'], ['early.h', 'finished.h']]")
        # Were early.h finished later, finished.h would land with it.
        shutil.copy(self.path("common/decoding/early.h"), self.path("steps/03-three/early.h"))
        self.replace("common/decoding/landed.txt", "early.h 01-one", "early.h 03-three")
        self.assertEqual(self.ask("[sorted(steps[number].visible()) for number in ('03', '20')]"), "[[], []]")

    def test_an_include_means_the_folder_first_and_then_what_is_visible(self):
        def found(number, name):
            return self.ask(f"steps['{number}'].resolve('{name}')").removeprefix(f"{self.root}/")
        self.assertEqual(found("01", "early.h"), "steps/01-one/early.h")
        self.assertEqual(found("02", "early.h"), "common/decoding/early.h")
        self.assertEqual(found("02", "finished.h"), "steps/02-two/finished.h")
        self.assertEqual(found("01", "finished.h"), "None")
        self.assertEqual(found("01", "always.h"), "common/decoding/always.h")
        self.assertEqual(found("01", "common/decoding/always.h"), "common/decoding/always.h")
        self.assertEqual(found("01", "nowhere.h"), "None")

    def test_back_ups_and_hidden_files_are_no_part_of_a_step(self):
        for name in "branch.h~", ".branch.h.swp", ".hidden/a.h", "ANSWERS.md", "more/kept.h":
            self.path(f"steps/20-branch/{name}").parent.mkdir(exist_ok=True)
            self.path(f"steps/20-branch/{name}").write_text("int x;\n")
        self.assertEqual(self.ask("sorted(steps['20'].files())"), "['README.md', 'branch.h', 'main.cpp', 'more/kept.h', 'test.cpp']")
        self.assertEqual(self.ask("sorted(steps['20'].lesson())"), "['branch.h', 'main.cpp', 'more/kept.h']")

    def test_the_lines_of_a_readme(self):
        for step, files in tree().items():
            if step[0].isdigit():
                said = files["README.md"].split("\n\n")[2]
                self.assertEqual(self.ask(f"'\\n'.join(steps['{step[:2]}'].relations())"), "" if said == "## The idea" else said)
        early, both = ("This step includes [early.h](../../common/decoding/early.h) from 01",
                       ", [finished.h](../../common/decoding/finished.h) from\n02")  # wrapped
        for step, text in (("01", None), ("02", early + "."), ("03", early + both + "."), ("20", early + both + ".")):
            block = f"<details>\n<summary>Files of earlier steps</summary>\n\n{text}\n\n</details>" if text else ""
            self.assertEqual(self.ask(f"'\\n'.join(steps['{step}'].included())"), block)

    def test_a_step_is_shown_by_the_commands_below_its_headline(self):
        path = self.path("steps/02-two/README.md")
        text = path.read_text()
        self.assertEqual(self.ask("steps['02'].command()"), "[]")
        headline = re.search(r"^\*.+\*\n\n", text, re.MULTILINE)[0]
        path.write_text(text.replace(headline, f"{headline}    tools/run 02 --a\n    tools/run 02 \\\n      --b\n\n    tools/run 02 --not-this\n\n", 1))
        self.assertEqual(self.ask("steps['02'].command()"), str(["tools/run 02 --a", "tools/run 02 \\", "--b"]))

    def test_list_draws_the_tree_and_the_limits(self):
        drawn = [line.split(" +")[0].rstrip() for line in self.show("list").split("\n\n")[0].splitlines()]
        self.assertEqual(drawn, ["01 One", "02 Two", "├─ 20 Branch", "│  ├─ 22 Room (detour)", "│  23 Beyond",
                                 "├─ 21 Other", "03 Three"])
        rows = [line.split("  Summary of ")[0] for line in self.show("list").split("\n\n")[0].splitlines()]
        numbers = [[word for word in row.split() if re.fullmatch(r"[+-]\d+", word)] for row in rows]
        self.assertEqual(numbers, [["+4"], ["+3", "-1"], ["+5"], ["+1"], ["+0", "-1"], ["+2"], ["+1"]])
        self.assertEqual([" ".join(line.split()) for line in self.show("list").split("\n\n")[1].splitlines()], [
            "most added lines: 5 of 100 20-branch", "in a detour, and in 17 to 19: 1 of 120 22-room", "median of all: 2 of 50",
            "most files of code in a folder: 2 of 8 01-one and 4 more", "longest main.cpp: 3 of 40 21-other"])

    def test_what_a_terminal_shows_of_a_headline(self):
        rows = [("01 A", 12, 0, "A headline of thirty characters"), ("20 Longer", 5, 3, "Short")]
        for columns, lines in (
                (80, ["01 A         +12       A headline of thirty characters", "20 Longer     +5   -3  Short"]),
                (53, ["01 A         +12       A headline of thirty characte…", "20 Longer     +5   -3  Short"]),
                (54, ["01 A         +12       A headline of thirty characters", "20 Longer     +5   -3  Short"]),
                (41, ["01 A         +12", "20 Longer     +5   -3"])):
            with self.subTest(columns), mock.patch.object(diff.sys, "stdout", mock.Mock(isatty=lambda: True)), \
                    mock.patch.object(diff.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24))):
                self.assertEqual(list(diff.headline_rows(rows)), lines)
        with mock.patch.object(diff.sys, "stdout", mock.Mock(isatty=lambda: False)), \
                mock.patch.object(diff.shutil, "get_terminal_size", lambda: os.terminal_size((41, 24))):
            self.assertEqual(len(list(diff.headline_rows(rows))[0]), 54)

    def test_bars_are_as_long_as_there_is_room(self):
        def bars(columns, *rows):
            with mock.patch.object(diff.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24))):
                return list(diff.bar_rows(rows, False))

        self.assertEqual(bars(80), [])
        self.assertEqual(bars(80, ("a.h", 3, 0), ("long.cpp", 1, 2), ("none.h", 0, 0)),
                         ["a.h          +3       +++", "long.cpp     +1   -2  +--", "none.h       +0"])
        for columns, most in ((24, 10), (33, 10), (34, 11), (83, 60), (200, 60)):
            self.assertEqual([line.count("+") - 1 for line in bars(columns, ("a.h", 600, 0), ("b.h", 1, 0))], [most, 1])
        self.assertEqual([(line.count("+") - 1, line.count("-") - 1) for line in bars(83, ("a.h", 60, 60))], [(30, 30)])

    def test_names_are_in_as_many_columns_as_fit(self):
        names = ["01-a", "02-bb", "03-c", "20-d", "21-e"]
        for columns, shown in ((16, "  01-a   20-d\n  02-bb  21-e\n  03-c"), (15, "  01-a\n  02-bb\n  03-c\n  20-d\n  21-e"),
                               (3, "  01-a\n  02-bb\n  03-c\n  20-d\n  21-e"), (37, "  01-a   02-bb  03-c   20-d   21-e")):
            with mock.patch.object(series.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24))):
                self.assertEqual(series.columns(names), shown)

    def test_a_terminal_without_the_characters_of_the_tree_gets_others(self):
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        drawn = self.show("list", env=environment)
        self.assertTrue(drawn.isascii())
        self.assertIn("|- 20 Branch", drawn)
        self.assertIn("| +3 -1 |", self.show("list", "--markdown", env=environment))

    def test_a_limit_that_is_not_kept_is_told(self):
        self.path("steps/21-other/main.cpp").write_text(lines(121))
        said = [" ".join(line.split()) for line in self.show("list").splitlines()]
        self.assertIn("most added lines: 121 of 100, too many 21-other", said)
        self.assertIn("longest main.cpp: 121 of 40, too many 21-other", said)

    def test_each_step_of_the_list_has_its_headline(self):
        rows = self.show("list").split("\n\n")[0].splitlines()
        self.assertEqual([re.search(r"Summary of (\d\d)\.$", row)[1] for row in rows], ["01", "02", "20", "22", "23", "21", "03"])

    def test_list_as_a_page(self):
        page = self.show("list", "--markdown").splitlines()
        self.assertIn("## The main path", page)  # no step of this staircase begins a branch
        self.assertEqual([line for line in page if line.startswith("|")], [
            "| step | continues | headline | lines |",
            "|---|---|---|---|",
            "| [01-one](../steps/01-one) |  | Summary of 01. | +4 |",
            "| [02-two](../steps/02-two) |  | Summary of 02. | +3 −1 |",
            "| [03-three](../steps/03-three) |  | Summary of 03. | +1 |",
            "| [20-branch](../steps/20-branch) | 02 | Summary of 20. | +5 |",
            "| [21-other](../steps/21-other) | 02 | Summary of 21. | +2 |",
            "| [22-room](../steps/22-room) | 20, detour | Summary of 22. | +1 |",
            "| [23-beyond](../steps/23-beyond) | 20 | Summary of 23. | +0 −1 |"])

    def test_a_file_that_has_landed_is_one_line_and_counts_nothing(self):
        said = self.show("diff", 20)
        self.assertEqual(said.splitlines()[0], "landed: finished.h")
        self.assertNotIn("-int finished;", said)
        self.assertNotIn("early.h", said)
        self.assertIn("+int line_5;", said)
        self.assertEqual([line.split() for line in self.show("diff", 20, "--stat").splitlines()],
                         [["landed:", "finished.h"], ["branch.h", "+5", "+++++"]])
        self.assertIn("landed: early.h\n", self.show("diff", 2))
        self.assertNotIn("landed", self.show("diff", 22) + self.show("diff", 1))
        self.assertIn("\033[36mlanded: finished.h\n\033[0m", self.show("diff", 20, "--color", "always"))

    def test_the_way_from_a_step_to_one_after_it(self):
        said = self.show("diff", 1, 23)
        self.assertEqual(said.splitlines()[:2], ["landed: early.h, as 01-one left it", "landed: finished.h, as 02-two left it"])
        self.assertIn("+int line_4;", said)
        self.assertIn("does not come after 03-three", self.show("diff", 3, 20, status=2))
        self.assertIn("does not come after 20-branch", self.show("diff", 20, 2, status=2))

    def test_the_patch_makes_the_step_of_its_parent_without_what_landed(self):
        for parent, step, landed in (("01-one", "02-two", ["early.h"]), ("02-two", "20-branch", ["finished.h"]),
                                     ("02-two", "03-three", ["finished.h"]), ("20-branch", "23-beyond", [])):
            with self.subTest(step):
                patch = self.show("diff", step, "--all")
                for command in (["git", "apply", "-p1"], ["patch", "-sp1"]):
                    if not shutil.which(command[0]):
                        continue
                    work = self.folder / step / command[0]
                    shutil.copytree(self.root / "steps" / parent, work)
                    for name in landed:
                        (work / name).unlink()
                    subprocess.run(command, cwd=work, input=patch, text=True, check=True)
                    self.assertEqual({name: content for name, (_, content) in snapshot(work).items()},
                                     {name: content for name, (_, content) in snapshot(self.root / "steps" / step).items()})

    def test_a_staircase_that_contradicts_itself_is_a_sentence(self):
        before = {name: self.path(name).read_text() for name in (
            "common/decoding/landed.txt", "common/decoding/early.h", *(f"steps/{step}/README.md" for step in tree() if "/" not in step))}
        manifest = "common/decoding/landed.txt"
        for name, old, new, words in (
            ("steps/21-other/README.md", "[02-two](../02-two)", "[09-nine](../09-nine)", "21-other continues 09-nine, but there is no such step"),
            ("steps/21-other/README.md", "(../02-two)", "(../01-one)", "names 02-two as its parent, but its link leads to 01-one"),
            ("steps/21-other/README.md", "Continues", "Follows", "does not name the step that it continues; add a line like"),
            ("steps/20-branch/README.md", "[02-two](../02-two)", "[23-beyond](../23-beyond)",
             "The parents form a cycle: 20-branch, which continues 23-beyond, which continues 20-branch."),
            ("steps/21-other/README.md", "[02-two](../02-two)", "[21-other](../21-other)",
             "The parents form a cycle: 21-other, which continues 21-other."),
            ("steps/23-beyond/README.md", "[20-branch](../20-branch)", "[22-room](../22-room)", "22-room, which is a detour"),
            (manifest, "early.h 01-one", "early.h", "'early.h' must be a file and the step that finished it"),
            (manifest, "01-one", "07-seven", "early.h belongs to 07-seven, but there is no such step"),
            (manifest, "early.h", "late.h", "late.h belongs to 01-one, but there is no common/decoding/late.h"),
            (manifest, "01-one", "03-three", "early.h belongs to 03-three, but there is no steps/03-three/early.h"),
            (manifest, "# file, step", "early.h 01-one", "early.h is listed twice"),
        ):
            with self.subTest(words):
                self.replace(name, old, new)
                for arguments in (["list"], ["diff", 2], ["practice", 2], ["climb", 2]):
                    said = self.show(*arguments, status=1)
                    self.assertIn(words, said)
                    self.assertEqual(said.count("\n"), 1, said)
                self.path(name).write_text(before[name])

    def test_a_build_file_that_ends_elsewhere_is_a_sentence(self):
        self.path("meson.build").write_text("project('x', 'cpp')\n")
        said = self.show("history", self.root / "repository", status=1)
        self.assertIn("meson.build has no line subdir('common') any more", said)
        self.assertFalse((self.root / "repository").exists())

    def test_files_that_need_each_other_lie_on_one_line_of_steps(self):
        for step in ("03-three", "21-other"):
            self.path(f"steps/{step}/{step[:2]}.h").write_text("int x;\n")
        self.path("common/decoding/03.h").write_text('#include "21.h"\n')
        self.path("common/decoding/21.h").write_text("int x;\n")
        self.replace("common/decoding/landed.txt", "# file, step", "03.h 03-three\n21.h 21-other")
        self.assertIn("03.h of 03-three includes 21.h of 21-other, but no step descends from both", self.show("list", status=1))

    def test_nothing_continues_the_documented_benchmarks(self):
        for number, name in (("18", "18-speed"), ("19", "19-cache")):
            folder = self.path(f"steps/{name}")
            folder.mkdir()
            (folder / "README.md").write_text(readme(number, "Speed"))
        self.assertEqual(self.ask("steps['19'].parent.number"), "18")  # but 19 itself
        self.replace("steps/21-other/README.md", "[02-two](../02-two)", "[19-cache](../19-cache)")
        self.assertIn("21-other continues 19-cache, a benchmark of the documented history", self.show("list", status=1))

    def test_two_steps_of_one_number(self):
        self.path("steps/03-again").mkdir()
        self.assertIn("03-again and 03-three have the same number", self.show("list", status=1))

    def test_practice_sees_what_had_landed_before_the_step(self):
        for number, names in ((1, []), (2, ["early.h"]), (20, ["early.h", "finished.h"])):
            self.show("practice", number, self.folder / str(number))
            library = self.folder / str(number) / "build/library"
            self.assertEqual(sorted(path.name for path in library.iterdir()), names)

    def test_history_writes_into_an_empty_folder_or_a_new_one(self):
        self.make_floor()
        full = self.folder / "full"
        full.mkdir()
        (full / "mine").touch()
        for taken in (full, full / "mine"):
            self.assertEqual(self.show("history", taken, status=2),
                             f"tools/step: {taken} is not empty; name an empty folder or one that does not exist yet.\n")
        self.assertEqual([path.name for path in full.iterdir()], ["mine"])
        (self.folder / "empty").mkdir()
        self.show("history", self.folder / "empty")
        self.assertTrue((self.folder / "empty/main.cpp").is_file())

    def test_history_follows_the_parents(self):
        self.make_floor()
        repository = self.folder / "history"
        # A file that a person's git ignores is in the history all the same.
        ignore = self.folder / "settings/git/ignore"
        ignore.parent.mkdir(parents=True)
        ignore.write_text("*.h\nfloor\n")
        self.assertIn("branches: other, room, beyond", self.show("history", repository, env={
            **os.environ, "XDG_CONFIG_HOME": str(ignore.parents[1])}))
        ask = lambda *arguments: self.git(repository, *arguments).split()  # noqa: E731
        for step, parent in {"02-two": "01-one", "03-three": "02-two", "20-branch": "02-two", "21-other": "02-two",
                             "22-room": "20-branch", "23-beyond": "20-branch"}.items():
            self.assertEqual(ask("rev-parse", f"refs/tags/{step}^"), ask("rev-parse", f"refs/tags/{parent}"), step)
        for branch, step in {"main": "03-three", "other": "21-other", "room": "22-room", "beyond": "23-beyond"}.items():
            self.assertEqual(ask("rev-parse", f"refs/heads/{branch}"), ask("rev-parse", f"refs/tags/{step}"))
        self.assertEqual(ask("branch", "--format=%(refname:short)"), ["beyond", "main", "other", "room"])
        self.assertEqual(self.git(repository, "status", "--porcelain", "--branch"), "## main\n")
        for step, files in tree().items():
            if "/" in step:
                continue
            found = set(ask("ls-tree", "-r", "--name-only", step))
            landed = {name for name in ("early.h", "finished.h") if (name, step) not in {
                ("early.h", "01-one"), ("finished.h", "01-one"), ("finished.h", "02-two")}}
            self.assertEqual({name for name in found if name.startswith("common/")},
                             {"common/floor", *(f"common/decoding/{name}" for name in {"always.h", *landed})}, step)
            self.assertEqual(found & {"early.h", "finished.h", "branch.h", "main.cpp"}, set(files) - {"README.md", "test.cpp"})

    def make_floor(self):
        """The files without which there is no history."""
        for name in ("LICENSE", "meson_options.txt", "common/floor", "kernels/x", "models/tales-6m/x", "models/tales-1m/x", "models/tales-new-1m/x",
                     "models/tales-chat.jinja", "tests/x.h", "tests/x.cpp", "tests/reference/x"):
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).write_text("floor\n")
        shutil.copy(ROOT / "meson.build", self.root)


class Climb(SmallTree):
    """Each child gets what its own parent received, and a landed file follows the step that finished it."""

    def test_an_edit_reaches_all_branches(self):
        self.replace("steps/02-two/main.cpp", '#include "finished.h"\n', '// Two.\n#include "finished.h"\n')
        before = snapshot(self.root)
        self.show("climb", 2)
        after = snapshot(self.root)
        changed = {name for name in after if before.get(name) != after[name]}
        self.assertEqual(changed, {f"steps/{step}/main.cpp" for step in ("03-three", "20-branch", "21-other", "22-room", "23-beyond")})
        for name in changed:
            self.assertEqual(after[name][1], b"// Two.\n" + before[name][1])

    def test_an_edit_of_a_branch_stays_in_it(self):
        self.replace("steps/20-branch/branch.h", "int line_1;\n", "int first;\n")
        before = snapshot(self.root)
        self.show("climb", 20)
        after = snapshot(self.root)
        self.assertEqual({name for name in after if before.get(name) != after[name]},
                         {"steps/22-room/branch.h", "steps/23-beyond/branch.h"})
        self.assertIn("last step of its line", self.show("climb", 21, status=2))

    def test_each_child_gets_what_its_parent_received(self):
        """A conflict that was resolved in one branch does not concern the others."""
        for step, word in (("20-branch", "twenty"), ("22-room", "twenty"), ("23-beyond", "twenty"), ("21-other", "other")):
            self.path(f"steps/{step}/main.cpp").write_text(f"{word}\n")
        self.path("steps/02-two/main.cpp").write_text("two\n")
        self.path("steps/03-three/main.cpp").write_text("two\n")
        self.commit(self.root)
        self.path("steps/02-two/main.cpp").write_text("TWO\n")
        self.assertIn("steps/20-branch/main.cpp", self.show("climb", 2, status=1))
        self.assertEqual(self.path("steps/03-three/main.cpp").read_text(), "TWO\n")
        self.path("steps/20-branch/main.cpp").write_text("TWENTY\n")
        self.assertIn("steps/21-other/main.cpp", self.show("climb", "--continue", status=1))
        for step in ("22-room", "23-beyond"):
            self.assertEqual(self.path(f"steps/{step}/main.cpp").read_text(), "TWENTY\n")
        self.path("steps/21-other/main.cpp").write_text("OTHER\n")
        self.show("climb", "--continue")
        self.assertIn("Nothing to carry", self.show("climb", 2))

    def test_a_landed_file_follows_the_step_that_finished_it(self):
        for arguments, step, name in (((1,), "01-one", "early.h"), ((2,), "02-two", "finished.h")):
            with self.subTest(name):
                edited = self.path(f"steps/{step}/{name}")
                edited.write_text("// New.\n" + edited.read_text())
                before = snapshot(self.root)
                self.assertIn(f"common/decoding/{name}: follows {step}", self.show("climb", *arguments))
                after = snapshot(self.root)
                self.assertEqual({name for name in after if before.get(name) != after[name]}, {f"common/decoding/{name}"})
                self.assertEqual(after[f"common/decoding/{name}"][1], edited.read_bytes())

    def test_an_edit_from_below_reaches_the_library_when_its_owner_has_it(self):
        """early.h is finished in 02 here; an edit of 01 has to pass through it, and a conflict there comes first."""
        self.path("steps/02-two/early.h").write_text(lines(3) + "int last;\n")
        shutil.copy(self.path("steps/02-two/early.h"), self.path("common/decoding/early.h"))
        self.replace("common/decoding/landed.txt", "early.h 01-one", "early.h 02-two")
        self.commit(self.root)
        self.replace("steps/01-one/early.h", "int line_1;\n", "int first;\n")
        self.assertIn("common/decoding/early.h: follows 02-two", self.show("climb", 1))
        self.assertEqual(self.path("common/decoding/early.h").read_text(), "int first;\nint line_2;\nint line_3;\nint last;\n")
        self.commit(self.root)

        self.replace("steps/01-one/early.h", "int line_3;\n", "")  # in addition to what 02 adds
        library = self.path("common/decoding/early.h").read_text()
        before = snapshot(self.root)
        self.show("climb", 1, status=1)
        self.assertEqual(self.path("common/decoding/early.h").read_text(), library)
        self.path("steps/02-two/early.h").write_text("resolved\n")
        self.show("climb", "--continue")
        self.assertEqual(self.path("common/decoding/early.h").read_text(), "resolved\n")
        self.assertNotEqual(snapshot(self.root), before)

    def test_abort_puts_the_library_back(self):
        for step in ("01-one", "02-two"):
            self.path(f"steps/{step}/main.cpp").write_text(f"{step}\n")
        self.commit(self.root)
        self.replace("steps/01-one/early.h", "int line_1;\n", "int first;\n")
        self.path("steps/01-one/main.cpp").write_text("edited\n")
        before = snapshot(self.root)
        self.assertIn("common/decoding/early.h: follows 01-one", self.show("climb", 1, status=1))
        self.assertIn("first", self.path("common/decoding/early.h").read_text())
        self.show("climb", "--abort")
        self.assertEqual(snapshot(self.root), before)

    def test_a_step_after_the_owner_names_where_to_edit(self):
        self.path("steps/03-three/finished.h").write_text("mine\n")
        self.path("steps/20-branch/finished.h").write_text("mine\n")
        self.assertIn("finished.h is finished by 02-two and has landed in common/decoding; edit it there",
                      self.show("climb", 20, status=1))


if __name__ == "__main__":
    unittest.main()
