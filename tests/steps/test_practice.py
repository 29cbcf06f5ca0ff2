"""Each step can be practised: what a learner gets compiles, its checks are red, and with the step's own code they are green.

A handful of steps is tried, two of them until they are green, or all with STAIRCASE_ALL_STEPS=1 (`tools/test --all`): what
is red and becomes green is compiled twice. Two steps are tried at a time, each with one compiler. Commands that name no
temporary folder let a compiler cache answer when nothing has changed since."""

import os
import shutil
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from support import BUILD, ROOT, STEPS, Scratch, call

# The first with several files, a new cache, rows, speculation, and the first steps of search and of serving.
SOME = ("04-temperature", "13-kv-cache-dynamic", "16-variable-batching", "17-speculative-decoding", "33-beam-search",
        "39-continuous-batching")
# The step's own code is what the project's build compiles and tests; here it only has to find its place in the folder.
SOLVED = ("04-temperature", "39-continuous-batching")
ALL = bool(os.environ.get("STAIRCASE_ALL_STEPS"))
TRIED = [step for step in STEPS if ALL or step.name in SOME]


class Practice(Scratch):
    def check(self, folder, *options):
        done = call(ROOT / "tools/step", "check", folder, "--build", BUILD, *options)
        return done.returncode, done.stdout + done.stderr

    def attempt(self, step):
        """(step, what `check` says at first, what it says of the solution where that is tried, the seconds that each took)"""
        start = time.monotonic()
        folder = self.folder / step.name
        self.step("practice", step.number, folder)
        first = self.check(folder, "--jobs", 1)
        middle = time.monotonic()
        if not ALL and step.name not in SOLVED:
            return step, first, None, middle - start, 0.0
        shutil.rmtree(folder / "build")
        for name, path in step.lesson().items():
            shutil.copyfile(path, folder / name)
        return step, first, self.check(folder, "--jobs", 1), middle - start, time.monotonic() - middle

    def test_every_step_is_red_and_then_green(self):
        print(f"\n{'':30} seconds to red, to green")
        with ThreadPoolExecutor(2) as pool:
            for step, (status, said), solution, red, green in pool.map(self.attempt, TRIED):
                print(f"{step.name:30} {red:6.1f} {green:6.1f}   {said[said.rfind('RED:'):].splitlines()[0]}")
                with self.subTest(step.name):
                    self.assertEqual(status, 1, said)
                    self.assertIn("RED: the checks above fail", said)  # and not: test.cpp does not compile
                    self.assertNotIn("Traceback", said)
                    if solution:
                        solved, answer = solution
                        self.assertEqual(solved, 0, answer)
                        self.assertIn(f"GREEN: {step.name} is done", answer)

    def test_the_steps_that_are_tried_are_there(self):
        self.assertLessEqual(set(SOME), {step.name for step in STEPS})
        self.assertLessEqual(set(SOLVED), set(SOME))

    def test_a_red_check_says_why(self):
        step = STEPS[5]  # top-k
        folder = self.folder / "a folder"
        self.step("practice", step.number, folder)
        for name, path in step.lesson().items():
            shutil.copyfile(path, folder / name)
        sampling = (folder / "sampling.h").read_text()
        (folder / "test.cpp").write_text('#include <doctest/doctest.h>\n\nTEST_CASE("green") {}\n')
        (folder / "sampling.h").write_text(sampling.replace('"--top-k"', '"--top"'))
        status, said = self.check(folder)
        self.assertEqual(status, 1, said)
        self.assertIn("the program has no option --top-k yet; sampling.h adds it", said)
        (folder / "sampling.h").write_text("nothing\n")
        status, said = self.check(folder)
        self.assertEqual(status, 1)
        self.assertRegex(said, "RED: (main|test).cpp does not compile")
        self.assertIn("error:", said)


if __name__ == "__main__":
    unittest.main()
