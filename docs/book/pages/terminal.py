"""What a terminal shows, as HTML: the few colours and styles that the programs use."""

import re
from html import escape

CLASSES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}

# Where a token of speculative decoding comes from, by its colour; the same as in playground/playground.js.
ORIGINS = {"t-green": ("accepted", "drafted, and kept"),
           "t-red": ("corrected", "the model's own, after it rejected a drafted one"),
           "t-cyan": ("bonus", "the model's own, after all drafted ones were accepted")}
SAME_AGAIN = re.compile(r"(\033\[3[126]m)([^\033]*)\033\[0m\1")  # neighbours of one origin are named once


def html(text):
    """The output with its escape sequences as <span>s."""
    merged = 1
    while merged:
        text, merged = SAME_AGAIN.subn(r"\1\2", text)
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
            classes = f't-{" t-".join(names)}'
            origin = f' role="group" aria-label="{ORIGINS[classes][0]}"' if classes in ORIGINS else ""
            pieces.append(f'<span class="{classes}"{origin}>')
            opened = True
    return "".join(pieces) + ("</span>" if opened else "")


def legend(text):
    """What the colours and lines of the tokens mean, as HTML, where the output has any."""
    if not re.search(r"\033\[3[126]m", text):
        return ""
    items = (f'<li><span class="{name}">{origin}</span>: {escape(words, quote=False)}</li>' for name, (origin, words) in ORIGINS.items())
    return f'<ul class="legend" aria-label="colours and lines of the tokens">{"".join(items)}</ul>'
