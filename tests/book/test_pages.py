"""The parts of the book that need no browser: the drawing, diffs as HTML, terminals, and refusals."""

import html
import re
import tempfile
import unittest
from pathlib import Path

from support import ROOT
from step_commands import hunks, series

import build
from pages import map, playground, terminal

try:
    from pages import differences
except ImportError:
    differences = None  # Pygments comes with tools/setup --book

STEPS = series.steps()
DRAWN = map.svg(STEPS)


class Citation(unittest.TestCase):
    def test_it_names_the_newest_version_of_the_changelog_everywhere(self):
        def text(path):
            return (ROOT / path).read_text(encoding="utf-8")

        version = re.search(r"(?m)^## (\d\S*)", text("CHANGELOG.md"))[1]
        self.assertEqual(re.search(r"(?m)^version: (.*)$", text("CITATION.cff"))[1], version)
        self.assertEqual(re.search(r"note\s+= \{Version (.*)\}", text("docs/README.md"))[1], version)
        year, author = re.search(r"Copyright \(c\) (\d+) (.*)", text("LICENSE")).groups()
        self.assertIn(f"year   = {{{year}}}", text("docs/README.md"))
        self.assertIn(f"author = {{{{{author}}}}}", text("docs/README.md"))
        self.assertIn(f"- name: {author}\n", text("CITATION.cff"))


class Named(unittest.TestCase):
    def test_a_page_loads_the_files_that_its_commands_name_and_those_of_a_model_s_folder(self):
        files = {step.number: playground.named(step) for step in STEPS}
        model = "tests/reference/families/pythia"
        self.assertEqual(files["88"], [f"{model}/{name}" for name in ("config.json", "generation_config.json", "model.safetensors",
                                                                     "tokenizer.json", "tokenizer_config.json")])
        self.assertEqual(files["72"], ["tests/reference/unseen.txt"])
        self.assertEqual(files["82"], [])

    def test_programs_whose_glue_differs_in_their_names_alone_share_one_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for step, run in zip(STEPS, ("run", "run", "walk")):
                (Path(folder) / f"{step.name}.js").write_text(f'load("{step.name}.wasm"); {run}();')
            first, second, other = [playground.glue(folder, step) for step in STEPS[:3]]
        self.assertRegex(first[0], r"^glue-[0-9a-f]{8}\.js$")
        self.assertEqual(first[1], 'load("program.wasm"); run();')
        self.assertEqual(second, first)
        self.assertEqual(other[1], 'load("program.wasm"); walk();')
        self.assertNotEqual(other[0], first[0])


class Drawing(unittest.TestCase):
    def test_the_picture_on_the_page_of_steps_is_of_these(self):
        self.assertEqual(map.PICTURE.read_text(encoding="utf-8"), DRAWN,
                         "docs/pictures/staircase.svg is old; tools/book --record draws it")
        self.assertIn("(pictures/staircase.svg)", (ROOT / "docs/steps.md").read_text(encoding="utf-8"))

    def test_each_step_is_in_it_once_and_leads_to_its_page(self):
        drawn = map.svg(STEPS, lambda step: f"to/{step.name}")
        for step in STEPS:
            self.assertEqual(drawn.count(f'href="to/{step.name}"'), 1)
            self.assertEqual(drawn.count(f">{html.escape(step.heading())}</text>"), 1)

    def test_the_list_for_a_narrow_screen_has_each_step_once_below_its_flight(self):
        listed = map.outline(STEPS, lambda step: f"to/{step.name}")
        entries = re.findall(r'<li><a href="to/([^"]+)">([^<]*)</a>([^<]*)</li>', listed)
        self.assertEqual(sorted(entries), sorted((step.name, html.escape(step.heading()), " (detour)" if step.detour else "") for step in STEPS))
        parts = listed.split("<p>")[1:]
        self.assertEqual(len(parts), len(map.flights(STEPS)))
        for flight, part in zip(map.flights(STEPS), parts):
            self.assertTrue(part.startswith(html.escape(map.title(flight)) + "</p><ul>"))
            self.assertEqual([name for name in re.findall(r'"to/([^"]+)"', part) if name in {step.name for step in flight}],
                             [step.name for step in flight])

    def test_detours_and_landings_are_marked(self):
        drawn = DRAWN
        rooms = re.findall(r'class="step f\d room"><title>(\d\d+)', drawn)
        self.assertEqual(sorted(rooms), sorted(step.number for step in STEPS if step.detour))
        owners = {landed.owner.number for landed in STEPS[0].library.values()}
        self.assertEqual(set(re.findall(r"<title>(\d\d+)[^<]*finished here", drawn)), owners)

    def test_a_flight_ends_where_nothing_continues_it(self):
        flights = map.flights(STEPS)
        for flight in flights:
            for before, after in zip(flight, flight[1:]):
                self.assertIs(after.parent, before)
                self.assertEqual(after.branch(), before.branch())
        together = [step for flight in flights for step in flight] + [step for step in STEPS if step.detour]
        self.assertEqual(sorted((step.number for step in together), key=int), [step.number for step in STEPS])


class Finished(unittest.TestCase):
    """What becomes of the pages that Sphinx and Furo have written."""

    def test_a_first_link_leads_past_the_sidebar(self):
        page = build.with_skip_link('<head></head>\n<body class="x">\n<aside>a</aside><article role="main">text</article><body></body>')
        self.assertRegex(page, r'^<head></head>\n<body class="x">\n<a class="skip-to-content" href="#[\w-]+">Skip to content</a>\n<aside>')
        target, = re.findall(r'href="#([^"]+)"', page)
        self.assertEqual(page.count(f'<article role="main" id="{target}" tabindex="-1">text'), 1)
        self.assertEqual(build.with_skip_link(page), page)  # a newer Furo's own
        self.assertEqual(build.with_skip_link("<body><article>x</article>"), "<body><article>x</article>")

    def test_landmarks_have_names_and_empty_headers_are_cells(self):
        page = build.accessible('<aside class="sidebar-drawer"><aside class="toc-drawer no-toc"><div class="content-icon-container">'
                                '<label class="overlay toc-overlay" for="x"><table><th class="head" a="b"><p> </p></th><th class="head"></th>'
                                '<th class="head"><p>word</p></th></table>')
        self.assertEqual(page, '<aside aria-label="All pages and search" class="sidebar-drawer"><aside aria-label="Contents" class="toc-drawer no-toc">'
                         '<div role="region" aria-label="Display" class="content-icon-container">'
                         '<label aria-hidden="true" class="overlay toc-overlay" for="x"><table><td a="b"></td><td></td>'
                         '<th class="head"><p>word</p></th></table>')

    def test_the_text_keeps_its_blanks_and_what_is_around_it_loses_them(self):
        for inside in ("<article>\n  a <!-- b -->\n\n  c</article>\n <article>\n  d</article>", "<pre>\n  a <!-- b -->\n</pre>"):
            page = build.without_indentation(f'<nav>\n   <!-- of\na template -->\n  x  y\n\n</nav>\n{inside}\n  <!-- z -->\n <p>\n')
            self.assertEqual(page, f"<nav>\nx  y\n</nav>\n{inside}\n<p>\n")
        self.assertEqual(build.without_indentation('<p>\n  x</p><span class="w">  </span>'), "<p>\n  x</p>  ")
        self.assertEqual(build.without_indentation('<pre>a<span class="w">\n </span><b>c</b></pre>'), "<pre>a\n <b>c</b></pre>")


class Terminals(unittest.TestCase):
    def test_colours_become_spans(self):
        self.assertEqual(terminal.html("\033[2mOnce\033[0m <a>\033[0m &"), '<span class="t-dim">Once</span> &lt;a&gt; &amp;')

    def test_every_style_that_programs_use_has_a_class_alone_and_with_others(self):
        codes = {"1": "bold", "2": "dim", "33": "yellow"}
        for code, name in codes.items():
            self.assertEqual(terminal.html(f"\033[{code}mx\033[0my"), f'<span class="t-{name}">x</span>y')
            for other in codes.keys() - {code}:
                self.assertEqual(terminal.html(f"\033[{code};{other}mx"), f'<span class="t-{name} t-{codes[other]}">x</span>')
        used = set()
        for path in [*(ROOT / "common").rglob("*.cpp"), *(ROOT / "common").rglob("*.h")]:
            used |= set(re.findall(r"\\(?:033|x1b)\[(\d+)m", path.read_text(encoding="utf-8"))) - {"0"}
        self.assertGreater(len(used), 3)
        self.assertLessEqual(used, terminal.CLASSES.keys())
        style = (ROOT / "docs/book/static/book.css").read_text(encoding="utf-8")
        for name in terminal.CLASSES.values():
            self.assertIn(f".t-{name} {{", style)

    def test_tokens_of_one_origin_are_named_once(self):
        """For those who do not see the colours; a legend explains these."""
        output = "\033[32m a\033[0m\033[32m <b>\033[0m\033[31m c\033[0m\033[32m d\033[0m\033[36m e\033[0m."
        self.assertEqual(re.findall(r'<span class="t-(\w+)" role="group" aria-label="(\w+)">([^<]*)</span>', terminal.html(output)),
                         [("green", "accepted", " a &lt;b&gt;"), ("red", "corrected", " c"), ("green", "accepted", " d"), ("cyan", "bonus", " e")])
        self.assertEqual(re.findall(r'<span class="t-(\w+)">(\w+)</span>: (\w+)', terminal.legend(output)),
                         [("green", "accepted", "drafted"), ("red", "corrected", "the"), ("cyan", "bonus", "the")])
        self.assertEqual(terminal.legend("\033[2mOnce\033[0m upon"), "")

    def test_legends_are_the_same_in_the_terminal_of_a_page(self):
        script = (ROOT / "playground/playground.js").read_text(encoding="utf-8")
        found = re.findall(r'^    "(t-\w+)": \["([^"]*)", "([^"]*)"\],$', script, re.MULTILINE)
        self.assertEqual({name: words for name, *words in found}, {name: list(words) for name, words in terminal.ORIGINS.items()})

    def test_an_unknown_code_is_no_colour(self):
        self.assertEqual(terminal.html("\033[99ma\033[0mb"), "ab")


def text_of(code):
    return html.unescape(re.sub(r"<a [^>]*>\d+</a>|<summary>.*?</summary>|<[^>]*>", "", code))


@unittest.skipUnless(differences, "Pygments is not installed; tools/setup --book installs it")
class Diffs(unittest.TestCase):
    def test_both_files_can_be_read_from_the_html(self):
        """What is left without the additions is the parent's file, and without the removals the step's."""
        for step in (STEPS[3], STEPS[15], STEPS[16]):
            for one in differences.file_diffs(step):
                with self.subTest(step.name, file=one.name):
                    code = one.html()
                    for owner, other in ((step.parent, "ins"), (step, "del")):
                        path = owner.folder / one.name
                        expected = path.read_text(encoding="utf-8") if path.is_file() else ""
                        left = re.sub(rf"<{other}[ >].*?</{other}>", "", code, flags=re.DOTALL)
                        self.assertEqual([line.rstrip() for line in text_of(left).splitlines()],
                                         [line.rstrip() for line in expected.splitlines()])

    def test_its_counts_are_those_of_the_staircase(self):
        for step in STEPS[:20]:
            lesson = [one for one in differences.file_diffs(step) if one.name not in series.OWN]
            self.assertEqual((sum(one.added for one in lesson), sum(one.removed for one in lesson)), series.lines(step))

    def test_each_line_has_an_address_of_its_own(self):
        for step in STEPS:
            code = "".join(one.html() for one in differences.file_diffs(step) if one.name not in series.OWN)
            names = re.findall(r" id=([^ >]+)", code)
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual(names, re.findall(r"href=#([^ >]+)", code))

    def test_a_hunk_in_the_text_has_the_lines_of_the_readme_and_leads_to_those_of_the_diff(self):
        seen = 0
        for step in STEPS[:20]:
            ids = set(re.findall(r" id=([^ >]+)", "".join(one.html() for one in differences.file_diffs(step))))
            added = hunks.added(step)
            for hunk in hunks.hunks(step.readme()):
                with self.subTest(step.name, hunk=hunk.told):
                    code = differences.hunk_part(step, hunk, added[hunk.file]).partition("</figcaption>")[2]
                    self.assertEqual(text_of(code).splitlines(), hunk.lines)
                    links = re.findall(r"href=#([^ >]+)", code)
                    self.assertLessEqual(set(links), ids)
                    self.assertEqual(len(links), len([line for line in hunk.lines if line.strip() != hunks.LEFT_OUT]))
                    green = [int(number) for number in re.findall(r"<ins><a [^>]*>(\d+)</a>", code)]
                    self.assertEqual(green, [int(link.rpartition("-")[2]) for link in links
                                             if int(link.rpartition("-")[2]) in added[hunk.file]])
                    seen += 1
        self.assertGreater(seen, 15)

    def test_changed_words_are_marked(self):
        removed, added = differences.pairs(["int a = 1;"], ["int a = 2;"])[0][2:]
        self.assertEqual((removed, added), ([(8, 9)], [(8, 9)]))
        self.assertEqual(differences.marked("<b>int </b>a &lt; 1;", [(4, 7)]), "<b>int </b><mark>a &lt;</mark> 1;")
        self.assertEqual(differences.marked("x<b>yz</b>", [(0, 2)]), "<mark>x</mark><b><mark>y</mark>z</b>")

    def test_highlighting_loses_no_character(self):
        for name in ("generate.h", "main.cpp", "test.cpp"):
            text = (STEPS[16].folder / name).read_text(encoding="utf-8") if (STEPS[16].folder / name).is_file() else ""
            self.assertEqual([text_of(line) for line in differences.highlighted(name, text)], text.splitlines())
        self.assertEqual(differences.highlighted("a.h", "/* one\n   two */\n"), ("<i>/* one</i>", "<i>   two */</i>"))


if __name__ == "__main__":
    unittest.main()
