"""Each step can be practised: its checks are red with the code of the step before and green with its own.

Two steps are tried at a time, each with one compiler, and the program is compiled only when test.cpp was: at first that
mostly fails. Commands that name no temporary folder let a compiler cache answer when nothing has changed since."""

import shutil
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from support import BUILD, PAIRS, ROOT, STEPS, Scratch, call


class Practice(Scratch):
    def check(self, folder, *options):
        done = call(ROOT / "tools/step", "check", folder, "--build", BUILD, *options)
        return done.returncode, done.stdout + done.stderr

    def attempt(self, step):
        """(what `check` says at first, what it says of the solution, the seconds that each took)"""
        start = time.monotonic()
        folder = self.folder / step.name
        self.step("practice", step.number, folder)
        first = self.check(folder, "--jobs", 1)
        middle = time.monotonic()
        for name, path in step.lesson().items():
            shutil.copyfile(path, folder / name)
        return step, first, self.check(folder, "--jobs", 1), middle - start, time.monotonic() - middle

    def test_every_step_is_red_and_then_green(self):
        print(f"\n{'':30} seconds to red, to green")
        with ThreadPoolExecutor(2) as pool:
            for step, (status, said), (solved, answer), red, green in pool.map(self.attempt, STEPS):
                print(f"{step.name:30} {red:6.1f} {green:6.1f}   {said[said.rfind('RED:'):].splitlines()[0]}")
                with self.subTest(step.name):
                    self.assertEqual(status, 1, said)
                    self.assertIn("RED: ", said)
                    self.assertNotIn("Traceback", said)
                    self.assertEqual(solved, 0, answer)
                    self.assertIn(f"GREEN: {step.name} is done", answer)

    def test_a_red_check_says_why(self):
        before, step = PAIRS[0]
        folder = self.folder / "a folder"
        self.step("practice", step.number, folder)
        status, said = self.check(folder)
        self.assertEqual(status, 1)
        self.assertIn("RED: test.cpp does not compile yet. At first that is as it should be", said)
        self.assertIn("error:", said)
        for name, path in step.lesson().items():
            shutil.copyfile(path, folder / name)
        shutil.copyfile(before.lesson()["main.cpp"], folder / "main.cpp")
        status, said = self.check(folder)
        self.assertEqual(status, 1)
        self.assertIn("the program has no option --ignore-eos yet", said)
        (folder / "main.cpp").write_text("int main() { return nothing; }\n")
        status, said = self.check(folder)
        self.assertEqual(status, 1)
        self.assertIn("RED: main.cpp does not compile:", said)


if __name__ == "__main__":
    unittest.main()
