#!/usr/bin/env python3
"""Builds the book, or records what its commands print; tools/book calls it.

    build.py site FOLDER [PROGRAMS]         the site, whole or not at all; its pages run the WebAssembly in PROGRAMS
    build.py single-file FILE PROGRAMS STEP one page of it, with all files that it loads inside
    build.py record BUILD                   the outputs, with the programs in BUILD
    build.py derive                         files made from others: the steps' picture, docs/steps.md, README's branches
                                            and docs/benchmarks/cpu.md
    build.py record-benchmarks BUILD        the outputs, including those of the benchmarks
"""

import io
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

if sys.version_info < (3, 9):
    sys.exit("tools/book needs Python 3.9 or newer; this is %d.%d." % sys.version_info[:2])

sys.dont_write_bytecode = True  # a source tree stays as it was
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools")]

from pages import markdown, recorded  # noqa: E402
from step_commands.series import ROOT, Problem, full_disk, is_full, steps  # noqa: E402

# What Sphinx and the theme bring and no page of ours uses.
UNUSED = ["_static/jquery*.js", "_static/underscore*.js", "_static/_sphinx_javascript_frameworks_compat.js",
          "_static/doctools.js", "_static/searchtools.js", "_static/language_data.js", "_static/sphinx_highlight.js",
          "_static/documentation_options.js", "_static/scripts", "_static/*.png", "_static/*.svg", "_static/basic.css",
          "_static/debug.css", "_static/skeleton.css", "_static/styles/*.map", "objects.inv", ".buildinfo",
          "_images/staircase.svg"]


@contextmanager
def built(place, programs):
    """The site in a folder next to `place`, which it may replace: half a site is never where readers look for a
    whole one."""
    try:
        import myst_parser  # noqa: F401
        from sphinx.application import Sphinx
        from sphinx.errors import SphinxError
        from sphinx.util.docutils import docutils_namespace
    except ImportError as error:
        raise Problem(f"{error.name} is missing; tools/setup --book installs it.") from None
    markdown.pages()  # a page that is not there has its own sentence
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=place.name + ".new-") as temporary:
        new, warnings, words = Path(temporary) / "site", io.StringIO(), io.StringIO()
        try:
            with docutils_namespace():
                app = Sphinx(str(ROOT), str(HERE), str(new), temporary + "/doctrees", "book", freshenv=True,
                             status=words, warning=warnings, confoverrides={"playground": programs})
                app.build()
        except SphinxError as error:
            raise Problem(f"The book was not built: {error}") from None
        said = re.sub(r"\033\[[0-9;]*m", "", warnings.getvalue()).strip()
        if said:
            said = said.replace(f"{ROOT}/", "").replace("WARNING: ", "")
            raise Problem("The book was not built, since this is wrong:\n" + said)
        for pattern in UNUSED:
            for path in new.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in new.glob("_static/styles/*.css"):  # Debian's theme imports a file of the system, which a site has not
            path.write_text(re.sub(r"@import[^;]*;", "", path.read_text(encoding="utf-8")), encoding="utf-8")
        for path in new.rglob("*.html"):
            page = with_skip_link(without_indentation(path.read_text(encoding="utf-8")))
            path.write_text(accessible(page), encoding="utf-8")
        yield new


def site(folder, programs=""):
    with built(folder, programs) as new:
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages, {size / 1e6:.1f} MB")


def single_file(file, programs, name):
    from pages import playground
    step = next(step for step in steps() if step.name == name)
    with built(file, programs) as new:
        page = new / "single.html"
        page.write_text(playground.single_file(programs, step, new), encoding="utf-8")
        page.rename(file)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def with_skip_link(page):
    """The page with a first link that leads past the sidebar; newer versions of Furo bring one."""
    if 'class="skip-to-content' in page or '<article role="main">' not in page:
        return page
    page = page.replace('<article role="main">', '<article role="main" id="furo-main-content" tabindex="-1">')
    link = '<a class="skip-to-content" href="#furo-main-content">Skip to content</a>'
    return re.sub(r"<body[^>]*>", rf"\g<0>\n{link}", page, count=1)


# Furo's landmarks have no names, and Docutils' tables have headers without words; a screen reader reads both out.
NAMED = [('<aside class="sidebar-drawer"', ' aria-label="All pages and search"'),
         ('<aside class="toc-drawer', ' aria-label="Contents"'),
         ('<div class="content-icon-container"', ' role="region" aria-label="Display"'),
         ('<label class="overlay ', ' aria-hidden="true"')]  # only a pointer closes a drawer by them


def accessible(page):
    """The page with what its readers need who do not see it."""
    for tag, more in NAMED:
        page = page.replace(tag, tag.replace(" class", more + " class", 1))
    return re.sub(r'<th class="head"([^>]*)>(?:<p>\s*</p>)?</th>', r"<td\1></td>", page)


def without_indentation(page):
    """The page without the blanks and comments of the templates, a tenth of it, and without Pygments' elements around
    each blank. The text itself, an article or a source file, stays."""
    page = re.sub(r'<span class="w">(\s*)</span>', r"\1", page)
    found = re.search(r"<article.*</article>|<pre.*</pre>", page, re.DOTALL)
    if not found:
        return page
    around = [re.sub(r"<!--.*?-->", "", part, flags=re.DOTALL) for part in (page[:found.start()], page[found.end():])]
    around = [re.sub(r"\s*\n\s*", "\n", part) for part in around]
    return around[0] + found[0] + around[1]


def derive():
    from pages import derived
    for path, text in derived.files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def record(build, benchmarks):
    derive()
    recorded.record(build, print, benchmarks)


def main(arguments):
    try:
        if arguments[0] == "site":
            site(Path(arguments[1]).resolve(), *arguments[2:])
        elif arguments[0] == "single-file":
            single_file(Path(arguments[1]).resolve(), *arguments[2:])
        elif arguments[0] == "derive":
            derive()
        else:
            record(Path(arguments[1]).resolve(), arguments[0] == "record-benchmarks")
        return 0
    except Problem as problem:
        print(f"tools/book: {problem}", file=sys.stderr)
        return problem.status
    except OSError as error:  # a folder that takes no files, a full disk
        place = error.filename or (arguments[1] if len(arguments) > 1 else ROOT)
        reason = full_disk(place) if is_full(error) else f"{place}: {error.strerror}."
        print(f"tools/book: {reason}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
