"""Where the links of the Markdown files lead on the site: to a page, to the source of a file, or, with a warning that
names file and line, to nothing."""

import posixpath
import re
from urllib.parse import unquote

from docutils import nodes
from sphinx.util import logging
from step_commands.series import ROOT

logger = logging.getLogger(__name__)


def slug(title):
    """The anchor that a heading has on the hosts of repositories."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def document_of(path, env):
    """The page that a path of the repository is shown on, or None."""
    path = path.strip("/")
    for name in (path.removesuffix(".md"), f"{path}/README" if path else "README"):
        if name in env.found_docs and (path.endswith(".md") or not path.endswith("README")):
            return name
    return None


def headings(doctree):
    """Gives each section the anchor that its title has elsewhere as well, so that a link works in both places. Of equal
    titles only the first has it."""
    for section in doctree.findall(nodes.section):
        anchor = slug(section.next_node(nodes.title).astext())
        if anchor and anchor not in doctree.ids:
            section["ids"].insert(0, anchor)
            doctree.ids.setdefault(anchor, section)


def read(app, doctree):
    """Records the targets of a page's links; files that are not pages become pages of source."""
    env = app.env
    document = env.docname
    headings(doctree)
    env.book_anchors[document] = {anchor for node in doctree.findall(nodes.Element) for anchor in node.get("ids", ())}
    folder = posixpath.dirname(document)
    for node in list(doctree.findall(nodes.reference)):
        uri = node.get("refuri", "")
        if not uri or re.match(r"[a-z]+:", uri, re.IGNORECASE):
            continue
        target, _, anchor = unquote(uri).partition("#")
        path = posixpath.normpath(posixpath.join(folder, target)) if target else None
        page = document if path is None else document_of("" if path == "." else path, env)
        if page:
            node["book_page"], node["book_anchor"] = page, anchor
            continue
        step = re.match(r"(steps/\d\d+-[\w-]+)/(.+)", path)
        if not (ROOT / path).exists() or path.startswith(".."):
            logger.warning(f"the link to '{uri}' leads to nothing; there is no {path}", location=node)
        elif (ROOT / path).is_dir():
            node.replace_self(nodes.inline("", "", *node.children))  # a list of files would say nothing
        elif step and document_of(step.group(1), env):
            node["book_page"], node["book_anchor"] = f"{step.group(1)}/folder", step.group(2)
        elif path.endswith((".svg", ".png")):
            logger.warning(f"the link to '{uri}' leads to a picture; show it with ![…]({uri})", location=node)
        else:
            env.book_sources.add(path)
            node["book_page"], node["book_anchor"] = f"source/{path}", anchor


def resolve(app, doctree, document):
    for node in doctree.findall(nodes.reference):
        if "book_page" not in node:
            continue
        page, anchor = node["book_page"], node["book_anchor"]
        anchors = app.env.book_anchors.get(page)
        if anchor and anchors is not None and anchor not in anchors:
            logger.warning(f"there is no heading '#{anchor}' in {page}.md", location=node)
        uri = app.builder.get_relative_uri(document, page) if page != document else ""
        node["refuri"] = uri + (f"#{anchor}" if anchor else "") or "#"
        node["internal"] = True
