"""Presets and sliders of the terminal on a step's page, against the programs: their --help and what they do."""

import re
import shlex
import subprocess
import tempfile
import unittest

from pathlib import Path

from support import BUILD, ROOT
from step_commands import series

from pages import presets

STEPS = [step for step in series.steps() if step.continues_prompts() or step.holds_conversations()]
# [option, usual value] of the sliders, as the page has them.
SLIDERS = [
    (option, usual)
    for option, usual in re.findall(
        r'^  \["(--[\w-]+)", .*, ([^],]+)\],$',
        (ROOT / "playground/settings.js").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
]


def applied(words, settings):
    """A command's words with a preset, as the page sets it."""
    words = list(words)
    for option, value in settings.items():
        while option in words:
            at = words.index(option)
            del words[at : at + (1 if isinstance(value, bool) else 2)]
        words += [option] if value is True else [option, value] if value else []
    return words


class Presets(unittest.TestCase):
    def programs(self):
        found = [(step, BUILD / "steps" / step.name) for step in STEPS if (BUILD / "steps" / step.name).is_file()]
        if not found:
            self.skipTest("no step is built")
        return found

    @staticmethod
    def help(program):
        """{option: its usual value or ""} that a program lists."""
        text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        lines = re.findall(r"^ +(--[\w-]+)(?: [^\s=(]+)?(?: \([^)]*\))?(?:=(\S+))?", text, re.MULTILINE)
        return dict(lines)

    def test_sliders_begin_where_a_program_has_the_option_and_have_its_usual_value(self):
        self.assertGreater(len(SLIDERS), 10)
        seen = set()
        for step, program in self.programs():
            listed, offered = self.help(program), presets.options(step)
            for option, usual in SLIDERS:
                with self.subTest(step.name, option=option):
                    self.assertEqual(option in offered, option in listed)
                    if option in listed:
                        seen.add(option)
                        # Of an option without a value, one position changes nothing: 0, or the right end.
                        self.assertIn(usual, (listed[option],) if listed[option] else ("0", "null"))
        self.assertEqual(seen, {option for option, _ in SLIDERS})

    def test_a_step_has_two_or_three_presets_or_none(self):
        for step in STEPS:
            names = [name for name, _ in presets.presets(step)]
            self.assertIn(len(names), (0, 2, 3), step.name)
            self.assertEqual(len(set(names)), len(names))
        self.assertEqual(
            [name for name, _ in presets.presets(next(step for step in STEPS if step.name == "06-top-k"))],
            ["Keep 2", "Keep 40", "Keep all"],
        )

    def test_a_preset_sets_what_its_name_says(self):
        """A number in the name is the value of an option, and the group's own one where that has a value."""
        words = {"one": 1, "two": 2, "three": 3, "five": 5, "half": 0.5}
        kinds = {"no", "all", "any", "usual", "without", "whole", "enough", "do", "only"}
        group, checked = None, 0
        for line in presets.PRESETS.strip().splitlines():
            if not line.startswith(" "):
                group = line
                continue
            name, options = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            first = name.split()[0].lower()
            with self.subTest(group, name=name):
                if group == "choices":
                    counts = {"Two animals": 2, "One of three texts": 3, "Any text": 0}
                    self.assertEqual(len(re.findall(r'--choice "', options)), counts[name])
                elif group != "--regex":
                    values = dict(re.findall(r"(?<!no )(?<!not )(--[\w-]+) (?!--|not? )(\S+)", options))
                    mine = [values[group]] if values.get(group, "tales-1m") != "tales-1m" else list(values.values())
                    number, percent = re.search(r"(\d[\d.]*)( %)?$|$", re.sub(r" (blocks|beams)$", "", name)).groups()
                    if re.fullmatch(r"b?float\d+|int\d", name):
                        self.assertIn(name, mine)
                    elif number:
                        self.assertIn(float(number) / (100 if percent else 1), [float(value) for value in mine if re.fullmatch(r"[\d.]+", value)])
                    elif set(name.lower().split()) & words.keys():
                        wanted, = set(name.lower().split()) & words.keys()
                        self.assertIn(words[wanted], [float(value) for value in mine if re.fullmatch(r"[\d.]+", value)])
                    else:
                        continue
                checked += 1
        self.assertGreater(checked, 45)

    def test_each_preset_runs_on_the_command_of_its_page(self):
        for step, program in self.programs():
            words = shlex.split((step.command() or ["tools/run NN"])[0])[2:]
            for name, settings in presets.presets(step):
                with self.subTest(step.name, preset=name):
                    line = applied(words, settings)
                    if not step.holds_conversations() and "--min-new-tokens" not in line:
                        line = applied(line, {"--max-new-tokens": "3"})
                    with tempfile.TemporaryDirectory() as folder:  # a conversation of an older program is not continued
                        line = [str(Path(folder, word)) if word.endswith(".session") else word for word in line]
                        done = subprocess.run(
                            [program, *line], capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=60
                        )
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertNotIn("warning", done.stderr)


if __name__ == "__main__":
    unittest.main()
