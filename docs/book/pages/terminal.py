"""What a terminal shows, as HTML: the few colours and styles that the programs use."""

import re
from html import escape

CLASSES = {"1": "bold", "2": "dim", "7": "reverse", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}


def html(text):
    """The output with its escape sequences as <span>s."""
    pieces, opened = [], False
    for part in re.split(r"(\033\[[0-9;]*m)", text):
        if not part.startswith("\033["):
            pieces.append(escape(part, quote=False))
            continue
        if opened:
            pieces.append("</span>")
            opened = False
        names = [CLASSES[code] for code in part[2:-1].split(";") if code in CLASSES]
        if names:
            pieces.append(f'<span class="t-{" t-".join(names)}">')
            opened = True
    return "".join(pieces) + ("</span>" if opened else "")
