"""The book's part of Sphinx: pages of steps with their diffs and outputs, the map, the links and the search."""

import json
import posixpath
import re
from html import escape

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.util import logging
from step_commands import hunks
from step_commands.diff import lines, ranges
from step_commands.series import OWN, ROOT, branches, steps

from . import derived, differences, links, map, playground, recorded, search, terminal
from .markdown import Page

logger = logging.getLogger(__name__)


class Book(StandaloneHTMLBuilder):
    """HTML in which README.md is the index of its folder, and the search is our own."""
    name = "book"
    search = False

    def get_target_uri(self, docname, typ=None):
        return re.sub(r"(^|/)README$", r"\1index", docname) + ".html"

    def get_outfilename(self, pagename):
        return super().get_outfilename(re.sub(r"(^|/)README$", r"\1index", pagename))


class Staircase:
    """What the pages need of the series, found once."""

    def __init__(self):
        self.series = steps()
        self.of_page = {f"steps/{step.name}/README": step for step in self.series}
        self.counts = {step: lines(step) for step in self.series}
        self.flights = map.flights(self.series)
        self.sidebars = {}  # of source pages, by their depth
        self.repository = derived.repository()

    def size(self, step):
        added, removed = self.counts[step]
        return f"+{added}" + (f" −{removed}" if removed else "")

    def address(self, step):
        return f"steps/{step.name}/index.html"

    def onward(self, step):
        """The page after a step's; it follows the parents, not the numbers."""
        flight = next((flight for flight in self.flights if step in flight), [])
        return flight[flight.index(step) + 1] if step in flight[:-1] else next(iter(step.children), None)


def start(app):
    app.staircase = Staircase()
    app.env.book_anchors, app.env.book_sources, app.env.book_search = {}, set(), {}


def chapters():
    """The pages of docs/, in the order in which docs/README.md names them; the others after them."""
    order, known = [], sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    contents = ROOT / "docs/README.md"
    if contents.is_file():
        order = [posixpath.normpath("docs/" + name) for name in
                 ["README.md", *re.findall(r"\]\(([^)#:]+\.md)\)", contents.read_text(encoding="utf-8"))]]
    names = [name for name in order if name in known] + [name for name in known if name not in order]
    return [name.removesuffix(".md") for name in dict.fromkeys(names)]


def extend(app, document, source):
    """The part after the text of a page: the contents of the book, or the diff of a step."""
    if document == "README":
        tables = [("The book", chapters())]
        for name, *_, some in branches(app.staircase.series):
            tables.append((f"{name} ({ranges(some, app.staircase.series)})", [f"steps/{step.name}/README" for step in some]))
        for caption, entries in tables:
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(entries) + "\n```\n"
    elif document in app.staircase.of_page:
        if playground.has(app.config.playground, app.staircase.of_page[document]):
            source[0] += "\n\n## Try it here\n\n```{step-playground}\n```\n"
        answers = app.staircase.of_page[document].answers()
        if answers:
            source[0] += "\n\n## Answers\n\n" + "\n\n".join(f"{number}. {text}" for number, text in answers.items()) + "\n"
        source[0] += "\n\n## The diff\n\n```{step-diff}\n```\n\n## Where it goes on\n\n```{step-neighbours}\n```\n"


def raw(html):
    return nodes.raw("", html, format="html")


class OfStep(Directive):
    def run(self):
        env = self.state.document.settings.env
        self.programs = env.app.config.playground
        return [raw(self.html(env.app.staircase, env.app.staircase.of_page[env.docname]))]


class StepDiff(OfStep):
    """The step's diff to its parent, folded, since the text shows the hunks that matter."""

    def html(self, staircase, step):
        compared = f"the whole difference from {step.parent.heading()}" if step.parent else "the whole program"
        return (f'<details class="solution" id="solution"><summary>The solution: {escape(compared)} '
                f'<span class="counts">{staircase.size(step)}</span></summary>'
                '<p class="diff-head">A line\'s number is its address. The tests and this text are folded.</p>'
                + differences.page_part(step, lambda page: f"../../{page}.html")
                + f'<p class="elsewhere"><a href="folder.html">The whole folder</a>, or '
                  f'<a href="../../compare.html?from={step.parent.number if step.parent else "01"}&amp;to={step.number}">'
                  f'compare with any other step</a>.</p></details>')


class StepPlayground(OfStep):
    """The place of a terminal in which the step runs."""

    def html(self, staircase, step):
        return playground.html(self.programs, step)


class StepNeighbours(OfStep):
    """The step that it continues, and those that continue it."""

    def html(self, staircase, step):
        def entry(kind, other):
            return (f'<li><span>{kind}</span> <a href="../{other.name}/index.html">{escape(other.heading())}</a> '
                    f'<em>{escape(other.summary())}</em></li>')

        found = [entry("continues", step.parent)] if step.parent else []
        found += [entry("detour" if child.detour else "next", child) for child in step.children]
        if not step.children:
            found.append("<li>" + ("A detour: nothing continues it." if step.detour else "Here a branch ends.")
                         + ' <a href="../../docs/steps.html">The whole staircase</a></li>')
        return f'<ul class="neighbours">{"".join(found)}</ul>'


def read(app, doctree):
    document = app.env.docname
    links.read(app, doctree)
    app.env.book_search[document] = search.sections(doctree)
    page = Page(ROOT / f"{document}.md")
    show_outputs(doctree, page)
    step = app.staircase.of_page.get(document)
    if step:
        show_size(doctree, step, app.staircase)
        show_hunks(doctree, step)
    if first_run(app, document):
        show_first_run(app, doctree, first_run(app, document))
    if document == "docs/steps":
        for table in doctree.findall(nodes.table):
            if table.astext().strip().startswith("step"):
                table["classes"].append("steps")
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith("pictures/staircase.svg"):
            depth = "../" * document.count("/")
            drawing = map.svg(app.staircase.series, lambda one: depth + app.staircase.address(one))
            listed = map.outline(app.staircase.series, lambda one: depth + app.staircase.address(one))
            image.parent.replace(image, raw(f'<div class="map">{drawing}</div><div class="steps-list">{listed}</div>'))


def sections_of(doctree):
    return {section.next_node(nodes.title).astext(): section for section in doctree.findall(nodes.section)}


def fold_answers(app, doctree):
    """Each answer is folded below its exercise. They were appended, so that warnings name the lines of the text."""
    sections = sections_of(doctree)
    exercises, answers = sections.get("Exercises"), sections.get("Answers")
    if app.env.docname in app.staircase.of_page and exercises and answers:
        answers.parent.remove(answers)
        for exercise, answer in zip(exercises.next_node(nodes.enumerated_list), answers.next_node(nodes.enumerated_list)):
            exercise += [raw('<details class="answer"><summary>Answer</summary>'), *answer.children, raw("</details>")]


def place_playground(app, doctree):
    """The terminal comes after the idea. It was appended, so that warnings name the lines of the text."""
    sections = sections_of(doctree)
    idea, terminal_here = sections.get("The idea"), sections.get("Try it here")
    if app.env.docname in app.staircase.of_page and idea and terminal_here:
        terminal_here.parent.remove(terminal_here)
        idea.parent.insert(idea.parent.index(idea) + 1, terminal_here)


def first_run(app, page):
    """The step that the first page runs, below the picture of its idea; None if the book has no programs."""
    step = next((step for step in app.staircase.series if step.name.endswith("-speculative-decoding")), None)
    return step if page == "README" and step and playground.has(app.config.playground, step) else None


def show_first_run(app, doctree, step):
    picture = next(image for image in doctree.findall(nodes.image) if image["uri"].endswith("first_screen.svg"))
    place = picture.parent.parent.index(picture.parent) + 1
    picture.parent.parent.insert(place, raw(
        f'<p>That is <a href="{app.staircase.address(step)}">step {step.number}</a>. Press <em>Run</em>, and it runs in this '
        f'page, on your machine.</p>{playground.html(app.config.playground, step, "playground")}'))


def show_size(doctree, step, staircase):
    """A line below the summary: how long the lesson is, and where its parts are."""
    added = sum(path.name not in OWN for path in step.files().values())
    line = (f'<p class="step-line"><a href="#solution">{staircase.size(step)} lines: the diff</a>'
            f'<a href="folder.html" class="elsewhere">the whole folder, {added} files</a>'
            f'<a href="../../docs/steps.html" class="elsewhere">the staircase</a></p>')
    section = doctree.next_node(nodes.section)
    place = next((i + 1 for i, child in enumerate(section.children)
                  if isinstance(child, nodes.paragraph) and isinstance(child.children[0], nodes.emphasis)), 1)
    section.insert(place, raw(line))


def show_hunks(doctree, step):
    """The code in the text as a part of the diff."""
    waiting, added = hunks.hunks(step.readme()), hunks.added(step)
    for node in list(doctree.findall(nodes.literal_block)):
        if waiting and node.get("language") == "cpp" and node.astext().rstrip() == waiting[0].text.rstrip():
            hunk = waiting.pop(0)
            try:
                node.replace_self(raw(differences.hunk_part(step, hunk, added.get(hunk.file, ()))))
            except ValueError as line:
                logger.warning(f"{hunk.file} does not have this line where the text shows it: {line}", location=node)


def show_outputs(doctree, page):
    """Below each block of commands what they print, as it was recorded."""
    waiting = list(page.blocks)
    found = {}
    for command in recorded.commands(page):
        found.setdefault(command.block.line, []).append(command)
    for node in list(doctree.findall(nodes.literal_block)):
        text = node.astext().rstrip()
        block = next((block for block in waiting if block.text.rstrip() == text), None)
        if not block:
            continue
        waiting = waiting[waiting.index(block) + 1:]
        if recorded.is_commands(block):
            node["language"] = "console" if recorded.is_session(block) else "bash"
        place = node.parent.index(node) + 1
        for command in found.get(block.line, []):
            if command.why_not or recorded.is_session(block):
                continue
            output = command.recording()
            if output is None:
                logger.warning("the output of this command is not recorded yet; tools/book --record does that",
                               location=(page.name.removesuffix(".md"), command.line))
                continue
            short = re.sub(r"\s+", " ", command.text)
            remark = '<p>A benchmark, one run on one machine that had other work too: yours will differ.</p>' if command.is_benchmark else ""
            first = not any("terminal" in str(other.astext()) for other in doctree.findall(nodes.raw))
            node.parent.insert(place, raw(
                f'<details class="terminal" data-command="{escape(command.text)}"{run_here(command)}{" open" if first else ""}><summary>'
                f'<span>prints</span> <code>{escape(short)}</code></summary>{remark}'
                f'<pre tabindex="0" role="group" aria-label="output">{terminal.html(output)}</pre>'
                f'{terminal.legend(output)}</details>'))
            place += 1


def run_here(command):
    """The command that the page's terminal runs, if it differs from the shown one: with the page's variables, and
    input."""
    more = ""
    if command.runnable != command.text:
        more += f' data-run="{escape(command.runnable)}"'
    if command.input:
        more += f' data-input="{escape(command.input)}"'
    return more


def description(step, doctree):
    """One line about a page, for searches and previews: a step's headline, or the page's first sentences."""
    if step:
        return step.summary().replace("`", "")
    paragraphs = doctree.findall(nodes.paragraph) if doctree else ()
    written = (part for part in paragraphs if not isinstance(part.next_node(), (nodes.raw, nodes.image)))  # no picture
    text = re.sub(r"\s+", " ", next((part.astext() for part in written), "")).strip()
    if len(text) <= 200:
        return text
    sentences = re.match(r".{40,200}[.!?](?= )", text)
    return sentences[0] if sentences else text[:200].rsplit(" ", 1)[0] + " …"


def preview(app, page, template, context, doctree):
    """What a search or a message shows of a page."""
    title = re.sub(r"<[^>]*>", "", context.get("title", ""))  # Sphinx's is HTML
    about = description(app.staircase.of_page.get(re.sub("/folder$", "/README", page)), doctree)
    tags = [f'<meta property="og:title" content="{title}"/>' if page == app.config.root_doc else
            f'<meta property="og:title" content="{title} - {app.config.project}"/>']
    if about:
        tags += [f'<meta name="description" content="{escape(about)}"/>',
                 f'<meta property="og:description" content="{escape(about)}"/>']
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def surroundings(app, page, template, context, doctree):
    step = app.staircase.of_page.get(page)
    context["repository"] = app.staircase.repository
    if doctree:
        context["edit"] = derived.edit_address(app.staircase.repository, f"{page}.md")
    runs = playground.has(app.config.playground, step) if step else first_run(app, page)
    context["playground"] = playground.PAGE_SCRIPTS if runs else ()
    if not step:
        return
    for key, other in (("prev", step.parent), ("next", app.staircase.onward(step))):
        context[key] = {"link": f"../{other.name}/index.html", "title": escape(other.heading())} if other else None
    if not step.parent:
        context["prev"] = {"link": "../../index.html", "title": "Home"}


def share_sidebar(app, page, template, context, doctree):
    """Sphinx makes the tree of the sidebar for each page, in a tenth of a second. Source pages of one depth share
    it."""
    if not page.startswith("source/"):
        return
    make, depth, sidebars = context["toctree"], page.count("/"), app.staircase.sidebars

    def made_once(**options):
        if depth not in sidebars:
            sidebars[depth] = make(**options)
        return sidebars[depth]

    context["toctree"] = made_once


def fold_navigation(app, page, template, context, doctree):
    """The groups of the sidebar fold: the one with the current page is open, or the first where no group has it."""
    tree = context.get("furo_navigation_tree", "").replace('<a class="current ', '<a aria-current="page" class="current ')
    groups = re.split(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span></p>', tree)
    captions, lists = groups[1::2], groups[2::2]
    is_open = [' class="current"' in entries for entries in lists]
    if lists and not any(is_open):
        is_open[0] = True
    found = (f'<details{" open" if shown else ""}><summary class="caption">{caption}</summary>{entries}</details>'
             for caption, entries, shown in zip(captions, lists, is_open))
    context["furo_navigation_tree"] = groups[0] + "".join(found)


def code(name, text):
    body = "\n".join(differences.highlighted(name, text))
    return f'<pre class="code source" tabindex="0" role="group" aria-label="{escape(name)}">{body}\n</pre>'


def more_pages(app):
    """The whole folder of each step, the sources that pages link to, the comparison and the search."""
    for document, step in app.staircase.of_page.items():
        files = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in step.files().items()
                 if name not in OWN}
        body = ('<p class="step-line">' + "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in files)
                + '<a href="index.html#test.cpp">test.cpp, in the diff</a></p>'
                + "".join(f'<h2 id="{escape(name)}">{escape(name)}</h2>{code(name, text)}' for name, text in files.items()))
        stands = "".join(f'<li><a href="../../source/common/decoding/{landed.name}.html">{landed.name}</a> of '
                         f'<a href="../{landed.owner.name}/index.html">{escape(landed.owner.heading())}</a></li>'
                         for landed in step.stands_on())
        if stands:
            body += f"<h2>It uses</h2><ul>{stands}</ul>"
        before, after = ((f"../{one.name}/folder.html", one.heading()) if one else None
                         for one in (step.parent, app.staircase.onward(step)))
        yield f"steps/{step.name}/folder", {"title": f"{step.heading()}: the whole folder", "text": body,
                                            "back": ("index.html", step.heading()), "before": before,
                                            "after": after}, "plain.html"
    owners = {f"common/decoding/{landed.name}": landed.owner for landed in app.staircase.series[0].library.values()}
    paths = sorted(app.env.book_sources | set(owners))
    for path, *near in zip(paths, [None, *paths], [*paths[1:], None]):
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        depth = "../" * (path.count("/") + 1)
        back = (depth + "index.html", "Staircase")
        if path in owners:
            back = (depth + app.staircase.address(owners[path]), owners[path].heading() + ", which finished this file")
        before, after = ((f"{depth}source/{one}.html", one) if one else None for one in near)
        yield f"source/{path}", {"title": path, "text": code(path, text), "back": back, "before": before,
                                 "after": after}, "plain.html"
    yield "compare", {"title": "Compare two steps", "steps": app.staircase.series}, "compare.html"
    yield "search", {"title": "Search"}, "search.html"


def finish(app, exception):
    if exception:
        return
    entries = []
    for document, sections in app.env.book_search.items():
        title = sections[0][1] if sections else document
        for anchor, heading, text in sections:
            entries.append([app.builder.get_target_uri(document) + (f"#{anchor}" if anchor else ""), title,
                            "" if heading == title else heading, text])
    for step in app.staircase.series:
        for one in differences.file_diffs(step):
            if one.name not in OWN:
                added = " ".join(line[3].strip() for line in one.lines if line[0] == "+")
                if added:
                    entries.append([app.staircase.address(step) + f"#{one.name}", step.heading(), one.name, added, 1])
    folder = app.builder.outdir
    if app.config.playground:
        playground.copy(app.config.playground, app.staircase.series, folder)
    with open(f"{folder}/search-index.js", "w", encoding="utf-8") as file:
        file.write(search.script(entries))
    with open(f"{folder}/compare-data.js", "w", encoding="utf-8") as file:
        file.write(comparison(app.staircase.series))


def comparison(series):
    """compare-data.js: each line of code once, and each file as numbers of lines. The files that a step uses count
    as its own."""
    known, found = {}, []
    for step in series:
        files = {name: (path, "") for name, path in step.lesson().items()}
        for landed in step.stands_on():
            files.setdefault(landed.name, (landed.path, landed.owner.number))
        entry = {}
        for name, (path, landed) in sorted(files.items()):
            text = path.read_text(encoding="utf-8", errors="replace")
            entry[name] = [[known.setdefault(line, len(known)) for line in differences.highlighted(name, text)], landed]
        found.append({"number": step.number, "name": step.name, "title": step.heading(), "files": entry})
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    return f"const codeLines = {json.dumps(list(known), **compact)};\nconst codeSteps = {json.dumps(found, **compact)};\n"


def setup(app):
    app.add_config_value("playground", "", "html")
    app.add_builder(Book)
    app.add_directive("step-diff", StepDiff)
    app.add_directive("step-playground", StepPlayground)
    app.add_directive("step-neighbours", StepNeighbours)
    app.connect("builder-inited", start)
    app.connect("source-read", extend)
    app.connect("doctree-read", fold_answers, priority=400)  # before Sphinx collects the contents
    app.connect("doctree-read", place_playground, priority=400)
    app.connect("doctree-read", read)
    app.connect("doctree-resolved", links.resolve)
    app.connect("html-collect-pages", more_pages)
    app.connect("html-page-context", surroundings, priority=400)
    app.connect("html-page-context", share_sidebar, priority=400)
    app.connect("html-page-context", preview)
    app.connect("html-page-context", fold_navigation, priority=900)  # after Furo, which makes the tree
    app.connect("build-finished", finish)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
