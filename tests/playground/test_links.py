"""Runs in links, and command lines that are pasted.

  tests/playground/test_links.py      with the steps that tools/wasm has built"""

import json
import subprocess
import unittest

from served_site import NATIVE, PROGRAMS, ROOT, STEPS, Browser, By, setUpModule  # noqa: F401


class Links(Browser):
    """A run in the address of its page."""

    def press(self, selector, index=0):
        self.browser.execute_script("arguments[0].click()", self.find(selector)[index])

    def copied(self):
        self.browser.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        self.press(".run .link")
        return self.wait(lambda: self.browser.execute_script("return window.copied"))

    def visit(self, address):
        self.browser.get("about:blank")  # or only the part after # changes, and the page stays
        self.browser.get(address)

    def test_a_run_survives_a_reload_and_can_be_shared(self):
        step = next((step for step in STEPS if step.endswith("top-k")), STEPS[-1])
        self.open(step)
        line = '--prompt "The fox & the 100 % grapes: é, 狐" --max-new-tokens 8' + (" --do-sample --seed 5" if "top-k" in step else "")
        self.browser.execute_script("arguments[0].value = 'one\\ntwo'", self.find("#playground-input")[0])
        self.type(line)
        self.assertIn("done", self.ended())
        text, address = self.output().splitlines()[0], self.browser.current_url
        link = self.copied()
        self.assertEqual(link, address)
        self.assertEqual(self.find(".run .link")[0].text, "Copied")
        for again in (self.browser.refresh, lambda: self.visit(link)):
            again()
            self.assertIn("done", self.ended())
            self.assertEqual(self.output().splitlines()[0], text)
            self.assertEqual([self.find(field)[0].get_attribute("value") for field in ("#playground-line", "#playground-input")], [line, "one\ntwo"])
            self.assertFalse(self.find(".playground .watch")[0].is_selected())
        self.assertEqual([url for url in self.asked() if "grapes" in url.partition("#")[0]], [])  # no server gets to see it
        self.browser.get(link.replace("tokens+8", "tokens+9"))  # over this page's address
        self.wait(lambda: self.find(".problem")[0].text)
        self.assertIn("is broken", self.find(".problem")[0].text)

    def test_a_link_has_one_of_several_runs_and_the_head_that_is_watched(self):
        traced = [step for step in STEPS if b"--trace" in (PROGRAMS / f"{step}.wasm").read_bytes()]
        self.open(traced[0], inside=True)
        self.find(".playground .looks select")[0].send_keys("2")
        self.type(f'--prompt "A" --max-new-tokens 1\ntools/run {traced[0][:2]} --prompt "B" --max-new-tokens 1')
        self.wait(lambda: len(self.find(".run")) == 2 and all(state.text.startswith("done") for state in self.find(".run .state")))
        self.visit(self.copied())
        self.assertIn("done", self.ended())
        self.assertEqual([run.accessible_name for run in self.find(".run")], ['--prompt "A" --max-new-tokens 1 --trace-attention 2,0'])
        self.assertTrue(self.find(".playground .watch")[0].is_selected())
        self.assertEqual([menu.get_attribute("value") for menu in self.find(".playground .looks select")], ["2", "0"])
        self.wait(lambda: self.find("canvas.matrix"))

    def test_a_browser_that_forbids_to_copy_shows_the_link(self):
        for code in ("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))", "Object.defineProperty(navigator, 'clipboard', { value: undefined })"):
            self.open()
            self.browser.execute_script(code)
            self.type('--prompt "A" --max-new-tokens 1')
            self.assertIn("done", self.ended())
            self.press(".run .link")
            self.wait(lambda: self.find(".run .address"))
            self.assertEqual(self.find(".run .address")[0].get_attribute("value"), self.browser.current_url)
            self.assertEqual(self.find(".run .address")[0].accessible_name, "link to this run")

    @unittest.skipUnless(len(STEPS) > 1, "no other step is built")
    def test_a_link_that_cannot_be_used_says_why_and_the_page_can_be_read(self):
        self.open()
        example = self.find("#playground-line")[0].get_attribute("value")
        self.type('--prompt "A fox" --max-new-tokens 1')
        self.assertIn("done", self.ended())
        link = self.browser.current_url
        cases = {link[:-2]: "it is broken: a part of it is missing or has changed", link.replace("fox", "cat"): "it is broken",
                 link.replace("fox", "%E0%A4%A"): "it is broken", link.replace("#run=1", "#run=7"): "it is of version 7, and this page reads version 1",
                 link + "x" * 8000: "characters, and a link has at most 8,000",
                 link.replace(f"steps/{STEPS[0]}", f"steps/{STEPS[1]}"): f"its run is for step {STEPS[0]}, but this page runs {STEPS[1]}"}
        self.browser.get_log("browser")
        for address, words in cases.items():
            with self.subTest(words):
                self.visit(address)
                self.assertRegex(self.find(".problem")[0].text, f"^The link to a run cannot be used: .*{words}.* The command line stays as it was.$")
                self.assertEqual(self.find(".run"), [])
                self.assertTrue(self.find("h1")[0].is_displayed())
                if f"steps/{STEPS[0]}/" in address:
                    self.assertEqual(self.find("#playground-line")[0].get_attribute("value"), example)
                self.assertEqual([entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"], [])
        self.type('--prompt "A" --max-new-tokens 1')
        self.assertIn("done", self.ended())
        self.assertEqual(self.find(".problem")[0].text, "")

    def test_a_run_too_long_for_a_link_says_so(self):
        self.open()
        self.type('--prompt "A" --max-new-tokens 1')
        self.assertIn("#run=1", self.browser.current_url)
        self.type("--prompt '" + "fox " * 2500 + "' --max-new-tokens 1")
        self.assertRegex(self.find(".note")[0].text, r"^The link to this run would have 10,\d+ characters, and more than 8,000 get lost on the way: a reload of this page forgets this run\.$")
        self.assertNotIn("#", self.browser.current_url)
        self.ended()
        self.press(".run .link")
        self.assertIn("This run cannot be shared: The link to this run would have 10,", self.find(".problem")[0].text)
        self.type('--prompt "A" --max-new-tokens 1')
        self.assertEqual(self.find(".note")[0].text, "")


class Pasted(Browser):
    """Command lines from a README or a terminal."""

    def test_a_line_of_a_readme_runs_as_it_does_in_a_shell(self):
        self.open()
        step = STEPS[0]
        line = f"""$ ./tools/run {int(step[:2])} --prompt 'The "old" king' \\\n    --max-new-tokens 4 --json 2>&1  # a remark"""
        self.type(line)
        self.assertIn("done", self.ended())
        native = subprocess.run([NATIVE / step, "--prompt", 'The "old" king', "--max-new-tokens", "4", "--json"], capture_output=True, text=True, cwd=ROOT, check=True)
        here = next(line for line in self.output().splitlines() if line.startswith("{"))
        self.assertEqual(json.loads(here)["sequences"], json.loads(native.stdout)["sequences"])

    @unittest.skipUnless(len(STEPS) > 1, "no other step is built")
    def test_a_line_for_another_step_leads_to_its_page(self):
        first, other = STEPS[0], STEPS[1]
        number = other.split("-")[0]
        self.open(first)
        self.type(f'tools/run {number} --prompt "A fox" --max-new-tokens 2')
        problem = self.find(".problem")[0]
        self.assertIn(f"the command line is for step {number}, and this page runs {first}", problem.text)
        self.assertEqual(self.find(".run"), [])
        problem.find_element(By.TAG_NAME, "a").click()
        self.wait(lambda: f"steps/{other}/" in self.browser.current_url)
        self.assertIn("done", self.ended())
        self.assertEqual(self.find(".run")[0].accessible_name, '--prompt "A fox" --max-new-tokens 2')
        self.type("tools/run 00 --prompt A")
        self.assertEqual(self.find(".problem")[0].text, f"This cannot run here: the command line is for step 00, and this page runs {other}.")

    def test_what_the_page_or_the_program_does_not_know_is_named(self):
        self.open()
        number = STEPS[0][:2]
        for rest, words in (('--prompt "A" | head -3', "has |, for a shell a pipe"), ("--prompt $PROMPT", "$PROMPT"), ("--prompt “A fox”", "has “"),
                            ("—prompt A", "long dash in —prompt"), ("--prompt A > out", "has >")):
            with self.subTest(rest):
                self.type(f"tools/run {number} {rest}")
                self.assertIn(words, self.find(".problem")[0].text)
                self.assertEqual(self.find(".run"), [])
                self.type("")  # which is a run
                self.wait(lambda: self.find(".run"))
                self.browser.execute_script("for (const run of document.querySelectorAll('.run .remove')) run.click()")
        self.type(f"tools/run {number} --prompt A --top-z 3")
        self.assertIn("ended with status 2", self.ended())
        self.assertIn("--top-z", self.output())


if __name__ == "__main__":
    unittest.main()
