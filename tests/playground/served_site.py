"""What the tests of pages share: the site of a small server, and headless Chromium as a reader has it.

Each test_*.py builds the site with the steps that tools/wasm has built, unless STAIRCASE_SITE names the folder of one.
tools/wasm --test builds the steps and one site, and runs all tests."""

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
import axe  # noqa: E402, F401
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
    FOLDER = Path(os.environ.get("STAIRCASE_SITE", Path(temporary.name) / "site"))
    if not FOLDER.exists():
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
