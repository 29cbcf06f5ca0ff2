"""Runs every recorded command again: what it prints must be what is recorded, times and speeds aside.

Benchmarks are not run, since they print only times and speeds. Greedy texts and all numbers are compared everywhere;
numbers with decimals may differ by one in their last digit. Sampled texts are compared only if the processor has the
instruction set of the recording. With another one, the last bits of a logit differ, and after some hundred draws so
does a token.

A dozen commands of long texts take most of the time. Those that show no lesson are sampled: a fifth runs, another one
for each commit, or all of them with STAIRCASE_ALL_STEPS=1 (`tools/test --all`)."""

import re
import unittest

from support import BUILD

from chosen import chosen
from pages import recorded
from step_commands import series

LONG = re.compile(r"--max-new-tokens ([4-9]\d\d|\d{4,})\b")


def left_to_others():
    """Whether a command is of the sample of another commit."""
    lessons = {line for step in series.steps() for line in step.command()}
    return lambda command: bool(LONG.search(command.text) and command.text not in lessons and
                                not chosen(command.text, 5))


class Replay(unittest.TestCase):
    def test_the_programs_print_what_is_recorded(self):
        machine = recorded.Machine(BUILD)
        self.addCleanup(machine.close)
        count, leave = 0, left_to_others()
        for command in recorded.replayed():
            if leave(command):
                continue
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
