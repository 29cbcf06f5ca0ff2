"""The terminal on the pages of steps as a reader has it: the site of a small server in headless Chromium.

  tests/playground/test_page.py      with the steps that tools/wasm has built; tools/wasm --test builds them first"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
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
PROGRAMS = ROOT / "build-wasm/steps"
NATIVE = ROOT / "build/steps"
STEPS = sorted(path.stem for path in PROGRAMS.glob("*.wasm"))

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    webdriver = None

HAVE_BROWSER = webdriver and shutil.which("chromium") and shutil.which("chromedriver")
PATIENCE = 60


class Site(SimpleHTTPRequestHandler):
    """The site; what is in `broken` is not there, and of what is in `cut` half comes."""
    broken, cut = set(), set()

    def do_GET(self):
        if any(self.path.endswith(name) for name in self.broken):
            self.send_error(404)
        elif any(self.path.endswith(name) for name in self.cut):
            content = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
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
    if not STEPS:
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


class Terminal(unittest.TestCase):
    def setUp(self):
        Site.broken, Site.cut = set(), set()
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.browser = webdriver.Chrome(options=options)
        self.addCleanup(self.browser.quit)

    def open(self, step=STEPS[0] if STEPS else None, width=1200, address=None):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
        self.browser.get(f"{address or ADDRESS}/steps/{step}/index.html")

    def find(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition):
        return WebDriverWait(self.browser, PATIENCE, 0.05).until(lambda _: condition())

    def type(self, line):
        box = self.find("#playground-line")[0]
        self.browser.execute_script("arguments[0].value = arguments[1]", box, line)
        box.send_keys(Keys.ENTER)

    def state(self):
        return self.find(".run .state")[0].text  # of the newest

    def ended(self):
        self.wait(lambda: self.find(".run") and self.state().startswith(("done", "ended", "stopped", "cannot")))
        return self.state()

    def output(self):
        return self.browser.execute_script("return document.querySelector('.run pre').textContent")

    def test_a_page_gives_the_tokens_of_the_native_program(self):
        for step in STEPS[:3]:
            with self.subTest(step):
                words = ["--prompt", "The old king", "--json", "--max-new-tokens", "40"]
                if step.endswith("speculative-decoding"):
                    words += ["--draft-model", "tales-1m"]
                self.open(step)
                self.type(" ".join(f'"{word}"' for word in words))
                self.assertRegex(self.ended(), r"^done after \d+\.\d s$")
                native = subprocess.run([NATIVE / step, *words], capture_output=True, text=True, cwd=ROOT, check=True)
                here = next(line for line in self.output().splitlines() if line.startswith("{"))
                self.assertEqual(json.loads(here)["sequences"], json.loads(native.stdout)["sequences"])

    def test_runs_stand_side_by_side_and_can_be_stopped_and_removed(self):
        self.open()
        self.type('--prompt "Once upon a time" --max-new-tokens 5')
        self.assertIn("done", self.ended())
        self.type('--prompt "The fox" --max-new-tokens 400')
        self.wait(lambda: "The fox" in self.output())
        self.find(".run button")[0].click()
        self.assertEqual(self.state(), "stopped")
        self.assertEqual(len(self.find(".run")), 2)
        for left in (1, 0):
            self.find(".run button")[0].click()
            self.assertEqual(len(self.find(".run")), left)

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
        self.type("--prompt '" + "word " * 100_000 + "'")  # some steps refuse it, others see its end
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
        Site.cut = set()
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
        asked = [json.loads(entry["message"])["message"]["params"]["request"]["url"]
                 for entry in self.browser.get_log("performance") if "Network.requestWillBeSent\"" in entry["message"]]
        self.assertTrue(asked)
        self.assertEqual([url for url in asked if not url.startswith((ADDRESS, "data:", "blob:"))], [])

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
        self.browser.execute_script("document.querySelector('.playground details').open = true")
        unnamed = [box for box in self.find(".playground textarea, .playground button, .playground pre")
                   if not box.accessible_name]
        self.assertEqual(unnamed, [])


if __name__ == "__main__":
    unittest.main()
