"""The terminal on the pages of steps: runs, what goes wrong in them, their colours, and browsers that store nothing.

  tests/playground/test_terminal.py      with the steps that tools/wasm has built"""

import time
import unittest

import served_site
from served_site import STEPS, axe, Browser, By, setUpModule, Site  # noqa: F401


class Terminal(Browser):
    def test_a_page_gives_the_tokens_of_the_native_program(self):
        for step in STEPS[::-(-len(STEPS) // 3)][:3]:
            with self.subTest(step):
                self.open(step)
                self.gives_the_tokens_of_the_native_program(step)

    @unittest.skipUnless("17-speculative-decoding" in STEPS, "its step is not built")
    def test_the_first_page_runs_the_step_of_its_picture(self):
        self.browser.get(f"{served_site.ADDRESS}/index.html")
        self.assertLess(self.find(".playground")[0].rect["y"], self.find("table")[0].rect["y"])
        self.gives_the_tokens_of_the_native_program("17-speculative-decoding")

    def test_axe_finds_nothing_after_a_run(self):
        pages = (("17-speculative-decoding", "index.html", '--draft-model tales-1m --prompt "The old king" --max-new-tokens 20'),
                 ("06-top-k", "", '--prompt "The fox" --max-new-tokens 3 --do-sample --top-k 5 --trace-attention 0,1'),
                 ("16-variable-batching", "", '--prompt "The fox" --prompt "A" --max-new-tokens 3'),
                 ("40-beam-search", "", '--prompt "The fox" --num-beams 2 --max-new-tokens 3'))
        for step, page, line in pages:
            if step not in STEPS:
                continue
            for width in (1200, 390):
                self.open(step, width, inside=True)
                if page:
                    self.browser.get(f"{served_site.ADDRESS}/{page}")
                self.type(line)
                self.assertIn("done", self.ended())
                self.wait(lambda: self.find(".inside:not([hidden]) .shown > *"))
                for theme in ("light", "dark"):
                    self.browser.execute_script("document.body.dataset.theme = arguments[0]", theme)
                    with self.subTest(f"{page or step}, {theme}, {width} pixels"):
                        self.assertEqual(axe.found(self.browser), [])

    @unittest.skipUnless("88-parallel-blocks" in STEPS, "its step is not built")
    def test_a_model_is_loaded_whose_folder_a_command_of_the_page_names(self):
        self.open("88-parallel-blocks")
        self.type('--model tests/reference/families/pythia --prompt "Once upon a time" --max-new-tokens 3')
        self.assertIn("done", self.ended())

    def test_runs_stand_side_by_side_and_can_be_stopped_and_removed(self):
        self.open()
        self.type('--prompt "Once upon a time" --max-new-tokens 5')
        self.assertIn("done", self.ended())
        self.type('--prompt "The fox" --max-new-tokens 400')
        self.wait(lambda: "The fox" in self.output())
        self.find(".run .stop")[0].click()
        self.assertEqual(self.state(), "stopped")
        for stop in self.find(".run .stop"):
            self.assertFalse(stop.is_enabled())
            stop.click()  # too late: it changes nothing
        self.assertEqual([state.text.split()[0] for state in self.find(".run .state")], ["stopped", "done"])
        self.type('--prompt "The fox" --max-new-tokens 400')
        self.wait(lambda: "The fox" in self.output())
        for left in (2, 1, 0):  # the first one is running still
            self.find(".run .remove")[0].click()
            self.assertEqual(len(self.find(".run")), left)

    def test_a_run_has_its_whole_command_line_above_it(self):
        """Otherwise it would be unclear which of two runs had which temperature."""
        lines = [f'--prompt "Once upon a time" --max-new-tokens 2 --temperature {temperature}' for temperature in ("1.5", "0.5")]
        for width in (1200, 360):
            with self.subTest(width):
                self.open(width=width)
                for line in reversed(lines):
                    self.type(line)
                self.assertEqual([run.accessible_name for run in self.find(".run")], lines)
                for title, line in zip(self.find(".run header code"), lines, strict=True):
                    self.assertEqual(title.text, line)
                    self.assertFalse(self.browser.execute_script(
                        "const [title] = arguments; return title.scrollWidth > title.clientWidth || title.scrollHeight > title.clientHeight", title))
                self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), width)

    def test_enter_that_chooses_a_character_starts_nothing(self):
        """Chinese and Japanese are typed in two steps."""
        self.open()
        for composing, runs in ((True, 0), (False, 1)):
            self.browser.execute_async_script("""
                const [isComposing, done] = arguments;
                document.querySelector("#playground-line").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing }));
                setTimeout(done, 100);""", composing)
            self.assertEqual(len(self.find(".run")), runs)

    def test_the_commands_of_the_page_run_there(self):
        self.open()
        buttons = self.find("button.try")
        self.assertTrue(buttons)
        self.browser.execute_script("arguments[0].click()", buttons[0])
        command = self.find("details.terminal[data-command]")[0].get_attribute("data-command")
        self.assertIn(self.find("#playground-line")[0].get_attribute("value"), command)
        self.assertNotIn("cannot", self.ended())

    def test_what_is_wrong_is_said_in_a_sentence_and_the_page_goes_on(self):
        self.open()
        self.type("--wrong 3")
        self.assertIn("ended with status 2", self.ended())
        self.assertIn("not understood: --wrong 3", self.output())
        self.type('--prompt "Once')
        self.assertIn("a quotation mark", self.find(".problem")[0].text)
        self.type("--prompt '" + "word " * 100_000 + "' --max-new-tokens 9")  # some steps refuse it, others see its end
        self.assertRegex(self.find(".run")[0].accessible_name, "^--prompt 'word [word ]{100,200} … [word ]{100,200}' --max-new-tokens 9$")
        self.assertRegex(self.ended(), "^(done|ended with status 2)")
        self.assertIn("512", self.output())
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())

    def test_a_model_that_cannot_be_loaded_is_said_and_tried_again(self):
        Site.broken = {"tales-6m/model.safetensors"}
        self.open()
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertEqual(self.ended(), "cannot run: models/tales-6m/model.safetensors cannot be loaded: the server returned status 404")
        Site.broken, Site.cut = set(), {"tales-1m/model.safetensors"}
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertEqual(self.ended(), "cannot run: models/tales-1m/model.safetensors cannot be loaded: it was cut off; try again")
        Site.cut, Site.short = set(), {"tales-6m/model.safetensors"}
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertEqual(self.ended().partition(" after")[0], "ended with status 1")
        self.assertIn("model.safetensors", self.output())
        Site.short = set()
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())

    def test_the_models_are_loaded_once_and_nothing_from_elsewhere(self):
        self.open()
        for _ in range(2):
            self.type('--prompt "A" --max-new-tokens 2')
            self.assertIn("done", self.ended())
            self.open()
        Site.broken = {"model.safetensors", "vocab.json"}  # they are in the browser
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        asked = self.asked()
        self.assertTrue(asked)
        self.assertEqual([url for url in asked if not url.startswith((served_site.ADDRESS, "data:", "blob:"))], [])

    def test_what_a_browser_lacks_is_said(self):
        for code, words in {"delete window.Worker": "workers, which this browser lacks",
                            "WebAssembly.validate = (code) => code.length !== 31": "WebAssembly with vectors",
                            "WebAssembly.validate = (code) => code.length !== 28": "WebAssembly with vectors and exceptions",
                            "delete window.WebAssembly": "WebAssembly"}.items():
            with self.subTest(code):
                lacking = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
                self.open()
                self.assertIn(words, self.find(".problem")[0].text)  # before anybody tries
                self.assertTrue(self.find("h1")[0].is_displayed())
                self.type('--prompt "A"')
                self.assertIn(words, self.find(".problem")[0].text)
                self.assertEqual(self.find(".run"), [])
                self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", lacking)

    def test_a_page_that_is_loaded_again_in_the_middle_goes_on(self):
        self.open()
        self.type('--prompt "The fox" --max-new-tokens 400')
        for state in ("loading", "running"):
            self.wait(lambda: self.state().startswith(state) or "The fox" in self.output())
            self.browser.refresh()
            self.type('--prompt "The fox" --max-new-tokens 400')
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())

    def test_a_run_ends_while_another_tab_is_in_front(self):
        self.open()
        self.type('--prompt "The fox" --max-new-tokens 30')
        page = self.browser.current_window_handle
        self.browser.switch_to.new_window("tab")
        time.sleep(0.5)
        self.browser.switch_to.window(page)
        self.assertIn("done", self.ended())

    def test_a_page_from_a_file_says_why_nothing_runs(self):
        self.open(address=f"file://{served_site.FOLDER}")
        self.type('--prompt "A"')
        self.assertIn("python3 -m http.server", self.find(".problem")[0].text)

    def test_it_fits_a_narrow_screen_and_has_names_for_those_who_hear_it(self):
        self.open(width=360)
        self.type('--prompt "A" --max-new-tokens 2')
        self.ended()
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        self.assertEqual(self.find(".run pre")[0].get_attribute("role"), "log")
        self.assertEqual(self.find(".run .state")[0].get_attribute("role"), "status")
        self.browser.execute_script("for (const part of document.querySelectorAll('.playground details')) part.open = true")
        unnamed = [box for box in self.find(".playground textarea, .playground button:not([hidden]), .playground pre")
                   if not box.accessible_name]
        self.assertEqual(unnamed, [])


class Legend(Browser):
    ORIGINS = {"t-green": ("accepted", "solid"), "t-red": ("corrected", "wavy"), "t-cyan": ("bonus", "double")}

    def test_colours_of_drafts_have_names_and_lines_too(self):
        if "17-speculative-decoding" not in STEPS:
            self.skipTest("its step is not built")
        self.open("17-speculative-decoding")
        self.type('--prompt "Once upon a time" --max-new-tokens 60 --draft-model tales-1m')
        self.assertIn("done", self.ended())
        legend = self.find(".run .legend")
        self.assertEqual([item.text.partition(":")[0] for item in legend[0].find_elements(By.TAG_NAME, "li")], ["accepted", "corrected", "bonus"])
        self.assertTrue(legend[0].accessible_name)
        tokens = self.find(".run pre [role=group]")
        self.assertEqual({(token.get_attribute("class"), token.accessible_name) for token in tokens}, {(name, words) for name, (words, _) in self.ORIGINS.items()})
        styles = self.browser.execute_script("return arguments[0].map((one) => [one.className, getComputedStyle(one).textDecorationStyle, getComputedStyle(one).textDecorationLine])", tokens)
        self.assertEqual({tuple(style) for style in styles}, {(name, line, "underline") for name, (_, line) in self.ORIGINS.items()})
        names = [token.get_attribute("class") for token in tokens]
        self.assertNotIn(True, [before == after for before, after in zip(names, names[1:])])  # neighbours are named once
        self.type('--prompt "Once upon a time" --max-new-tokens 3')
        self.assertIn("done", self.ended())
        self.assertEqual(self.find(".run:first-child .legend"), [])

    def test_recorded_outputs_have_them(self):
        self.open("17-speculative-decoding")
        self.assertTrue(self.find("details.terminal .legend"))
        self.assertEqual({token.get_attribute("aria-label") for token in self.find("details.terminal pre [role=group]")}, {"accepted", "corrected", "bonus"})


class WithoutStorage(Browser):
    """A site without TLS: browsers give it no storage for models."""
    ARGUMENTS = ("--host-resolver-rules=MAP staircase.test 127.0.0.1",)

    def test_it_runs(self):
        self.open(address=served_site.ADDRESS.replace("127.0.0.1", "staircase.test"))
        self.assertFalse(self.browser.execute_script("return 'caches' in window"))
        for _ in range(2):
            self.type('--prompt "A" --max-new-tokens 2')
            self.assertIn("done", self.ended())
            self.assertEqual(self.find(".note")[0].text, "This browser stores nothing for this page, so each run loads the models again.")


class StorageRefused(Browser):
    PREFERENCES = {"profile.default_content_setting_values.cookies": 2}

    def test_it_runs(self):
        self.open()
        self.assertIn("denied", self.browser.execute_async_script(
            "const done = arguments[0]; caches.open('x').then(() => done('kept'), (error) => done('denied: ' + error))"))
        for _ in range(2):
            self.type('--prompt "A" --max-new-tokens 2')
            self.assertIn("done", self.ended())
            self.assertEqual(self.find(".note")[0].text, "This browser forbids this page to store anything, so each run loads the models again.")


class StorageFull(Browser):
    def test_it_runs(self):
        """Also where a page may have no memory of several threads."""
        refused = "new DOMException('no', 'SecurityError')"
        code = "delete window.SharedArrayBuffer"
        self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
        for lacking, words in (
                ("Cache.prototype.put = async () => { throw new DOMException('', 'QuotaExceededError'); };", "has no more storage for"),
                (f"caches.open = async () => {{ throw {refused}; }};", "forbids"),
                (f"Object.defineProperty(self, 'caches', {{ get() {{ throw {refused}; }} }});", "forbids"),
                ("Cache.prototype.match = async () => { throw new Error('broken'); };", "stores nothing for")):
            with self.subTest(lacking):
                Site.lacking = lacking
                self.open()
                self.assertEqual(self.browser.execute_script("return typeof SharedArrayBuffer"), "undefined")
                self.type('--prompt "A" --max-new-tokens 2')
                self.assertIn("done", self.ended())
                self.assertRegex(self.find(".note")[0].text, f"^This browser {words} this page.*, so each run loads the models again\\.$")
                self.assertTrue(self.find("h1")[0].is_displayed())


if __name__ == "__main__":
    unittest.main()
