"""tools/step climb on small staircases, and on a copy of the real one."""

import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from support import ROOT, STEPS, Scratch, copy_tool, snapshot
from step_commands.climb import LINK, PLAIN, PROGRAM, conflicts_left, merge, merge_file, merge_lines


def lines(*words):
    return "".join(f"{word}\n" for word in words)


BASE = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def small():
    """Step n adds the line `step n` at its end; 03 also rewrites `nine`; `same.h` never changes."""
    steps = {}
    for number in range(1, 7):
        body = [*BASE[:-1], "nine" if number < 3 else "NINE", *(f"step {n}" for n in range(1, number + 1))]
        steps[f"{number:02}-step"] = {
            "a.h": lines(*body), "same.h": lines("same"), "README.md": f"# {number:02} Step\n", "test.cpp": f"{number}\n",
            "picture.bin": b"\0\1\2" if number < 4 else b"\0\1\3",
        }
    return steps


class Merged(unittest.TestCase):
    """One file of a later step, from what the edit has made of it and what the step had: [mode, content]."""

    STEP = SimpleNamespace(name="07-later", parent=SimpleNamespace(name="06-edited"), visible=lambda: {"landed.h": None})

    def merged(self, base, theirs, mine, name="a.h"):
        old, new, ours = ({} if file is None else {name: file} for file in (base, theirs, mine))
        return merge(old, new, {**ours, "other.h": [PLAIN, b"o"]}, self.STEP)

    def test_a_file_that_the_step_has_as_it_was_becomes_as_it_is(self):
        one, two, three = [PLAIN, b"1\n"], [PLAIN, b"2\n"], [PLAIN, b"3\n"]
        for base, theirs, mine, result, what in [
                (one, two, one, two, "follows"), (one, None, one, None, "deleted"), (None, two, None, two, "added"),
                (one, two, two, two, "already so"), (one, None, None, None, "already so"), (None, two, two, two, "already so"),
                (one, two, None, None, "left out, since this step has no such file")]:
            with self.subTest(what, base=base, theirs=theirs):
                files, report, conflicts = self.merged(base, theirs, mine)
                self.assertEqual(files, {"other.h": [PLAIN, b"o"], **({} if result is None else {"a.h": result})})
                self.assertEqual((report, conflicts), ([("a.h", what)], []))
        self.assertEqual(self.merged(one, one, three)[1:], ([], []))  # not edited at all
        self.assertEqual(self.merged(one, two, None, "landed.h")[1], [("landed.h", "has landed in common/decoding")])

    def test_the_mode_is_that_of_the_side_that_changed_it(self):
        text, more = b"1\n", b"1\n2\n"
        for base, theirs, mine, result, what in [
                ([PLAIN, text], [PROGRAM, text], [PLAIN, more], [PROGRAM, more], "merged (its mode)"),
                ([PLAIN, text], [PLAIN, more], [PROGRAM, text], [PROGRAM, more], "follows"),
                ([PLAIN, text], [PROGRAM, more], [PLAIN, more], [PROGRAM, more], "merged (its mode)"),
                (None, [PROGRAM, text], [PLAIN, text], [PLAIN, text], "merged (its mode)"),
                ([PROGRAM, b"1\n2\n3\n4\n5\n"], [PLAIN, b"0\n2\n3\n4\n5\n"], [PROGRAM, b"1\n2\n3\n4\n6\n"],
                 [PLAIN, b"0\n2\n3\n4\n6\n"], "merged")]:
            with self.subTest(what, base=base):
                self.assertEqual(merge_file(base, theirs, mine, self.STEP), (result, None, what))

    def test_what_only_a_person_can_decide_is_a_conflict_that_shows_both(self):
        files, report, conflicts = self.merged([PLAIN, b"1\n"], None, [PROGRAM, b"mine"])
        self.assertEqual(files["a.h"], [PROGRAM, b"<<<<<<< 07-later\nmine\n=======\n>>>>>>> 06-edited with your edit, which "
                                                 b"deletes it\n"])
        self.assertEqual(conflicts, ["a.h"])
        self.assertEqual(files["a.h"], self.merged([PLAIN, b"1\n"], None, [PROGRAM, b"mine\n"])[0]["a.h"])
        what = "CONFLICT, deleted below and changed here; keep it or delete it too"
        self.assertEqual(report, [("a.h", what)])
        for mine in ([LINK, b"there"], [PLAIN, b"\0"]):
            files, report, conflicts = self.merged([PLAIN, b"1\n"], None, mine)
            self.assertEqual(files, {"a.h": mine, "a.h.theirs": [PLAIN, b"deleted\n"], "other.h": [PLAIN, b"o"]})
            self.assertEqual((report, conflicts), ([("a.h", what)], ["a.h", "a.h.theirs"]))
        one, two, three = [PLAIN, b"1\n"], [PLAIN, b"2\n"], [PLAIN, b"3\n"]
        for which in range(3):
            for strange in ([LINK, b"x"], [PLAIN, b"\0"]):
                versions = [one, two, three]
                versions[which] = strange
                base, theirs, mine = versions
                self.assertEqual(merge_file(base, theirs, mine, self.STEP),
                                 (mine, theirs, "CONFLICT, not a text; choose between it and the file .theirs, and delete that"))
        file, extra, what = merge_file(one, two, three, self.STEP)
        self.assertEqual((extra, what), (None, "CONFLICT, 1 to resolve"))
        self.assertEqual(file[1], b"<<<<<<< 06-edited with your edit\n2\n||||||| before your edit\n1\n=======\n3\n"
                                  b">>>>>>> 07-later\n")
        self.assertEqual(merge_file(None, two, three, self.STEP)[2], "CONFLICT, 1 to resolve")

    def test_a_file_with_any_of_the_three_markers_is_not_resolved(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        texts = {"a": "x\n<<<<<<< a\n", "b": "||||||| b\n", "c": ">>>>>>> c\n", "d": "=======\n x <<<<<<< d\n", "e.theirs": ""}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        paths = {name: folder / name for name in (*texts, "none")}
        self.assertEqual(list(conflicts_left(paths)), ["a", "b", "c", "e.theirs"])


class Climb(Scratch):
    def setUp(self):
        super().setUp()
        self.root = self.staircase(small())

    def climb(self, *arguments, status=0):
        return self.step("climb", *arguments, status=status, root=self.root)

    def path(self, number, name="a.h"):
        return self.root / "steps" / f"{number:02}-step" / name

    def text(self, number, name="a.h"):
        return self.path(number, name).read_text()

    def edit(self, number, old, new, name="a.h"):
        text = self.text(number, name)
        self.assertEqual(text.count(f"{old}\n"), 1, text)
        self.path(number, name).write_text(text.replace(f"{old}\n", f"{new}\n" if new else ""))

    def now(self):
        return snapshot(self.root)

    def expect(self, number, *words, name="a.h"):
        self.assertEqual(self.text(number, name).splitlines(), list(words))

    def words(self, number, **changed):
        return [changed.get(word, word) for word in small()[f"{number:02}-step"]["a.h"].splitlines()]

    def test_an_edit_reaches_every_later_step_and_nothing_else(self):
        self.edit(2, "two", "TWO")
        self.edit(2, "same", "still the same", "same.h")
        before = self.now()
        said = self.climb(2)
        after = self.now()
        for number in range(3, 7):
            self.expect(number, *self.words(number, two="TWO"))
            self.expect(number, "still the same", name="same.h")
            self.assertIn(f"{number:02}-step/a.h: merged", said)
            self.assertIn(f"{number:02}-step/same.h: follows", said)
        touched = {name for name in after if before.get(name) != after[name]}
        self.assertEqual(touched, {f"steps/{number:02}-step/{name}" for number in range(3, 7) for name in ("a.h", "same.h")})
        self.assertEqual(set(before), set(after))

    def test_a_conflict_waits_for_a_person_and_is_met_once(self):
        self.edit(2, "nine", "9")
        said = self.climb(2, status=1)
        self.assertIn("steps/03-step/a.h", said)
        self.assertIn("<<<<<<< 02-step with your edit\n9\n||||||| before your edit\nnine\n=======\nNINE\n>>>>>>> 03-step\n", self.text(3))
        self.assertEqual(self.text(3).count(">>>>>>> 03-step\n"), 1)
        self.assertNotIn("<<<<<<<", self.text(4))
        self.assertIn("markers", self.climb("--continue", status=1))
        self.assertIn("under way", self.climb(2, status=2))
        self.path(3).write_text(lines(*self.words(3, NINE="9!")))
        self.climb("--continue")
        for number in range(4, 7):
            self.expect(number, *self.words(number, NINE="9!"))
        self.assertIn("no climb is under way", self.climb("--continue", status=2))

    def test_abort_puts_every_byte_back(self):
        self.path(3, "same.h").chmod(0o755)
        self.path(4, "mine.txt").write_bytes(b"mine\r\n")
        self.edit(2, "nine", "9")
        self.path(2, "new.h").write_text("new\n")
        self.path(2, "same.h").unlink()
        self.path(5).write_text(lines("mine", *self.words(5)))
        before = self.now()
        for _ in range(2):
            self.climb(2, status=1)
            self.assertNotEqual(self.now(), before)
            self.path(3).write_text("half resolved\n")
            self.climb("--abort")
            self.assertEqual(self.now(), before)
        self.assertIn("no climb is under way", self.climb("--abort", status=2))

    def test_abort_after_some_steps_were_continued(self):
        self.edit(1, "nine", "9")
        self.edit(4, "NINE", "neuf")
        before = self.now()
        self.climb(1, status=1)
        self.path(3).write_text(lines(*self.words(3, NINE="9!")))
        self.climb("--continue", status=1)  # 04 had an edit in the same line
        self.climb("--abort")
        self.assertEqual(self.now()["steps/02-step/a.h"], before["steps/02-step/a.h"])
        self.assertEqual(self.now(), before)

    def test_abort_takes_back_what_has_landed(self):
        """a.h of 03 lands when the climb has passed 03; then it stops in 04."""
        (self.root / "common/decoding").mkdir(parents=True)
        (self.root / "common/decoding/landed.txt").write_text("a.h 03-step\n")
        (self.root / "common/decoding/a.h").write_bytes(self.path(3).read_bytes())
        self.commit(self.root)
        self.edit(2, "two", "TWO")
        self.edit(4, "two", "deux")
        before, landed = self.now(), (self.root / "common/decoding/a.h").read_bytes()
        self.climb(2, status=1)
        self.assertNotEqual((self.root / "common/decoding/a.h").read_bytes(), landed)
        self.climb("--abort")
        self.assertEqual((self.root / "common/decoding/a.h").read_bytes(), landed)
        self.assertEqual(self.now(), before)

    def test_the_last_step_may_have_landed_its_edit_already(self):
        """Its file in common/decoding was edited by hand as well, so there is nothing left to write."""
        (self.root / "common/decoding").mkdir(parents=True)
        (self.root / "common/decoding/landed.txt").write_text("a.h 06-step\n")
        (self.root / "common/decoding/a.h").write_bytes(self.path(6).read_bytes())
        self.commit(self.root)
        self.edit(6, "two", "TWO")
        (self.root / "common/decoding/a.h").write_bytes(self.path(6).read_bytes())
        before = self.now()
        self.assertIn("The edit of 06-step is in every step that continues it.", self.climb(6))
        self.assertEqual(self.now(), before)
        self.assertIn("Nothing to carry", self.climb(6))

    def test_edits_in_later_steps_are_kept_and_not_passed_on(self):
        self.edit(2, "two", "TWO")
        self.edit(4, "six", "mine")
        self.path(5, "mine.h").write_text("mine\n")
        self.climb(2)
        self.expect(4, *self.words(4, two="TWO", six="mine"))
        self.expect(5, *self.words(5, two="TWO"))
        self.assertEqual(self.text(5, "mine.h"), "mine\n")
        self.climb(4)  # now the other edit climbs
        self.expect(5, *self.words(5, two="TWO", six="mine"))
        self.expect(6, *self.words(6, two="TWO", six="mine"))
        self.assertFalse(self.path(6, "mine.h").exists())
        self.climb(5)
        self.assertEqual(self.text(6, "mine.h"), "mine\n")

    def test_added_and_deleted_files(self):
        self.path(2, "sub").mkdir()
        self.path(2, "sub/new.h").write_text("new\n")
        self.path(2, "same.h").unlink()
        self.climb(2)
        for number in range(3, 7):
            self.assertEqual(self.text(number, "sub/new.h"), "new\n")
            self.assertFalse(self.path(number, "same.h").exists())

    def test_a_file_deleted_below_and_changed_above(self):
        self.path(2).unlink()
        said = self.climb(2, status=1)
        self.assertIn("deleted below", said)
        self.assertIn("NINE", self.text(3))  # nothing is lost
        self.path(3).unlink()
        self.climb("--continue", status=1)  # 04 has its own line again
        self.climb("--abort")
        self.assertEqual(self.text(3), small()["03-step"]["a.h"])

    def test_a_file_that_a_later_step_does_not_have(self):
        for number in (4, 5, 6):
            self.path(number, "same.h").unlink()
        self.commit(self.root)
        self.edit(2, "same", "other", "same.h")
        said = self.climb(2)
        self.assertIn("04-step/same.h: left out", said)
        self.assertIn("nothing to change in 2 other steps\n", said)
        self.assertNotRegex(said, "0[56]-step")
        self.assertEqual(self.text(3, "same.h"), "other\n")
        self.assertFalse(self.path(4, "same.h").exists())

    def test_the_same_file_added_in_both(self):
        self.path(2, "new.h").write_text("below\n")
        self.path(3, "new.h").write_text("above\n")
        self.climb(2, status=1)
        self.assertIn("below\n||||||| before your edit\n=======\nabove\n", self.text(3, "new.h"))
        self.path(3, "new.h").write_text("both\n")
        self.climb("--continue")
        self.assertEqual(self.text(6, "new.h"), "both\n")

    def test_neighbouring_lines_that_one_side_each_has_changed_merge(self):
        self.edit(2, "eight", "8")  # and 03 has rewritten the line after it
        said = self.climb(2)
        self.assertIn("03-step/a.h: merged", said)
        for number in range(3, 7):
            self.expect(number, *self.words(number, eight="8"))

    def test_a_line_added_beside_one_that_the_other_side_has_rewritten_merges(self):
        self.edit(2, "eight", "eight\neight and a half")  # and 03 has rewritten nine
        self.assertIn("03-step/a.h: merged", self.climb(2))
        for number in range(3, 7):
            self.expect(number, *[word for old in self.words(number) for word in ([old, "eight and a half"] if old == "eight" else [old])])

    def test_what_is_inserted_beside_a_line_that_is_gone_is_a_persons_turn(self):
        self.edit(3, "NINE", "")
        self.commit(self.root)
        self.edit(2, "eight", "eight\neight and a half")
        self.assertIn("CONFLICT", self.climb(2, status=1))
        self.assertIn("eight and a half", self.text(3))

    def test_what_is_edited_while_a_climb_has_stopped_is_kept_and_not_passed_on(self):
        for end in ("--continue", "--abort"):
            with self.subTest(end):
                self.edit(2, "nine", "9")
                self.climb(2, status=1)
                self.edit(5, "six", "mine")
                before = self.text(5)
                if end == "--continue":
                    self.path(3).write_text(lines(*self.words(3, NINE="9!")))
                self.climb(end)
                self.expect(5, *self.words(5, six="mine", **({"NINE": "9!"} if end == "--continue" else {})))
                self.assertNotIn("mine", self.text(6))
                if end == "--abort":
                    self.assertEqual(self.text(5), before)
                self.git(self.root, "checkout", "-q", "steps")

    def test_abort_keeps_what_was_edited_during_an_earlier_stop(self):
        """05 is edited while the climb waits in 03; the climb then writes 05, stops in 06, and is given up."""
        self.edit(2, "nine", "9")
        self.edit(6, "NINE", "neuf")
        self.climb(2, status=1)
        self.edit(5, "six", "mine")
        before = self.text(5)
        self.path(3).write_text(lines(*self.words(3, NINE="9!")))
        self.climb("--continue", status=1)
        self.assertIn("9!", self.text(5))
        self.climb("--abort")
        self.assertEqual(self.text(5), before)

    def test_a_lone_marker_is_a_conflict_still(self):
        self.edit(2, "nine", "9")
        self.climb(2, status=1)
        for marker in ("<<<<<<< 02-step with your edit", "||||||| before your edit", ">>>>>>> 03-step"):
            self.path(3).write_text(lines(*self.words(3, NINE="9"), marker))
            self.assertIn("still has conflict markers", self.climb("--continue", status=1))

    def test_lines_merge_wherever_they_can(self):
        base = [b"a\n", b"b\n", b"c\n"]
        x, y = b"x\n", b"y\n"
        for one, other, merged in (([x, *base[1:]], [base[0], y, base[2]], [x, y, base[2]]),
                                   ([x, *base[1:]], base[:2], [x, base[1]]),
                                   (base[1:], [base[0], y, base[2]], [y, base[2]]),
                                   ([x, *base[1:]], [x, *base[1:]], [x, *base[1:]]),
                                   ([x, *base], [*base, y], [x, *base, y]),
                                   ([x, *base[1:]], [y, *base[1:]], None), ([x, *base], [y, *base], None),
                                   ([x, *base], [y, *base[1:]], [x, y, *base[1:]]),
                                   ([y, *base[1:]], [base[0], x, *base[1:]], [y, x, *base[1:]]),
                                   ([y, y, *base[1:]], [base[0], x, *base[1:]], None),
                                   ([x, *base], [y, y, *base[1:]], None),
                                   ([x, *base], base[1:], None), (base[1:], [base[0], x, *base[1:]], None)):
            for sides in ((one, other), (other, one)):
                self.assertEqual(merge_lines(base, *sides), merged, sides)

    def test_a_line_of_the_edit_that_gets_lost_is_pointed_out(self):
        self.edit(2, "nine", "9\n9.5\n}")
        self.climb(2, status=1)
        self.path(3).write_text(lines(*self.words(3, NINE="9")))
        said = self.climb("--continue")
        self.assertIn("steps/03-step/a.h has no line `9.5`, which the edit adds; was that meant?\n", said)
        self.assertEqual(said.count("has no line"), 1)

    def test_the_checks_of_what_was_merged(self):
        """Here `tools/test` is one that fails for a step that has the word BROKEN."""
        (self.root / "tools/test").write_text("#!/bin/sh\ncd \"$(dirname \"$0\")/..\"\n"
                                              "if grep -q BROKEN steps/$1-*/a.h; then echo '1 passed, 1 failed'; exit 1; fi\n"
                                              "echo '2 passed, 0 failed'\n")
        (self.root / "tools/test").chmod(0o755)
        self.edit(2, "two", "TWO")
        said = self.climb(2)
        self.assertIn("Nothing was compiled yet. Next: tools/test steps, or, to see the first step that breaks, tools/test 02 03 04 ...", said)
        self.edit(2, "nine", "9")
        said = self.climb(2, "--test", status=1)
        self.assertNotIn("passed", said.split("needs you")[0])
        self.path(3).write_text(lines(*self.words(3, two="TWO", NINE="9")))
        self.edit(5, "one", "BROKEN")
        said = self.climb("--continue", "--test", status=1)
        self.assertIn("02-step: 2 passed, 0 failed\n03-step: 2 passed, 0 failed\n04-step: 2 passed, 0 failed\n"
                      "1 passed, 1 failed\n05-step is the first step whose checks break.\n", said)

    def test_the_help_explains_its_words(self):
        said = self.climb("--help")
        for word in ("follows", "merged", "CONFLICT", "left out", "|||||||"):
            self.assertRegex(said, rf"(?m)^  .*{re.escape(word)}")

    def test_binary_files(self):
        self.path(2, "picture.bin").write_bytes(b"\0new")
        self.climb(2, status=1)
        self.assertEqual(self.path(3, "picture.bin").read_bytes(), b"\0new")
        self.assertEqual(self.path(4, "picture.bin").read_bytes(), b"\0\1\3")
        self.assertEqual(self.path(4, "picture.bin.theirs").read_bytes(), b"\0new")
        self.assertIn("picture.bin.theirs is still there", self.climb("--continue", status=1))
        self.path(4, "picture.bin.theirs").rename(self.path(4, "picture.bin"))
        self.climb("--continue")
        self.assertEqual(self.path(6, "picture.bin").read_bytes(), b"\0new")

    def test_modes_and_links(self):
        self.path(2).chmod(0o700)  # a program for git, which looks at its owner alone
        self.path(2, "link").symlink_to("a.h")
        self.climb(2)
        for number in range(3, 7):
            self.assertTrue(self.path(number).stat().st_mode & 0o100)
            self.assertEqual(self.path(number, "link").readlink().name, "a.h")
            self.expect(number, *self.words(number))

    def test_a_second_climb_carries_only_what_is_new(self):
        self.edit(2, "nine", "9")
        self.climb(2, status=1)
        self.path(3).write_text(lines(*self.words(3, NINE="9!")))
        self.climb("--continue")
        before = self.now()
        self.assertIn("Nothing to carry", self.climb(2))
        self.assertEqual(self.now(), before)
        self.edit(2, "two", "zwei")
        self.climb(2)
        self.edit(2, "zwei", "deux")  # the same line again, which HEAD alone would see as a conflict
        self.climb(2)
        for number in range(4, 7):
            self.expect(number, *self.words(number, NINE="9!", two="deux"))
        self.commit(self.root)
        self.assertIn("Nothing to carry", self.climb(2))
        self.edit(2, "deux", "two")
        self.climb(2)
        self.expect(6, *self.words(6, NINE="9!"))

    def test_a_climb_that_was_thrown_away_is_forgotten(self):
        self.edit(2, "two", "zwei")
        self.climb(2)
        self.git(self.root, "checkout", "-q", "steps")
        self.edit(2, "two", "deux")
        self.climb(2)
        self.expect(6, *self.words(6, two="deux"))

    def test_a_committed_edit(self):
        self.edit(2, "two", "TWO")
        self.commit(self.root)
        self.assertIn("Nothing to carry", self.climb(2))
        self.climb(2, "--base", "HEAD~1")
        self.expect(6, *self.words(6, two="TWO"))
        self.assertIn("Nothing to carry", self.climb(2, "--base", "HEAD~1"))

    def test_readme_and_test_stay(self):
        self.path(2, "README.md").write_text("other\n")
        self.path(2, "test.cpp").write_text("other\n")
        self.assertIn("Nothing to carry", self.climb(2))
        self.assertEqual(self.text(3, "README.md"), "# 03 Step\n")

    def test_line_ends_are_kept(self):
        self.edit(2, "two", "TWO\r")
        self.path(6).write_bytes(self.path(6).read_bytes()[:-1])  # no newline at the end
        self.climb(2)
        self.assertEqual(self.path(6).read_bytes(), lines(*self.words(6, two="TWO\r")).encode()[:-1])

    def test_wrong_usage(self):
        self.assertIn("either a STEP", self.climb(status=2))
        self.assertIn("either a STEP", self.climb("2", "--abort", status=2))
        self.assertIn("There is no step '9'", self.climb(9, status=2))
        self.assertIn("last step", self.climb(6, status=2))
        self.assertIn("'nowhere' is not a commit", self.climb(2, "--base", "nowhere", status=2))
        self.edit(2, "two", "<<<<<<< two")
        self.assertIn("markers", self.climb(2, status=1))
        shutil.rmtree(self.root / ".git")
        self.assertIn("not a git repository", self.climb(2, status=1))

    def test_why_git_does_not_read_a_repository(self):
        git = self.folder / "bin/git"  # git's words about another user's repository
        git.parent.mkdir()
        git.write_text("#!/bin/sh\nprintf 'fatal: detected dubious ownership\\nTo add an exception\\n' >&2\nexit 128\n")
        git.chmod(0o755)
        said = self.step("climb", "2", status=1, root=self.root, env={**os.environ, "PATH": f"{git.parent}:{os.environ['PATH']}"})
        self.assertIn("git's message: fatal: detected dubious ownership\n", said)


class RealStaircase(Scratch):
    def test_an_edit_of_the_first_step_climbs_into_every_branch(self):
        root = self.folder / "staircase"
        copy_tool(root)
        shutil.copytree(ROOT / "steps", root / "steps")
        shutil.copytree(ROOT / "common/decoding", root / "common/decoding")
        self.commit(root)
        # Lines that no lesson is next to: git takes changes of neighbouring lines for a conflict. The stopping rule is
        # finished in step 08, so its new line gets as far as that and into the library.
        edits = (("generate.h", b"one token after another", b"token by token"),
                 ("stopping.h", b"// ", b"// So: "))
        first = root / "steps" / STEPS[0].name
        for name, old, new in edits:
            text = (first / name).read_bytes()
            self.assertIn(old, text)
            (first / name).write_bytes(text.replace(old, new, 1))
        before = snapshot(root)
        self.step("climb", 1, root=root)
        after = snapshot(root)
        expected = {}
        for step in STEPS[1:]:
            for name, old, new in edits:
                path = f"steps/{step.name}/{name}"
                if path in before and name in STEPS[0].files():
                    expected[path] = before[path][1].replace(old, new, 1)
        for name, old, new in edits:
            if name in STEPS[0].library:
                expected[f"common/decoding/{name}"] = before[f"common/decoding/{name}"][1].replace(old, new, 1)
        self.assertEqual({name: after[name][1] for name in after if after[name] != before.get(name)}, expected)


if __name__ == "__main__":
    unittest.main()
