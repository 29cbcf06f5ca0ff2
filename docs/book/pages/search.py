"""The index of the search: the whole text, one entry a section, as a script, since a page that was opened from a file
may read nothing else."""

import json
import re

from docutils import nodes


def sections(doctree):
    """[(anchor, title, text)] of a page; a section's text is without that of the sections in it."""
    found = []

    def own_text(node):
        for child in node.children:
            if isinstance(child, (nodes.section, nodes.title, nodes.raw, nodes.comment)):
                continue
            if isinstance(child, nodes.Text):
                yield child.astext()
            elif isinstance(child, nodes.image):
                yield " " + child.get("alt", "") + " "
            else:
                yield from own_text(child)
                if isinstance(child, nodes.TextElement) and not isinstance(child, nodes.Inline):
                    yield "\n"
            if isinstance(child, nodes.literal_block):
                yield "\n"

    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title).astext()
        text = re.sub(r"\s+", " ", "".join(own_text(section))).strip()
        found.append((section["ids"][0] if found else "", title, text))
    return found


def script(entries):
    """search-index.js; an entry is [address, title of the page, title of the section, text], with a 1 if the text
    is code."""
    return "const searchIndex = " + json.dumps(entries, ensure_ascii=False, separators=(",", ":")) + ";\n"
