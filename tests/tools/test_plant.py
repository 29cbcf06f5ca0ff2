"""tools/plant: a list of bugs becomes code that chooses one of them when it runs, and an outdated list is reported."""

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


if __name__ == "__main__":
    unittest.main()
