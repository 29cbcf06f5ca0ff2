"""The steps as a series: what each one may change, how its README is made, and that a new option changes nothing
while it is not used."""

import functools
import json
import re
import unittest

from support import BUILD, PAIRS, STEPS, call, series

# The files that each lesson changes or adds. Every other file is the same, byte for byte, as in the step before.
LESSON = {
    "01": "generate.h main.cpp",
    "02": "generate.h main.cpp",
    "03": "generate.h",
    "04": "generate.h main.cpp sampling.h",
    "05": "generate.h main.cpp sampling.h",
    "06": "main.cpp sampling.h",
    "07": "main.cpp sampling.h",
    "08": "check.h main.cpp",
    "09": "check.h generate.h main.cpp sampling.h",
    "10": "check.h main.cpp sampling.h",
    "11": "check.h main.cpp sampling.h",
    "12": "main.cpp",
    "13": "generate.h kv_cache.h main.cpp",
    "14": "generate.h kv_cache.h",
    "15": "check.h drift.h generate.h kv_cache.h main.cpp",
    "16": "batches.h check.h drift.h generate.h kv_cache.h main.cpp",
    "17": "check.h generate.h main.cpp speculative.h",
    "18": "benchmark.h check.h main.cpp",
    "19": "benchmark_kv_cache.h check.h dynamic_kv_cache.h main.cpp",
    "20": "check.h generate.h main.cpp speculative.h stop.h",
    "21": "check.h generate.h logprobs.h main.cpp speculative.h",
    "22": "beam_search.h beam_tree.h check.h generate.h main.cpp",
    "23": "benchmark.h check.h generate.h main.cpp prompt_lookup.h speculative.h",
    "24": "benchmark_continuous.h check.h continuous.h generate.h main.cpp",
}
HEADINGS = ["The idea", "The task", "How to check it", "What to measure", "Exercises", "Sources"]
TITLES = {"02-eos-handling": "End of text"}  # where the title has not the words of the folder's name
MOST_LINES = 60  # added and removed; a longer lesson says why in its README
EXCUSE = re.compile(r"^This step is longer than most because ", re.MULTILINE)

# What a step adds to the command line: how to keep it off, and how to see that it does something.
OFF = {"02": ["--ignore-eos"]}
ON = {
    "04": ["--temperature", "0.7"],  # of the greedy choice nothing changes
    "05": ["--do-sample", "--seed", "7"],
    "06": ["--top-k", "5"],
    "07": ["--top-p", "0.5"],
    "09": ["--presence-penalty", "1.5"],
    "10": ["--frequency-penalty", "0.5"],
    "11": ["--repetition-penalty", "1.3"],
    "12": ["--dtype", "float16"],  # the format of the file: nothing is rounded
    "15": ["--on-overflow", "recompute"],  # the texts are too short to need it
    "16": ["--max-batch-size", "1"],
    "17": ["--num-speculative-tokens", "auto"],
    "20": ["--stop", "the"],
    "21": ["--echo", "--logprobs", "2"],
    "23": ["--prompt-lookup-num-tokens", "5"],
}
SAME_TEXT = {"04", "12", "15", "16", "17"}
PROMPTS = ("Once upon a time", "The fox said to the crow:", "", "A Lion and a Mouse.\n\n")


@functools.lru_cache(maxsize=None)
def sequences(step, prompt, *options):
    """What the step's program makes of a prompt."""
    done = call(BUILD / "steps" / step, "--model", "tales-6m", "--device", "cpu", "--json", "--max-new-tokens", "30",
                "--prompt", prompt, *options)
    if done.returncode:
        raise AssertionError(f"{step} {' '.join(options)}: {done.stderr}")
    return json.loads(done.stdout)["sequences"]


class Series(unittest.TestCase):
    def test_each_step_is_in_the_build_and_declared_here(self):
        self.assertEqual([step.number for step in STEPS], [f"{number:02}" for number in range(1, len(STEPS) + 1)])
        self.assertEqual(sorted(LESSON), [step.number for step in STEPS])
        listed = re.findall(r"^  '(\d\d-[^']+)',$", (series.ROOT / "steps/meson.build").read_text(), re.MULTILINE)
        self.assertEqual(listed, [step.name for step in STEPS])

    def test_a_step_changes_what_its_lesson_is_about_and_nothing_else(self):
        self.assertEqual(" ".join(STEPS[0].lesson()), LESSON["01"])
        for before, after in PAIRS:
            with self.subTest(after.name):
                old, new = ({name: path.read_bytes() for name, path in step.lesson().items()} for step in (before, after))
                changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
                self.assertEqual(" ".join(changed), LESSON[after.number])

    def test_each_step_has_checks_of_its_own(self):
        tests = {}
        for step in STEPS:
            with self.subTest(step.name):
                self.assertTrue((step.folder / "test.cpp").is_file())
                text = (step.folder / "test.cpp").read_text()
                self.assertIn("TEST_CASE(", text)
                self.assertNotIn(text, tests, f"the same as {tests.get(text)}")
                tests[text] = step.name

    def test_readmes(self):
        for step in STEPS:
            with self.subTest(step.name):
                text = step.readme()
                self.assertTrue(text, "there is no README.md")
                self.assertEqual(re.findall(r"^## (.+)$", text, re.MULTILINE), HEADINGS)
                for heading in HEADINGS:
                    self.assertTrue(step.section(heading), f"nothing below '{heading}'")
                self.assertEqual(text.splitlines()[0], f"# {step.heading()}")
                self.assertEqual(step.heading()[:3], f"{step.number} ")
                self.assertRegex(text, r"\A# .+\n\n\*.+[.]\*\n\n## The idea", "a summary in italics below the title")
                title = step.heading()[3:]
                if step.name in TITLES:
                    self.assertEqual(title, TITLES[step.name])
                else:
                    words = [word.lower() for word in re.findall(r"\w+", title)]
                    for word in step.name.split("-")[1:]:
                        self.assertIn(word, words)
                for word in ("test", "run"):
                    self.assertIn(f"tools/{word} {step.number}", step.section("How to check it"))
                for number in re.findall(r"tools/(?:test|run) (\d\d)", text):
                    self.assertLessEqual(number, step.number, "a command of a later step")

    def test_a_lesson_is_short_or_says_why_not(self):
        print("\nlines that a lesson changes:")
        for before, after in PAIRS:
            counts = series.changes(before, after)
            lines = sum(map(sum, counts.values()))
            print(f"  {after.name:30} {lines:3}  " + ", ".join(f"{name} +{add} -{cut}" for name, (add, cut) in counts.items()))
            with self.subTest(after.name):
                self.assertTrue(lines <= MOST_LINES or EXCUSE.search(after.readme()),
                                f"{lines} changed lines are more than {MOST_LINES}, and its README has no paragraph that "
                                "begins 'This step is longer than most because'")

    def test_what_is_new_changes_nothing_while_it_is_off(self):
        for index, (before, after) in enumerate(PAIRS):
            used = [option for step in STEPS[:index + 1] for option in OFF.get(step.number, []) + ON.get(step.number, [])]
            for prompt in PROMPTS:
                with self.subTest(f"{before.name} and {after.name}", prompt=prompt, options=" ".join(used)):
                    self.assertEqual(sequences(after.name, prompt, *used, *OFF.get(after.number, [])),
                                     sequences(before.name, prompt, *used))

    def test_what_is_new_does_something_when_it_is_on(self):
        """Or else the test above could not fail."""
        for number, on in ON.items():
            name = next(step.name for step in STEPS if step.number == number)
            sample = ["--ignore-eos"] + (["--do-sample", "--seed", "7"] if number > "05" else [])
            off = [sequences(name, prompt, *sample) for prompt in PROMPTS]
            changed = [sequences(name, prompt, *sample, *on) for prompt in PROMPTS]
            with self.subTest(name):
                (self.assertEqual if number in SAME_TEXT else self.assertNotEqual)(off, changed)


if __name__ == "__main__":
    unittest.main()
