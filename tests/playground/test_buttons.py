"""The command with which each page begins, and every button of it.

  tests/playground/test_buttons.py      with the steps that tools/wasm has built"""

import json
import subprocess
import unittest

from served_site import NATIVE, ROOT, STEPS, TALKS, Browser, By, setUpModule, Step, WebDriverWait  # noqa: F401


class Lessons(Browser):
    """The command with which each page begins, and every button of it."""

    def prepared(self, name):
        self.open(name, inside=True)
        return Step(ROOT / "steps" / name)

    def runs_of(self, press):
        """The state and the output of each run that this starts, the newest first."""
        before = len(self.find(".run"))
        press()
        self.wait(lambda: len(self.find(".run")) > before or self.find(".problem")[0].text)
        self.assertEqual(self.find(".problem")[0].text, "")
        states = lambda: [state.text for state in self.find(".run .state")[:len(self.find(".run")) - before]]  # noqa: E731
        WebDriverWait(self.browser, 600, 0.1).until(
            lambda _: all(state.startswith(("done", "ended", "stopped", "cannot")) for state in states()))
        texts = self.browser.execute_script("return [...document.querySelectorAll('.run pre')].map((run) => run.textContent)")
        return list(zip(states(), texts))

    def ended_as(self, refused, runs, status=2):
        for state, text in runs:
            self.assertTrue(state.startswith(f"ended with status {status}" if refused else "done"), f"{state}: {text[-300:]}")
            self.assertNotRegex(text, "(?i)no such file|cannot be (read|opened)")
            self.assertTrue(text.strip())

    def test_a_page_begins_with_its_own_command_and_shows_what_happens_inside(self):
        for name in STEPS + TALKS:
            with self.subTest(name):
                step = self.prepared(name)
                commands = [line.removeprefix(f"tools/run {step.number} ") for line in step.command()]
                button = self.find(".playground button[type=submit]")[0]
                runs = self.runs_of(lambda: self.browser.execute_script("arguments[0].click()", button))
                self.assertEqual([run.accessible_name for run in self.find(".run")], commands)
                self.ended_as("sanity-checks" in name, runs)
                box = self.find(".playground .watch")
                watched = box and box[0].is_selected() and "sanity-checks" not in name
                self.assertEqual(bool(self.find(".inside:not([hidden])")), bool(watched))

    def test_every_button_of_a_page_runs(self):
        for name in STEPS + TALKS:
            self.prepared(name)
            shown = self.find("details.terminal[data-command]")
            pressed = 0
            for i, terminal in enumerate(shown):
                buttons = terminal.find_elements(By.CSS_SELECTOR, "button.try")
                if not buttons:
                    continue
                command, recorded_ = terminal.get_attribute("data-command"), terminal.find_element(By.TAG_NAME, "pre").get_attribute("textContent")
                with self.subTest(name, command=command):
                    runs = self.runs_of(lambda: self.browser.execute_script("arguments[0].click()", buttons[0]))
                    # Where one of the requests is refused, the others have their texts.
                    self.ended_as(recorded_.startswith("error:"), runs, 1 if "--requests" in command else 2)
                    pressed += 1
                self.browser.execute_script("for (const run of document.querySelectorAll('.run .remove')) run.click()")
            with self.subTest(name):
                self.assertGreater(pressed, 0)

    def test_a_conversation_is_typed_line_by_line(self):
        """As at a terminal: each question is seen where the program reads it, and the answers are those to --prompt."""
        if not TALKS:
            self.skipTest("no chat is built")
        options, questions = "--chat-template models/tales-chat.jinja --max-new-tokens 6", ["Why do you weep?", "Où vis-tu?"]
        for name in TALKS:
            with self.subTest(name):
                self.prepared(name)
                self.type(" ".join([options, *(f'--prompt "{question}"' for question in questions)]))
                self.assertIn("done", self.ended())
                answers = [line for line in self.output().splitlines() if line and not line.startswith("The answer was cut off")]
                self.assertEqual(len(answers), 2)
                self.browser.execute_script("arguments[0].value = arguments[1]", self.find("#playground-input")[0],
                                            "\n".join([*questions, "/undo", "/wrong"]))
                self.type(options)
                self.assertIn("done", self.ended())
                talk = self.output()
                for question, answer in zip(questions, answers, strict=True):
                    self.assertIn(f"> {question}\n{answer}\n", talk)
                self.assertIn("> /wrong\n", talk)
                self.assertIn("/help", talk[talk.index("> /wrong\n"):])

    def test_several_lines_are_several_runs(self):
        self.open()
        number = STEPS[0][:2]
        self.type(f'--prompt "A" --max-new-tokens 1\ntools/run {number} --prompt "B" \\\n --max-new-tokens 2')
        self.wait(lambda: len(self.find(".run")) == 2 and all(state.text.startswith("done") for state in self.find(".run .state")))
        self.assertEqual([" ".join(run.accessible_name.split()) for run in self.find(".run")],
                         ['--prompt "A" --max-new-tokens 1', '--prompt "B" --max-new-tokens 2'])

    def test_a_newline_in_quotation_marks_belongs_to_the_prompt(self):
        self.open()
        self.type('--prompt "A\n\nB" --json --max-new-tokens 1')
        self.assertIn("done", self.ended())
        native = subprocess.run([NATIVE / STEPS[0], "--prompt", "A\n\nB", "--json", "--max-new-tokens", "1"], capture_output=True, text=True,
                                cwd=ROOT, check=True)
        here = next(line for line in self.output().splitlines() if line.startswith("{"))
        self.assertEqual(json.loads(here)["sequences"], json.loads(native.stdout)["sequences"])


if __name__ == "__main__":
    unittest.main()
