"""tools/plant: a list of bugs becomes code that chooses one of them when it runs, and an outdated list is reported."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import Limited, load

plant = load("plant")
CODE = """#include <cstdio>
int main() {
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += i;
  std::printf("%d", sum);
}
"""
LIST = """# Comments and empty lines are passed over.
tests: test-a -tc=*one | tests/b.py Two

a.cpp
- i < 4
+ i <= 4
- sum += i;
-   std::printf
+ sum += PLANTED ? 1 : i; std::printf

tests: test-c
- int sum = 0;
+ int sum = PLANTED;
"""


class Plant(Limited):
    def test_a_list_names_tests_files_and_bugs(self):
        bugs = plant.bugs_of("list", LIST)
        self.assertEqual([(bug.file, bug.right, bug.wrong) for bug in bugs],
                         [("a.cpp", "i < 4", "i <= 4"),
                          ("a.cpp", "sum += i;\n  std::printf", "sum += PLANTED ? 1 : i; std::printf"),
                          ("a.cpp", "int sum = 0;", "int sum = PLANTED;")])
        self.assertEqual([bug.tests for bug in bugs], [("test-a -tc=*one", "tests/b.py Two")] * 2 + [("test-c",)])
        for wrong in ("a.cpp\n+ x", "a.cpp\n- x\nb.cpp", "- x\n+ y"):
            with self.subTest(wrong), self.assertRaisesRegex(SystemExit, "list:[0-9]+: a bug is"):
                plant.bugs_of("list", wrong)

    def test_all_bugs_are_compiled_together_and_one_is_chosen(self):
        bugs = plant.bugs_of("list", LIST)
        self.assertEqual(len({bug.id for bug in bugs}), 3)
        text, stale = plant.planted(CODE, bugs)
        self.assertEqual(stale, {})
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder) / "a.cpp", Path(folder) / "a"
            source.write_text(text.replace('#include "planted.h"', plant.HEADER.replace("#pragma once", "")))
            subprocess.run(["g++", "-std=c++20", "-o", program, source], check=True)
            outputs = [subprocess.run([program], env=variables, capture_output=True, check=True).stdout
                       for variables in ({}, *({"STAIRCASE_PLANT": str(bug.id)} for bug in bugs))]
        self.assertEqual(outputs, [b"6", b"10", b"4", b"7"])

    def test_bugs_that_do_not_compile_are_named(self):
        code = "constexpr int kSize = 4;\nint size() { return 3; }\nint main() { return kSize + size(); }\n"
        bugs = [plant.Bug("list", ("test-a",), "a.cpp", right, wrong)
                for right, wrong in (("4", "5"), ("3", "2"), ("kSize + size()", "no_name"))]
        text, stale = plant.planted(plant.HEADER.replace("#pragma once", "") + code, bugs)
        self.assertEqual(stale, {})
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "a.cpp"
            source.write_text(text.replace('#include "planted.h"', ""))
            compiler = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", source], capture_output=True, text=True)
        output = compiler.stderr
        self.assertEqual(plant.not_compiling(output), {bugs[0].id, bugs[2].id})
        self.assertEqual(plant.not_compiling("a.cpp:1:2: error: expected ';'\n    1 | int a\n"), set())

    def test_a_bug_in_python_is_chosen_when_it_runs(self):
        code = '"""Counts."""\ni, step = 0, 4\nwhile i < 4:\n    i += step\nprint(i)\n'
        bugs = [plant.Bug("list", ("b.py",), "a.py", right, wrong)
                for right, wrong in (("i < 4", "i <= 4"), ("+= step", "+= step + PLANTED"))]
        text, stale = plant.planted(code, bugs)
        self.assertEqual(stale, {})
        outputs = [subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, check=True).stdout
                   for variables in ({}, *({"STAIRCASE_PLANT": str(bug.id)} for bug in bugs))]
        self.assertEqual(outputs, [b"4\n", b"8\n", b"5\n"])
        broken = plant.Bug("list", ("b.py",), "a.py", "while i < 4:", "while i < 5:")  # no expression
        text, stale = plant.planted(code, [bugs[0], broken])
        self.assertEqual(stale, {broken: "it does not compile"})
        self.assertIn("STAIRCASE_PLANT", text)

    def test_a_page_has_its_bug_during_the_run_alone(self):
        bug = plant.Bug("list", ("test.py",), "page.html", "limit = 1", "limit = 2")
        self.assertEqual(plant.planted("limit = 1", [bug]), ("limit = 1", {}))
        self.assertEqual(list(plant.planted("limit = 3", [bug])[1]), [bug])
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(plant, TREE=Path(folder), LOGS=Path(folder)):
            page = plant.TREE / "page.html"
            page.write_text("limit = 1")
            before = page.stat().st_mtime_ns
            (plant.TREE / "test.py").write_text(f"import sys; sys.exit('1' not in open({str(page)!r}).read())")
            self.assertEqual([plant.run("test.py", chosen)[0] for chosen in (None, bug, None)], [True, False, True])
            self.assertEqual((page.read_text(), page.stat().st_mtime_ns), ("limit = 1", before))

    def test_a_bug_whose_text_is_gone_or_ambiguous_or_taken_is_reported(self):
        bugs = [plant.Bug("list", ("test-a",), "a.cpp", right, "x")
                for right in ("j < 4", "sum", "i < 4", "i < 4; ++i")]
        text, stale = plant.planted(CODE, bugs)
        self.assertEqual(list(stale), [bugs[0], bugs[1], bugs[2]])
        self.assertRegex(stale[bugs[0]], "does not have")
        self.assertRegex(stale[bugs[1]], "3 times")
        self.assertRegex(stale[bugs[2]], "another bug")
        self.assertIn("? (x) : (i < 4; ++i))", text)

    def test_every_list_fits_the_files(self):
        for path in sorted(plant.LISTS.glob("*.txt")):
            bugs = plant.bugs_of(path.stem, path.read_text(encoding="utf-8"))
            for file in {bug.file for bug in bugs}:
                with self.subTest(path.name, file=file):
                    text = (plant.ROOT / file).read_text(encoding="utf-8")
                    _, stale = plant.planted(text, [bug for bug in bugs if bug.file == file])
                    self.assertEqual({bug.right: why for bug, why in stale.items()}, {})


class Tree(Limited):
    """A tree of a few files, in which tools/plant has everything but a compiler."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        place = self.root / "build-plant"
        patch = mock.patch.multiple(plant, ROOT=self.root, LISTS=self.root / "lists", PLACE=place, TREE=place / "tree",
                                    BUILD=place / "tree/build", LOGS=place / "logs")
        patch.start()
        self.addCleanup(patch.stop)
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write(".gitignore", "/build-plant/\n*.tmp\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_the_copy_is_the_tree_with_the_bugs(self):
        bug = plant.Bug("list", ("test-a",), "a.cpp", "i < 4", "i <= 4")
        gone = plant.Bug("list", ("test-a",), "other.cpp", "i < 4", "i <= 4")
        self.write("a.cpp", CODE)
        self.write("b.tmp", "ignored")
        removed = self.write("folder/c.txt", "c")
        self.write("run", "#!/bin/sh\n").chmod(0o755)
        self.assertEqual(plant.copy([bug, gone]), {gone: "there is no such file"})
        found = {str(path.relative_to(plant.TREE)) for path in plant.TREE.rglob("*") if path.is_file()}
        self.assertEqual(found, {".gitignore", "a.cpp", "folder/c.txt", "run", "planted.h"})
        self.assertIn(f"planted({bug.id}ul) ? (i <= 4)", (plant.TREE / "a.cpp").read_text())
        self.assertTrue(os.access(plant.TREE / "run", os.X_OK))
        self.assertFalse(os.access(plant.TREE / "a.cpp", os.X_OK))

        # Only what differs is written again; what was compiled stays, and a file that has gone goes.
        plant.BUILD.mkdir()
        (plant.BUILD / "a.o").write_text("compiled")
        for path in plant.TREE.iterdir():
            os.utime(path, (1, 1))
        removed.unlink()
        self.write("run", "#!/bin/sh\nexit 1\n")
        self.assertEqual(plant.copy([bug]), {})
        self.assertEqual([(plant.TREE / name).stat().st_mtime == 1 for name in ("a.cpp", "planted.h", "run")],
                         [True, True, False])
        self.assertFalse((plant.TREE / "folder/c.txt").exists())
        self.assertTrue((plant.BUILD / "a.o").exists())
        plant.copy([])
        self.assertEqual((plant.TREE / "a.cpp").read_text(), CODE)

    def test_what_the_tests_need_is_compiled(self):
        programs = self.root / "bin"
        targets = [{"id": "a@exe", "filename": [str(plant.BUILD / "tests/test-a")]},
                   {"id": "step@exe", "filename": [str(plant.BUILD / "steps/01")]},
                   {"id": "lib@sta", "filename": [str(plant.BUILD / "liba.a"), str(plant.BUILD / "liba.h")]}]
        tests = [{"cmd": [str(plant.BUILD / "tests/test-a")], "depends": ["lib@sta"]},
                 {"cmd": ["python3", "/there/tests/b.py", "x"], "depends": ["step@exe"]},
                 {"cmd": ["python3", "/there/tests/alone.py"], "depends": []}]
        self.write("targets.json", json.dumps(targets))
        self.write("tests.json", json.dumps(tests))
        self.write("bin/meson", f"""#!/bin/sh
            echo "$@" >>{self.root}/meson.log
            case $1$2 in
              setup*) mkdir -p {plant.BUILD}; touch {plant.BUILD}/build.ninja ;;
              introspect--targets) cat {self.root}/targets.json ;;
              introspect--tests) cat {self.root}/tests.json ;;
            esac""").chmod(0o755)
        self.write("bin/ninja", f"""#!/bin/sh
            echo "$@" >>{self.root}/ninja.log
            if [ "$1" = -k ] && [ -f {self.root}/errors ]; then cat {self.root}/errors; exit 1; fi""").chmod(0o755)
        compiled = f"-k 0 -C {plant.BUILD} "
        with mock.patch.dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}"), contextlib.redirect_stderr(io.StringIO()) as told:
            self.assertEqual(plant.build(["test-a -tc=x", "tests/b.py".split("/")[1]]), set())
            self.assertEqual(plant.build(["test-a"]), set())
            self.assertEqual(plant.build(["alone.py"]), set())
            renewed = f"-C {plant.BUILD} build.ninja"  # which may be older than a test
            self.assertEqual((self.root / "ninja.log").read_text().splitlines(),
                             [renewed, compiled + "liba.a liba.h steps/01 tests/test-a", renewed,
                              compiled + "liba.a liba.h tests/test-a", renewed])
            setups = [line for line in (self.root / "meson.log").read_text().splitlines() if line.startswith("setup")]
            self.assertEqual(setups, [f"setup {' '.join(plant.OPTIONS)} {plant.BUILD} {plant.TREE}"])
            with self.assertRaisesRegex(SystemExit, "Meson knows no test with test-b"):
                plant.build(["test-b"])
            self.write("errors", "a.cpp:1:2: error: no\n    1 | planted(7ul) ? (x) : (y)\n")
            self.assertEqual(plant.build(["test-a"]), {7})
            self.write("errors", "a.cpp:1:2: error: no\n    1 | int i = x;\n")
            with self.assertRaisesRegex(SystemExit, "no bug is to blame"):
                plant.build(["test-a"])
        self.assertIn("int i = x", told.getvalue())

    def test_a_test_is_red_if_it_fails_or_hangs(self):
        plant.LOGS.mkdir(parents=True)
        plant.TREE.mkdir()
        bug = plant.Bug("list", ("test.py",), "a.cpp", "right", "wrong")
        (plant.TREE / "test.py").write_text(
            "import os, sys, time\n"
            "print(sys.argv[1:], os.environ['STAIRCASE_PLANT'], os.environ['STAIRCASE_BUILD'], flush=True)\n"
            "time.sleep(60 if 'hang' in sys.argv else 0)\nsys.exit('wrong' in sys.argv)\n")
        self.assertTrue(plant.run("test.py Class")[0])
        self.assertIn(f"['Class', '--failfast'] 0 {plant.BUILD}", (plant.LOGS / "none.txt").read_text())
        self.assertFalse(plant.run("test.py wrong", bug)[0])
        log = (plant.LOGS / f"{bug.id}.txt").read_text()
        self.assertTrue(log.startswith(f"{bug}\n{sys.executable}\n{plant.TREE}/test.py\nwrong\n"), log)
        self.assertIn(f"['wrong', '--failfast'] {bug.id} ", log)
        green, seconds = plant.run("test.py hang", bug, 0.2)
        self.assertFalse(green)
        self.assertGreaterEqual(seconds, 0.2)
        self.assertIn("more than 0 seconds", (plant.LOGS / f"{bug.id}.txt").read_text())
        for place in ("tests/test-a", "tests/server/test-b"):
            program = plant.BUILD / place
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("#!/bin/sh\n[ \"$1 $2\" = '--abort-after=1 -tc=x' ]\n")
            program.chmod(0o755)
            self.assertTrue(plant.run(f"{program.name} -tc=x", bug)[0])
            self.assertFalse(plant.run(program.name, bug)[0])

    def planted(self, *words, broken=()):
        """The lines of tools/plant and its exit status; `broken` are bugs that do not compile."""
        waiting = [{bug.id for bug in broken}] if broken else []
        with mock.patch.object(plant, "build", side_effect=lambda tests: waiting.pop() if waiting else set()) as build, \
                contextlib.redirect_stdout(io.StringIO()) as output:
            status = plant.main(list(words))
        self.tests = build.call_args.args[0]
        return output.getvalue().splitlines(), status

    def test_each_bug_is_red_or_survives_or_is_stale(self):
        self.write("a.py", '"""A."""\none = 1\ntwo = 2\nthree = 3\n')
        self.write("b.py", '"""B."""\nx = 1\n')
        for name, text in (("one", "a.one == 1"), ("two", "a.two == 2"), ("never", "False")):
            self.write(f"tests/{name}.py",
                       f"import sys; sys.path.insert(0, {str(plant.TREE)!r}); import a; sys.exit(not ({text}))")
        # The second test finds the second bug; the third test is red without a bug, so it finds none.
        self.write("lists/first.txt", "tests: tests/one.py | tests/two.py\na.py\n- 1\n+ 0\n- 2\n+ 0\n- no\n+ yes\n")
        self.write("lists/second.txt", "tests: tests/never.py | tests/one.py\na.py\n- 3\n+ 4\nb.py\n- 1\n+ y\n")
        bugs = [bug for name in ("first", "second")
                for bug in plant.bugs_of(name, (plant.LISTS / f"{name}.txt").read_text())]
        with self.assertRaisesRegex(SystemExit, "no file and no list"):
            plant.main(["third"])

        lines, status = self.planted(broken=bugs[4:])
        self.assertEqual(lines[:3] + lines[4:], [
            f"  1/5 red      {bugs[0].id} a.py: 1  ->  0", f"  2/5 red      {bugs[1].id} a.py: 2  ->  0",
            "STALE     a.py: no  ->  yes: the file does not have this text",
            f"  4/5 SURVIVES {bugs[3].id} a.py: 3  ->  4", "STALE     b.py: 1  ->  y: it does not compile",
            "2 red, 1 survive, 2 stale"])
        self.assertRegex(lines[3], "^LEFT OUT  tests/never.py: .*/none-1.txt$")
        self.assertTrue((plant.LOGS / "none-1.txt").exists())
        self.assertEqual((status, self.tests), (1, ["tests/never.py", "tests/one.py", "tests/two.py"]))
        self.assertEqual((plant.TREE / "b.py").read_text(), '"""B."""\nx = 1\n')

        # Words choose by list and by file; what is stale, survives or has no green test gives an exit status.
        for words, count, code in ((["first"], 3, 1), (["b.py"], 1, 1), (["a.py"], 4, 1), (["b.py", "first"], 4, 1)):
            with self.subTest(words):
                lines, status = self.planted(*words)
                self.assertEqual((len([line for line in lines if "->" in line]), status), (count, code))
        self.write("lists/first.txt", "tests: tests/one.py\na.py\n- 1\n+ 0\n")
        self.assertEqual(self.planted("first"), (
            [f"  1/1 red      {bugs[0].id} a.py: 1  ->  0", "1 red, 0 survive, 0 stale"], 0))
        for text in ("tests: tests/two.py\na.py\n- 1\n+ 0\n", "tests: tests/never.py | tests/one.py\na.py\n- 1\n+ 0\n"):
            self.write("lists/first.txt", text)
            self.assertEqual(self.planted("first")[1], 1)


if __name__ == "__main__":
    unittest.main()
