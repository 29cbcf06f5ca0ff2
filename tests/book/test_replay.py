"""Runs every recorded command again: what it prints must be what is recorded, times and speeds aside.

Benchmarks are not run: all that they print are times and speeds. Greedy texts and all numbers are compared everywhere, and those
with decimals may differ by one in their last digit. Texts that are drawn are compared where the processor has the instruction
set with which they were recorded; with another one the last bits of a logit differ, and after some hundred draws so does a token."""

import unittest

from support import BUILD

from pages import recorded


class Replay(unittest.TestCase):
    def test_the_programs_print_what_is_recorded(self):
        machine = recorded.Machine(BUILD)
        self.addCleanup(machine.close)
        count = 0
        for command in recorded.replayed():
            with self.subTest(command.place):
                old = command.recording()
                self.assertIsNotNone(old, "not recorded; tools/book --record does that")
                differs = recorded.difference(old, machine.run(command), command.is_by_the_clock)
                self.assertIsNone(differs, differs and f"{command.place}: {command.text}\nprinted\n{differs[0]}\nand now prints\n"
                                  f"{differs[1]}\nIf that is right, tools/book --record writes it down.")
            count += 1
        self.assertGreater(count, 70)


if __name__ == "__main__":
    unittest.main()
