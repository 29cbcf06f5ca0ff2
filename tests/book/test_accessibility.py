"""What axe-core finds on the site: nothing, on pages of all kinds, in light and dark, wide and narrow.

Each commit tries a third of the pages, another commit others. STAIRCASE_ALL_STEPS=1 (`tools/test --all`) tries all of
them."""

import sys
import tempfile
import threading
import time
import unittest
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import axe
import test_site  # finds the Python that has Sphinx and Selenium
from support import run_build

from chosen import chosen

# All kinds of pages; the widest, the longest, and those with tables, pictures, outputs and a terminal.
PAGES = ("index.html", "docs/index.html", "docs/steps.html", "docs/glossary.html", "docs/how-gpt2-works.html",
         "docs/server.html", "docs/scaling.html", "docs/benchmarks/cpu.html", "docs/playground.html", "steps/01-greedy-decoding/index.html",
         "steps/06-top-k/index.html", "steps/15-kv-cache-fix/index.html", "steps/40-beam-search/index.html",
         "steps/97-chat-server/index.html", "steps/06-top-k/folder.html", "source/common/decoding/sampling.h.html",
         "source/CITATION.cff.html", "compare.html?from=05&to=07", "search.html?q=nucleus", "search.html?q=nuclues")
PLAYGROUND = ("06-top-k", "40-beam-search")  # their pages have a terminal


def pages():
    """Those that this commit tries, at least one."""
    return [page for page in PAGES if chosen(page, 3)] or PAGES[:1]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def setUpModule():
    if not test_site.furo:
        raise unittest.SkipTest("Sphinx, Furo or MyST is not installed; tools/setup --book installs them")
    if not test_site.HAVE_BROWSER:
        raise unittest.SkipTest("a part of the browser is not installed; tools/setup --browser installs it")
    axe.script()
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    programs = Path(folder.name) / "programs"
    programs.mkdir()
    for name in PLAYGROUND:  # a terminal is drawn before its program is there
        for end in (".wasm", ".js"):
            (programs / f"{name}{end}").write_text("")
    test_site.SITE = Path(folder.name).resolve() / "site"
    done = run_build("site", test_site.SITE, programs)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


class Accessibility(test_site.Browser):
    """From a server, since a page that was opened from a file has no terminal."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=test_site.SITE))
        cls.addClassCleanup(cls.server.server_close)
        cls.addClassCleanup(cls.server.shutdown)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def found(self):
        return axe.found(self.browser)

    def test_axe_finds_nothing(self):
        for page in pages():
            began = time.monotonic()
            for width in (1280, 390):
                self.open(page, width=width)
                for theme in ("light", "dark"):
                    self.script("document.body.dataset.theme = arguments[0]", theme)
                    with self.subTest(f"{page}, {theme}, {width} pixels"):
                        self.assertEqual(self.found(), [])
            print(f"{page}: {time.monotonic() - began:.0f} s", file=sys.stderr)

    def test_axe_finds_nothing_at_a_terminal(self):
        self.open(f"steps/{PLAYGROUND[0]}/index.html")
        self.assertTrue(self.find(".playground textarea"))
        self.assertEqual(self.found(), [])

    def test_axe_finds_what_is_wrong(self):
        self.open("docs/playground.html")
        self.script("""document.querySelector("article").insertAdjacentHTML("beforeend",
            '<img src="x.png"><p style="color: #bbb">pale</p>');""")
        found = " ".join(self.found())
        self.assertIn("image-alt", found)
        self.assertIn("color-contrast", found)


if __name__ == "__main__":
    unittest.main()
