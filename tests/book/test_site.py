"""The site as a reader has it: opened from a file in headless Chromium, with and without JavaScript, and on paper."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

try:
    import selenium  # noqa: F401
    import sphinx  # noqa: F401
except ImportError:
    if sys.executable != "/usr/bin/python3" and Path("/usr/bin/python3").exists():  # the system's packages are the system's Python's
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])

from support import ROOT, run_build, small_repository  # noqa: E402

from pages import playground  # noqa: E402

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    webdriver = None

try:
    import furo
    import myst_parser
    import sphinx  # noqa: F811
    from pages import extension
    from step_commands import series
except ImportError:
    furo = None

HAVE_BROWSER = webdriver and shutil.which("chromium") and shutil.which("chromedriver")
SITE = None


def setUpModule():
    global SITE
    if not furo:
        raise unittest.SkipTest("Sphinx, Furo or MyST is not installed; tools/setup --book installs them")
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    SITE = Path(folder.name).resolve() / "site"
    began = time.monotonic()
    done = run_build("site", SITE)
    print(f"built in {time.monotonic() - began:.0f} s: {done.stdout.strip()}", file=sys.stderr)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


class Links(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.loads, self.icons, self.meta = [], [], [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "meta":
            self.meta[attributes.get("name") or attributes.get("property")] = attributes.get("content")
        if tag == "link" and attributes.get("rel") == "icon":
            self.icons.append(attributes["href"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in ("script", "img", "link", "iframe", "source") and attributes.get("rel") not in ("next", "prev", "search"):
            self.loads += [attributes[name] for name in ("src", "href") if attributes.get(name)]


class Files(unittest.TestCase):
    def pages(self):
        return {path: Links(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")}

    def test_it_is_small(self):
        size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
        # Eleven models, with their files and tokenizers, are some thirty pages of source, and so are the ladders of
        # kernels. The answers to the exercises, and what the search has of them, are 3 KB a step.
        self.assertLess(size, 167_000 * len(list((ROOT / "steps").glob("[0-9][0-9]*-*"))))

    def test_every_link_and_anchor_leads_somewhere(self):
        pages = self.pages()
        self.assertGreater(len(pages), 100)
        count = 0
        for page, found in pages.items():
            self.assertEqual(len(found.ids), len(set(found.ids)), f"{page}: an id is there twice")
            for link in found.links:
                if re.match(r"[a-z]+:", link):
                    continue
                target, _, anchor = link.partition("#")
                target = unquote(target.partition("?")[0])
                path = (page.parent / target).resolve() if target else page
                self.assertTrue(path.is_file(), f"{page.relative_to(SITE)} has a link to {link}, and there is no such file")
                if anchor:
                    self.assertIn(unquote(anchor), pages[path].ids, f"{page.relative_to(SITE)} has a link to {link}")
                count += 1
        self.assertGreater(count, 5000)

    def test_each_page_describes_itself(self):
        found, pages = {}, self.pages()
        for page, parts in pages.items():
            self.assertTrue(parts.meta.get("og:title"), page)
            self.assertEqual([icon[:19] for icon in parts.icons], ["data:image/svg+xml,"], page)
            self.assertEqual(parts.meta.get("description"), parts.meta.get("og:description"), page)
            name = page.relative_to(SITE).as_posix()
            if name.startswith("docs/") or re.fullmatch(r"(steps/[^/]+/)?index\.html", name):
                found.setdefault(parts.meta.get("description"), []).append(name)
                self.assertLess(20, len(parts.meta["description"]), name)
                self.assertGreater(220, len(parts.meta["description"]), name)
                self.assertNotRegex(parts.meta["description"], r"</|<\w+ ", name)  # a picture's source
        self.assertEqual([pages for pages in found.values() if len(pages) > 1], [])
        meta = pages[SITE / "steps/06-top-k/index.html"].meta
        headline = re.search(r"(?m)^\*(.+)\*$", (ROOT / "steps/06-top-k/README.md").read_text(encoding="utf-8"))[1]
        self.assertEqual((meta["description"], meta["og:title"]), (headline, "06 Top-k - Staircase"))

    def test_each_step_leads_to_the_one_that_it_continues_and_to_those_that_continue_it(self):
        readmes = {path.parent.name: path.read_text(encoding="utf-8") for path in (ROOT / "steps").glob("[0-9][0-9]*-*/README.md")}
        continued = {name: re.search(r"^Continues \[[^]]*\]\(\.\./([^)/]*)/?\)(, as a detour)?\.$", text, re.MULTILINE) for name, text in readmes.items()}
        steps, count = {step.name: step for step in series.steps()}, 0
        for name, found in continued.items():
            if found:
                parent, kind = found[1], "detour" if found[2] else "next"
                pages = [extension.StepNeighbours.html(None, None, steps[one]) for one in (name, parent)]
                self.assertIn(f'<li><span>continues</span> <a href="../{parent}/index.html">', pages[0])
                self.assertIn(f'<li><span>{kind}</span> <a href="../{name}/index.html">', pages[1])
                self.assertEqual("A detour: nothing continues it." in pages[0], kind == "detour")
                count += 1
        self.assertGreater(count, 50)

    def test_a_command_runs_as_shown_unless_it_has_variables_or_input(self):
        """A page's terminal runs data-command unless there is a data-run."""
        for text, runnable, typed, wanted in (
                ("tools/run 06", "tools/run 06", "", ""),
                ("tools/run 06 --prompt $A", 'tools/run 06 --prompt "A fox"', "", ' data-run="tools/run 06 --prompt &quot;A fox&quot;"'),
                ("tools/run 51 --requests -", "tools/run 51 --requests -", '{"a": 1}\n', ' data-input="{&quot;a&quot;: 1}\n"')):
            command = SimpleNamespace(text=text, runnable=runnable, input=typed)
            self.assertEqual(extension.run_here(command), wanted)

    def test_the_colours_of_code_stand_out_on_every_kind_of_line(self):
        style = (SITE / "_static/book.css").read_text(encoding="utf-8")
        dark = style.index('body[data-theme="dark"]')

        def luminance(colour):
            values = (int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5))
            return sum(share * (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
                       for share, value in zip((0.2126, 0.7152, 0.0722), values))

        for rules in (style[:dark], style[dark:style.index("}", dark)], style[style.index("}", dark):]):
            colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rules))
            inks = [name for name in colours if name.startswith("code-") or name in ("quiet", "color-code-foreground")]
            grounds = [name for name in colours if name.startswith("line-") or name == "color-code-background"]
            self.assertEqual((len(inks), len(grounds)), (7, 5))
            for ink in inks:
                for ground in grounds:
                    lights = sorted(luminance(colours[name]) + 0.05 for name in (ink, ground))
                    self.assertGreaterEqual(lights[1] / lights[0], 4.5, (ink, ground, colours[ink], colours[ground]))

    def test_nothing_is_loaded_from_elsewhere(self):
        for page, found in self.pages().items():
            for address in found.loads:
                if address.startswith("data:"):
                    continue
                self.assertTrue((page.parent / address.partition("?")[0]).resolve().is_relative_to(SITE), address)
                self.assertTrue((page.parent / address.partition("?")[0]).is_file(), f"{page}: {address}")
        for style in SITE.rglob("*.css"):
            self.assertNotRegex(style.read_text(encoding="utf-8"), r"@import|url\((?!\"?data:|'data:)")


@unittest.skipUnless(HAVE_BROWSER, "chromium, chromium-driver or python3-selenium is not installed")
class Browser(unittest.TestCase):
    SCRIPTS = True

    @classmethod
    def setUpClass(cls):
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        if not cls.SCRIPTS:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        cls.browser = webdriver.Chrome(options=options)
        cls.addClassCleanup(cls.browser.quit)

    def open(self, page, width=1300, height=900):
        self.browser.set_window_size(max(width, 500), height)
        # A window of a desktop is never as narrow as that of a telephone.
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        self.browser.get(f"{self.address()}/{page}")

    def address(self):
        return f"file://{SITE}"

    def find(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, code, *arguments):
        return self.browser.execute_script(code, *arguments)

    def unfold(self):
        self.script("for (const part of document.querySelectorAll('details.solution')) part.open = true")


PAGES = ("index.html", "steps/01-greedy-decoding/index.html", "steps/17-speculative-decoding/index.html",
         "steps/54-latencies/index.html", "steps/16-variable-batching/folder.html", "docs/architecture.html",
         "docs/benchmarks/cpu.html", "source/common/decoding/sampling.h.html", "compare.html?from=06&to=27",
         "search.html?q=nucleus")


class Reading(Browser):
    def test_no_page_says_anything_to_the_console_or_asks_for_anything_else(self):
        for page in PAGES:
            self.open(page)
            self.assertEqual([entry["message"] for entry in self.browser.get_log("browser")], [], page)
        asked = re.findall(r'"url":"((?!file:|data:|about:|chrome)[^"]+)"',
                           "".join(entry["message"] for entry in self.browser.get_log("performance")
                                   if "requestWillBeSent" in entry["message"]))
        self.assertEqual(asked, [])

    def test_a_search_finds_words_in_their_sentences(self):
        self.open("steps/06-top-k/index.html")
        box = self.find(".sidebar-search")[0]
        box.send_keys("nucleus", Keys.ENTER)
        results = WebDriverWait(self.browser, 20).until(lambda _: self.find("#search-results li"))
        self.assertGreater(len(results), 2)
        found = " ".join(result.text for result in results)
        self.assertIn("07 Top-p", found)
        self.assertIn("smallest set of most likely tokens", found)
        self.assertTrue(self.find("#search-results mark"))
        next(link for link in self.find("#search-results a") if "07 Top-p" in link.text).click()
        WebDriverWait(self.browser, 20).until(lambda browser: "Top-p" in browser.title)

    def test_a_search_for_what_is_nowhere(self):
        self.open("search.html?q=qzxv")
        self.assertIn("qzxv", self.find("#search-count")[0].text)

    def results(self, query):
        """The titles that a search finds, in their order; the reader types the words."""
        if not self.browser.current_url.endswith("search.html"):
            self.open("search.html")
        box = self.find(".search-form input")[0]
        box.clear()
        box.send_keys(query)
        return [link.text for link in self.find("#search-results a")]

    def test_a_search_finds_other_forms_of_a_word(self):
        for one, other in (("sampled", "sampling"), ("caches", "caching"), ("preempted", "preemption"),
                           ("quantizing", "quantized")):
            forms = self.results(one), self.results(other)
            self.assertGreater(len(forms[0]), 3, one)
            self.assertEqual(set(forms[0]) ^ set(forms[1]) if len(forms[0]) < 60 else set(), set(), (one, other))
        self.results("speculated")
        self.assertTrue(any("speculati" in mark.text.lower() for mark in self.find("#search-results mark")))

    def test_a_search_forgives_one_slip(self):
        for slip, word in (("nuclues", "nucleus"), ("preemtion", "preemption"), ("tempereture", "temperature"),
                           ("perpplexity", "perplexity")):
            expected = self.results(word)
            found = self.results(slip)
            self.assertTrue(expected, word)
            self.assertEqual(found[:5], expected[:5], slip)
            self.assertIn(f"Nothing here has “{slip}”, so this looks for ", self.find("#search-count")[0].text)
            self.assertIn(word, self.find("#search-count")[0].text)
            self.assertTrue(self.find("#search-results mark"))

    def test_a_search_shows_what_explains_before_code(self):
        code = re.compile(r"– [\w/]+\.(h|cpp|txt|md)$")
        for query in ("softmax", "top_k", "keep_top_p", "logits"):
            kinds = [bool(code.search(title)) for title in self.results(query)]
            self.assertIn(False, kinds, query)
            self.assertEqual(kinds, sorted(kinds), query)
        self.assertIn(True, kinds + [bool(code.search(title)) for title in self.results("keep_top_p")])

    def test_nothing_is_wider_than_a_narrow_screen(self):
        for page in PAGES:
            self.open(page, width=360)
            self.unfold()
            wide = self.script("""
                return [document.documentElement.scrollWidth, [...document.querySelectorAll("main, .main, article, article *")].filter((part) => {
                  const box = part.getBoundingClientRect();
                  return box.width && box.right > innerWidth + 1 &&
                    !part.closest("pre, .diff, .hunk > div, .map, .table-wrapper, summary");
                }).slice(0, 3).map((part) => part.outerHTML.slice(0, 200))]""")
            self.assertEqual(wide[1], [], page)
            self.assertLessEqual(wide[0], 360, page)

    def test_the_keyboard_alone_reaches_every_diff(self):
        self.open("steps/07-top-p/index.html")
        regions = self.script("return [...document.querySelectorAll('details:is(.file, .solution) > summary')].length")
        reached = set()
        for _ in range(200):
            self.browser.switch_to.active_element.send_keys(Keys.TAB)
            element = self.script("""
                const part = document.activeElement;
                return part.matches("details:is(.file, .solution) > summary, .diff")
                  ? part.closest("details").id + (part.matches(".diff") ? " diff" : "") : "";""")
            if element:
                reached.add(element)
            if element and not element.endswith("diff") and not self.script("return document.activeElement.parentElement.open"):
                self.browser.switch_to.active_element.send_keys(Keys.ENTER)
                self.assertTrue(self.script("return document.activeElement.parentElement.open"))
        names = {part.get_attribute("id") for part in self.find("details:is(.file, .solution)")}
        self.assertEqual(len(names), regions)
        self.assertEqual({name for name in reached if not name.endswith(" diff")}, names)
        with_diff = {part.get_attribute("id") + " diff" for part in self.find("details.file") if part.find_elements(By.CLASS_NAME, "diff")}
        self.assertEqual({name for name in reached if name.endswith(" diff")}, with_diff)

    def test_light_and_dark_by_the_system_and_by_the_switch(self):
        def lightness():
            return [sum(map(int, re.findall(r"\d+", self.script(f"return getComputedStyle({what})")[:20])[:3])) for what in
                    ("document.body).backgroundColor + (''", "document.querySelector('.diff .code')).color + (''")]

        for scheme, dark in (("light", False), ("dark", True)):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            self.open("steps/06-top-k/index.html")
            page, code = lightness()
            self.assertEqual((page < 200, code > 380), (dark, dark))
        for theme, dark in (("light", False), ("dark", True)):  # the system prefers dark
            while self.script("return document.body.dataset.theme") != theme:
                self.script("document.querySelector('.theme-toggle').click()")
            page, code = lightness()
            self.assertEqual((page < 200, code > 380), (dark, dark))
        self.script("localStorage.clear()")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_text_stands_out_from_its_background(self):
        for theme in ("light", "dark"):
            self.open("steps/17-speculative-decoding/index.html")
            self.unfold()
            faint = self.script("""
                document.body.dataset.theme = arguments[0];
                const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
                const parse = (text) => text.match(/[\\d.]+/g).map(Number);
                const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
                const ground = (part) => {
                  for (; part; part = part.parentElement) {
                    const colour = parse(getComputedStyle(part).backgroundColor);
                    if (colour.length < 4 || colour[3] === 1) return colour;
                  }
                  return [255, 255, 255];
                };
                const faint = [];
                for (const part of document.querySelectorAll("article p, article a, article code, .code *, .terminal span, .highlight span, summary")) {
                  if (!part.textContent.trim() || !part.getClientRects().length) continue;
                  const [a, b] = [light(parse(getComputedStyle(part).color)), light(ground(part))];
                  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                  if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${part.outerHTML.slice(0, 80)}`);
                }
                return [...new Set(faint)].slice(0, 5);""", theme)
            self.assertEqual(faint, [], theme)

    def test_side_by_side_has_the_lines_of_both_files(self):
        self.open("steps/15-kv-cache-fix/index.html")
        self.unfold()
        unified = self.script("return [...document.querySelectorAll('.diff')].map((d) => [d.querySelectorAll('ins').length, d.querySelectorAll('del').length])")
        self.script("document.querySelector('[data-view=sides]').click()")
        sides = self.script("return [...document.querySelectorAll('.diff > .two')].map((d) => [d.querySelectorAll('ins').length, d.querySelectorAll('del').length])")
        self.assertEqual(unified, sides)
        uneven = self.script("""return [...document.querySelectorAll('.sides')].filter((grid) =>
            [...grid.children].filter((part) => part.tagName !== 'DETAILS').length % 2).length""")
        self.assertEqual(uneven, 0)
        for width in (1300, 360):
            self.open("steps/15-kv-cache-fix/index.html", width=width)  # it remembers the choice
            self.unfold()
            self.assertTrue(self.find(".diff > .two"))
            self.assertLessEqual(self.script("return document.documentElement.scrollWidth"), width)
        self.script("localStorage.clear()")

    def test_a_link_to_a_folded_line_opens_it(self):
        self.open("steps/06-top-k/index.html#sampling.h-10")
        self.assertTrue(self.script("return document.getElementById('sampling.h-10').checkVisibility()"))

    def test_the_diff_is_folded_until_a_hunk_of_the_text_leads_there(self):
        shown = "return document.querySelector('details.solution ins').checkVisibility()"
        self.open("steps/06-top-k/index.html")
        self.assertIn("const float smallest = kth_largest", self.find("#the-idea .hunk ins")[2].text)
        self.assertFalse(self.script(shown))
        self.script("document.querySelectorAll('.hunk ins > a')[2].click()")
        WebDriverWait(self.browser, 5).until(lambda _: self.script(shown))
        self.assertIn("const float smallest", self.script("return document.querySelector(':target').textContent"))

    def test_any_two_steps_can_be_compared(self):
        self.open("compare.html?from=05&to=06")
        text = self.find("#comparison")[0].text
        self.assertIn("keep_top_k", text)
        self.assertEqual(self.find("#compare-count")[0].text.split(" lines")[0], "+11 −0")
        self.open("compare.html?from=06&to=44")  # sampling.h has landed on the way
        self.assertIn("keep_top_p", self.script("return document.getElementById('comparison').textContent"))
        self.open("compare.html?from=09&to=09")
        self.assertEqual(self.find("#compare-count")[0].text, "No difference.")

    def test_the_sidebar_shows_the_current_page_in_its_open_group(self):
        for page, group in (("steps/68-graceful-shutdown/index.html", "Paged cache and server"),
                            ("steps/96-dropped-turns/index.html", "Chat"), ("docs/glossary.html", "The book"), ("index.html", "The book")):
            self.open(page, height=500)
            opened = [part.text for part in self.find(".sidebar-tree details[open] > summary")]
            self.assertEqual(len(opened), 1, page)
            self.assertTrue(opened[0].startswith(group), f"{page}: {opened}")
            self.assertGreater(len(self.find(".sidebar-tree details")), 5)
            current = self.find(".sidebar-tree [aria-current=page]")
            self.assertEqual(len(current), page != "index.html", page)
            if current:
                inside = self.script("""
                    const list = document.querySelector(".sidebar-scroll").getBoundingClientRect();
                    const link = arguments[0].getBoundingClientRect();
                    return link.height > 0 && link.top >= list.top && link.bottom <= list.bottom""", current[0])
                self.assertTrue(inside, page)

    def test_nothing_shows_through_above_the_list_of_pages(self):
        self.open("docs/glossary.html", height=500)
        for scrolled in (0, 15, 300):
            found = self.script("""
                const [list, more] = [document.querySelector(".sidebar-scroll"), document.querySelector(".sidebar-more")];
                list.scrollTo({ top: arguments[0], behavior: "instant" });
                return [list.scrollTop, list.getBoundingClientRect().top - more.getBoundingClientRect().bottom,
                        getComputedStyle(more).backgroundColor]""", scrolled)
            self.assertEqual(found[0], scrolled)
            self.assertGreaterEqual(found[1], 0)
            self.assertNotIn("rgba", found[2])

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def path(self):
        return self.browser.current_url.removeprefix(f"file://{SITE}/")

    def test_the_first_tab_stop_skips_to_the_content(self):
        for page in ("steps/06-top-k/index.html", "compare.html"):
            self.open(page)
            self.press(Keys.TAB)
            link = self.browser.switch_to.active_element
            self.assertEqual(link.text, "Skip to content")
            WebDriverWait(self.browser, 5).until(lambda _: link.rect["y"] >= 0)
            self.press(Keys.ENTER)
            self.press(Keys.TAB)
            self.assertTrue(self.script("return document.activeElement.closest('article') !== null"), page)

    def test_keys_lead_to_the_search_and_to_the_pages_before_and_after(self):
        self.open("steps/06-top-k/index.html")
        self.press(Keys.ARROW_RIGHT)
        self.assertEqual(self.path(), "steps/07-top-p/index.html")
        self.press(Keys.ARROW_LEFT)
        self.assertEqual(self.path(), "steps/06-top-k/index.html")
        self.press("/")
        self.assertTrue(self.script("return document.activeElement.matches('.sidebar-search[aria-keyshortcuts=\"/\"]')"))
        self.press("a/b", Keys.ARROW_LEFT)
        self.assertEqual(self.find(".sidebar-search")[0].get_attribute("value"), "a/b")
        self.assertEqual(self.path(), "steps/06-top-k/index.html")
        self.unfold()
        self.script("document.querySelector('.diff').focus()")  # scrolls by the arrows
        self.press(Keys.ARROW_RIGHT)
        self.script("document.activeElement.blur()")
        self.press(Keys.ALT, Keys.ARROW_RIGHT)
        self.assertEqual(self.path(), "steps/06-top-k/index.html")

    def test_the_search_key_opens_the_search_where_the_sidebar_is_hidden(self):
        self.open("steps/06-top-k/index.html", width=360)
        self.press("/")
        self.assertEqual(self.path().rstrip("?"), "search.html")

    def tab_stops(self, presses, until=None):
        """Where the focus is after each press of Tab."""
        found = []
        while len(found) < presses and until not in found:
            self.press(Keys.TAB)
            found.append(self.focus())
        return found

    def focus(self):
        """The class of a drawer's button, the drawer's id, or "" for what is elsewhere."""
        return self.script("""
            const part = document.activeElement;
            return part.matches("button[aria-controls]") ? part.className : part.closest("aside") ? part.closest("aside").id : "";""")

    def test_the_keyboard_opens_and_closes_the_drawers_of_a_narrow_page(self):
        drawers = (("nav-overlay-icon", "navigation-drawer", 390), ("toc-overlay-icon toc-header-icon", "toc-drawer", 390),
                   ("toc-overlay-icon toc-content-icon", "toc-drawer", 1200))
        for name, drawer, width in drawers:
            for key in (Keys.ENTER, Keys.SPACE):
                with self.subTest(f"{name}, {ord(key):x}"):
                    self.open("steps/06-top-k/index.html", width=width)
                    before = self.tab_stops(150, until=name)
                    self.assertEqual(before[-1], name)
                    self.assertNotIn(drawer, before)
                    button, part = self.find(f"button.{name.replace(' ', '.')}")[0], self.find(f"#{drawer}")[0]

                    def state():
                        inside = self.script("""const box = arguments[0].getBoundingClientRect();
                            return box.left >= 0 && box.right <= innerWidth""", part)
                        return button.get_attribute("aria-expanded"), inside, self.focus()

                    def becomes(*expected):
                        WebDriverWait(self.browser, 5).until(lambda _: state() == expected, f"{state()}, not {expected}")

                    becomes("false", False, name)
                    self.press(key)
                    becomes("true", True, drawer)
                    self.assertEqual(self.tab_stops(2), [drawer, drawer])
                    self.press(Keys.ESCAPE)
                    becomes("false", False, name)
                    self.assertNotIn(drawer, self.tab_stops(6))
                    self.script("arguments[0].focus()", button)
                    self.press(key)
                    becomes("true", True, drawer)
                    self.press(Keys.SHIFT, Keys.TAB)  # it lies over the rest of the page
                    WebDriverWait(self.browser, 5).until(lambda _: state()[:2] == ("false", False), f"{state()}")
                    self.assertNotEqual(self.focus(), drawer)
                    self.assertEqual(button.get_attribute("aria-controls"), drawer)
                    self.assertTrue(button.accessible_name.startswith("Toggle "))

    def test_a_section_chosen_in_the_drawer_is_shown(self):
        self.open("steps/06-top-k/index.html", width=390)
        self.script("document.querySelector('button.toc-header-icon').focus()")
        self.press(Keys.ENTER, Keys.TAB, Keys.ENTER)
        self.assertTrue(self.path().partition("#")[2])
        WebDriverWait(self.browser, 5).until(lambda _: self.script(
            "return document.getElementById('toc-drawer').getBoundingClientRect().left >= innerWidth"))
        self.press(Keys.TAB)
        self.assertTrue(self.script("return document.activeElement.closest('article') !== null"))

    def test_the_lists_of_a_wide_page_are_no_drawers(self):
        self.open("steps/06-top-k/index.html", width=390)
        self.script("document.querySelector('button.nav-overlay-icon').click()")
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.browser.set_window_size(1400, 900)
        WebDriverWait(self.browser, 5).until(lambda _: not self.script(
            "return document.querySelector('#toc-drawer').inert || document.querySelector('#navigation-drawer').inert"))

    def copied(self, button):
        self.script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", button)
        button.click()
        WebDriverWait(self.browser, 5).until(lambda _: button.text == "copied")
        return self.script("return navigator.clipboard.readText()")

    def test_commands_can_be_copied(self):
        for permission in ("clipboard-read", "clipboard-write"):
            self.browser.execute_cdp_cmd("Browser.setPermission",
                                         {"permission": {"name": permission}, "setting": "granted"})
        self.open("steps/06-top-k/index.html")
        buttons = self.find(".highlight-bash > button.copy")
        self.assertEqual(len(buttons), len(self.find(".highlight-bash")))
        text = (ROOT / "steps/06-top-k/README.md").read_text(encoding="utf-8")
        first = re.search(r"(?m)^    (tools/.*\n(?:    .*\n)*)", text)[1]
        self.assertEqual(self.copied(buttons[0]), re.sub(r"(?m)^    ", "", first).rstrip())
        self.assertFalse(self.find(".highlight-none > button.copy"), "an output")
        self.open("docs/how-gpt2-works.html")
        session = next(button for button in self.find(".highlight-console > button.copy"))
        lines = self.copied(session).splitlines()
        self.assertEqual([line for line in lines if not line.startswith("tools/run")], [], "an output or a dollar sign")
        self.assertGreater(len(lines), 1)

    def test_the_map_leads_to_a_step(self):
        self.open("docs/steps.html")
        link = self.script("return [...document.querySelectorAll('.map a')].find((a) => a.textContent.includes('46 Beam tree')).getAttribute('href')")
        self.assertEqual(link, "../steps/46-beam-tree/index.html")

    def ticks(self):
        """What the reader's finished steps are in the sidebar, the map and the tables of this page."""
        return self.script("""return [...document.querySelectorAll(".tick")].map((tick) => {
            const place = tick.closest(".sidebar-tree, .map, .steps-list, table");
            return (place.matches("table") ? "table" : place.classList[0]) + " " + tick.closest("a").textContent.match(/\\d\\d/)[0]; })""")

    def test_finished_steps_have_ticks_in_the_sidebar_and_the_map(self):
        self.open("steps/06-top-k/index.html")
        self.script("localStorage.clear()")
        self.open("steps/06-top-k/index.html")
        self.assertEqual(self.ticks(), [])
        button = self.find("button.done")[0]
        self.assertEqual(button.text, "mark as done")
        button.send_keys(Keys.ENTER)
        self.assertEqual((button.text, self.ticks()), ("✓ done", ["sidebar-tree 06"]))
        self.open("steps/07-top-p/index.html")
        self.assertEqual((self.find("button.done")[0].text, self.ticks()), ("mark as done", ["sidebar-tree 06"]))
        self.find("button.done")[0].click()
        self.open("docs/steps.html")
        places = ("sidebar-tree", "map", "steps-list", "table")
        self.assertEqual(sorted(self.ticks()), sorted(f"{place} {step}" for place in places for step in ("06", "07")))
        self.open("steps/06-top-k/index.html")
        self.find("button.done")[0].click()
        self.assertEqual((self.find("button.done")[0].text, self.ticks()), ("mark as done", ["sidebar-tree 07"]))
        self.script("localStorage.clear()")
        self.open("steps/06-top-k/folder.html")
        self.assertEqual(self.find("button.done"), [])

    def test_pages_work_where_storage_is_forbidden(self):
        forbid = ('Object.defineProperty(window, "localStorage", '
                  '{ get() { throw new DOMException("no", "SecurityError"); } });')
        handle = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": forbid})
        try:
            self.browser.get_log("browser")
            self.open("steps/06-top-k/index.html")
            button = self.find("button.done")[0]
            button.click()
            self.assertEqual(self.ticks(), ["sidebar-tree 06"])
            self.assertEqual(button.text, "✓ done (this browser forgets it)")
            button.click()
            self.assertEqual(self.ticks(), [])
            self.script("document.querySelector('[data-view=sides]').click()")
            self.assertTrue(self.find(".diff > .two"))
            self.assertEqual(self.script("return document.body.dataset.theme"), "auto")
            self.assertEqual([entry["message"] for entry in self.browser.get_log("browser")], [])
        finally:
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", handle)

    def test_the_map_fits_the_page_and_is_a_list_on_a_telephone(self):
        def sizes(selector):
            return self.script("""const box = document.querySelector(arguments[0]).getBoundingClientRect();
                const text = document.querySelector(".map text.size").getBoundingClientRect();
                return [box.width, box.left, box.right, text.height]""", selector)

        for width in (1280, 1000):
            self.open("docs/steps.html", width=width)
            drawn, left, right, letters = sizes(".map svg")
            self.assertGreater(drawn, 500, width)
            self.assertGreaterEqual(left, 0, width)
            self.assertLessEqual(right, width)
            self.assertGreater(letters, 7, width)
            self.assertLessEqual(self.script("return document.documentElement.scrollWidth"), width)
            hidden = self.script("const map = document.querySelector('.map'); return map.scrollWidth - map.clientWidth")
            self.assertLessEqual(hidden, 0)
            self.assertEqual(sizes(".steps-list")[0], 0)
        for width in (800, 390):
            self.open("docs/steps.html", width=width)
            self.assertEqual(sizes(".map")[0], 0)
        listed = self.script("""return [...document.querySelectorAll(".steps-list a")]
            .map((link) => link.getAttribute("href"))""")
        steps = (ROOT / "steps").glob("[0-9][0-9]*-*")
        self.assertEqual(sorted(listed), sorted(f"../steps/{path.name}/index.html" for path in steps))
        self.assertTrue(self.find(".steps-list a")[0].is_displayed())

    def test_the_map_is_whole_on_paper(self):
        # Sheets without their margins, in CSS pixels: A4 in both directions, and an upright A3, so wide that the map
        # would be too high.
        for width, height in ((718, 1047), (1047, 718), (1047, 1500)):
            self.open("docs/steps.html", width=width, height=height)
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
            right, wide, high = self.script("""const box = document.querySelector(".map svg").getBoundingClientRect();
                return [box.right, document.documentElement.clientWidth, box.height]""")
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
            self.assertGreater(high, 300)
            self.assertLess(high, min(height, 930))  # 930 are 24.6 cm, which any sheet of A4 or Letter has
            self.assertLessEqual(right, wide)

    def test_tables_break_no_word_on_a_telephone(self):
        for page in ("docs/steps.html", "docs/glossary.html", "docs/benchmarks/cpu.html", "docs/server.html",
                     "docs/scaling.html", "index.html"):
            self.open(page, width=390)
            broken = self.script("""
                const broken = [];
                for (const cell of document.querySelectorAll("article table :is(td, th)")) {
                  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
                  while (walker.nextNode()) {
                    for (const word of walker.currentNode.data.matchAll(/[A-Za-z]{2,}/g)) {
                      const range = document.createRange();
                      range.setStart(walker.currentNode, word.index);
                      range.setEnd(walker.currentNode, word.index + word[0].length);
                      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
                      if (lines.size > 1) broken.push(word[0]);
                    }
                  }
                }
                return broken.slice(0, 5);""")
            self.assertEqual(broken, [], page)
            self.assertLessEqual(self.script("return document.documentElement.scrollWidth"), 390, page)

    def test_pages_of_source_lead_to_those_before_and_after(self):
        for page in ("source/common/decoding/sampling.h.html", "steps/06-top-k/folder.html"):
            self.open(page)
            self.press(Keys.ARROW_RIGHT)
            following = self.path()
            self.assertNotEqual(following, page)
            self.press(Keys.ARROW_LEFT)
            self.assertEqual(self.path(), page)
        self.assertEqual(following, "steps/07-top-p/folder.html")
        pages = sorted(path.relative_to(SITE).as_posix() for path in (SITE / "source").rglob("*.html"))
        seen, page = [], pages[0]
        while page:
            seen.append(page)
            text = (SITE / page).read_text(encoding="utf-8")
            links = re.findall(r'class="next-page" rel="next" href="([^"]+)"', text)
            page = os.path.relpath((SITE / page).parent / links[0], SITE) if links else None
        self.assertEqual(sorted(seen), pages)

    def test_previous_and_next_follow_the_parents(self):
        for page, before, after in (("16-variable-batching", "15-", "17-"), ("30-leaving-rows", "16-", "31-"),
                                    ("50-requests", "38-", "51-"), ("24-attention-sinks", "20-", None)):
            self.open(f"steps/{page}/index.html")
            for kind, expected in (("prev", before), ("next", after)):
                links = self.find(f"a.{kind}-page")
                self.assertEqual(bool(links), expected is not None, page)
                if links:
                    self.assertIn(f"/{expected}", links[0].get_attribute("href"))


class WithoutScripts(Browser):
    SCRIPTS = False

    def test_a_step_can_be_read(self):
        self.open("steps/06-top-k/index.html")
        text = self.find("article")[0].text
        for words in ("The idea", "keep_top_k", "43.5 %", "The diff"):
            self.assertIn(words, text)
        self.assertFalse(self.find(".view"), "a switch that would do nothing")

    def test_paper_has_the_whole_diff(self):
        """Without scripts, so by the style sheet alone: nothing that changes is folded away."""
        self.open("steps/06-top-k/index.html")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        document = self.browser.execute_cdp_cmd("DOM.getDocument", {})["root"]["nodeId"]

        def heights(selector):
            nodes = self.browser.execute_cdp_cmd("DOM.querySelectorAll", {"nodeId": document, "selector": selector})["nodeIds"]
            return [self.browser.execute_cdp_cmd("DOM.getBoxModel", {"nodeId": node})["model"]["height"] for node in nodes]

        self.assertGreater(min(heights("details.solution:not([open])")), 600)
        self.assertGreater(min(heights("details.solution ins")), 10)
        folded = heights("details.file:not([open])")
        self.assertTrue(folded)
        self.assertGreater(min(folded), 60)  # a summary alone has 40
        self.assertGreater(min(heights("details.same")), 60)
        self.assertGreater(min(heights("details.terminal")), 60)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


class Refusals(unittest.TestCase):
    """What is wrong gets one sentence with its place, and what was there stays."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = small_repository(Path(folder.name).resolve())
        self.site = self.root / "build-book"

    def refused(self, *expected):
        self.site.mkdir()
        (self.site / "index.html").write_text("the old one")
        done = run_build("site", self.site, root=self.root)
        self.assertEqual(done.returncode, 1, done.stdout)
        for words in expected:
            self.assertIn(words, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertLess(len(done.stderr.strip().splitlines()), 4, done.stderr)
        self.assertEqual([path.name for path in self.site.iterdir()], ["index.html"])
        self.assertEqual((self.site / "index.html").read_text(), "the old one")
        self.assertEqual([path.name for path in self.root.glob("build-book.*")], [])

    def append(self, page, text):
        path = self.root / page
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
        return len(path.read_text(encoding="utf-8").splitlines())

    def test_it_builds_when_nothing_is_wrong(self):
        done = run_build("site", self.site, root=self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        for page in ("index", "steps/02-eos-handling/index", "steps/02-eos-handling/folder", "compare", "search"):
            self.assertTrue((self.site / f"{page}.html").is_file(), page)
        self.assertEqual(list(self.site.rglob("README.html")), [])
        self.assertIn("search-index.js", (self.site / "search.html").read_text(encoding="utf-8"))
        self.assertFalse((self.site / "searchindex.js").exists(), "the search is our own")

        def found(pattern, page):
            return re.findall(pattern, (self.site / page).read_text(encoding="utf-8"))

        names = ["01-greedy-decoding", "02-eos-handling", "03-context-window"]
        for name, before, after in zip(names, [None, *names], [*names[1:], None]):
            near = [(kind, f"../{other}/index.html") for kind, other in (("continues", before), ("next", after)) if other]
            self.assertEqual(found(r'<li><span>(\w+)</span> <a href="([^"]+)"', f"steps/{name}/index.html"), near)
            self.assertEqual(set(found(r'<a class="headerlink"[^>]*>([^<]*)</a>', f"steps/{name}/index.html")), {"#"})
            self.assertEqual(bool(found("Here a branch ends", f"steps/{name}/index.html")), after is None)
            around = [(kind, f"../{other}/folder.html") for kind, other in (("prev", before), ("next", after)) if other]
            self.assertEqual(found(r'rel="(prev|next)" href="([^"]+folder\.html)"', f"steps/{name}/folder.html"), around)
            self.assertEqual(len(found(r'<a href="index\.html">← ', f"steps/{name}/folder.html")), 1)
            # The search has the page's beginning, with its headline, and each of its sections.
            searched = {entry[0]: entry for entry in json.loads(found(r"const searchIndex = (.*);", "search-index.js")[0]) if name in entry[0] and len(entry) == 4}
            headline = re.search(r"^\*(.+)\*$", (ROOT / "steps" / name / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
            self.assertTrue(searched[f"steps/{name}/index.html"][3].startswith(headline.replace("`", "")), headline)
            for anchor in ("the-idea", "the-task", "how-to-check-it"):
                self.assertIn(f"steps/{name}/index.html#{anchor}", searched)

    def test_pages_link_to_the_repository_where_its_address_is_known(self):
        def links():
            done = run_build("site", self.site, root=self.root)
            self.assertEqual(done.returncode, 0, done.stderr)
            page = (self.site / "steps/02-eos-handling/index.html").read_text(encoding="utf-8")
            return [link for link in Links(page).links if "a/b" in link]

        self.assertEqual(links(), [])
        subprocess.run(["git", "init", "-q", self.root], check=True)
        edit = "https://github.com/a/b/edit/main/steps/02-eos-handling/README.md"
        for remote, expected in (("/srv/a/b", []), ("https://git.example.org/a/b", ["https://git.example.org/a/b"]),
                                 ("git@github.com:a/b.git", ["https://github.com/a/b.git", edit])):
            subprocess.run(["git", "-C", self.root, "config", "remote.origin.url", remote], check=True)
            self.assertEqual(links(), expected)

    def test_the_playground_comes_after_the_idea(self):
        programs = self.root / "programs"
        models = [self.root / "models" / name for name in (*playground.MODELS, *playground.NAMED_MODELS)]
        for folder in (programs, *models):
            folder.mkdir(parents=True)
        (self.root / "playground").symlink_to(ROOT / "playground")
        for end in (".wasm", ".js"):
            (programs / f"02-eos-handling{end}").write_text("")
        done = run_build("site", self.site, programs, root=self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.site / "steps/02-eos-handling/index.html").read_text(encoding="utf-8")
        order = ["The idea", "Try it here", "The task", "How to check it"]
        for part in (r"<h2>([^<]*)<", r'<li><a class="reference internal" href="#[^"]*">([^<]*)</a>'):
            self.assertEqual([title for title in re.findall(part, page) if title in order], order)

    def test_each_answer_is_folded_below_its_exercise(self):
        done = run_build("site", self.site, root=self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.site / "steps/02-eos-handling/index.html").read_text(encoding="utf-8")
        self.assertNotRegex(page, r"(?i)>answers<|#answers")
        exercises = page[page.index('<section id="exercises">'):page.index('<section id="sources">')]
        for question, answer in (("Why is that a sensible\nstart?", "The model has\nlearnt to continue it"),
                                 ("if it became the end-of-text token?", "It becomes eight tokens"),
                                 ("which reason should it return?", "must see the tokens so far")):
            self.assertRegex(exercises, rf'(?s){re.escape(question)}</p>\s*<details class="answer"><summary>Answer</summary>'
                                        rf'(?:(?!</details>).)*{re.escape(answer)}')
        self.assertEqual((exercises.count("<details"), exercises.count("</details>")), (3, 3))
        (self.root / "steps/02-eos-handling/ANSWERS.md").unlink()
        done = run_build("site", self.site, root=self.root)
        self.assertNotIn("<details class=\"answer\"", (self.site / "steps/02-eos-handling/index.html").read_text(encoding="utf-8"))

    def test_a_link_to_nothing(self):
        line = self.append("steps/02-eos-handling/README.md", "\nSee [there](nowhere.md).\n")
        self.refused(f"steps/02-eos-handling/README.md:{line}:", "'nowhere.md' leads to nothing")

    def test_a_link_to_a_heading_that_is_not_there(self):
        line = self.append("steps/02-eos-handling/README.md", "\nSee [there](../01-greedy-decoding/README.md#nowhere).\n")
        self.refused(f"steps/02-eos-handling/README.md:{line}:", "no heading '#nowhere'")

    def test_a_picture_that_is_not_there(self):
        line = self.append("README.md", "\n![a picture](docs/pictures/none.svg)\n")
        self.refused(f"README.md:{line}", "docs/pictures/none.svg")

    def test_a_step_without_a_text(self):
        (self.root / "steps/02-eos-handling/README.md").unlink()
        self.refused("steps/02-eos-handling has no README.md")

    def test_a_block_that_never_ends(self):
        line = self.append("steps/02-eos-handling/README.md", "\n```\nopen\n") - 1
        self.refused(f"steps/02-eos-handling/README.md:{line}: this block of code never ends")

    def test_a_hunk_that_the_step_does_not_have(self):
        line = self.append("steps/02-eos-handling/README.md",
                           "\n<!-- from stopping.h -->\nThis:\n\n```cpp\nint none;\n```\n") - 2
        self.refused(f"steps/02-eos-handling/README.md:{line}:", "stopping.h does not have this line", "int none;")

    def test_an_output_that_was_never_recorded(self):
        line = self.append("steps/02-eos-handling/README.md", "\n## More\n\n    tools/run 02 --prompt \"new\"\n")
        self.refused(f"steps/02-eos-handling/README.md:{line}", "not recorded", "tools/book --record")

    def test_a_missing_package(self):
        done = run_build("site", self.site, root=self.root, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.hide("myst_parser"))})
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "tools/book: myst_parser is missing; tools/setup --book installs it.\n")

    def hide(self, module):
        folder = self.root / "hidden"
        folder.mkdir()
        (folder / f"{module}.py").write_text(f"raise ModuleNotFoundError('no', name='{module}')\n")
        return folder

    def test_a_build_without_the_programs(self):
        done = run_build("record", self.root / "build", root=self.root)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"steps/01-greedy-decoding/README.md:\d+: the program of 01-greedy-decoding is not built")
        self.assertNotIn("Traceback", done.stderr)

    def test_a_command_that_cannot_be_recorded(self):
        programs = self.root / "build/steps"
        programs.mkdir(parents=True)
        (programs / "01-greedy-decoding").write_text("#!/bin/sh\nkill -SEGV $$\n")
        (programs / "01-greedy-decoding").chmod(0o755)
        done = run_build("record", self.root / "build", root=self.root)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"steps/01-greedy-decoding/README.md:\d+: the output of this command cannot be recorded")


if __name__ == "__main__":
    unittest.main()
