"""A picture of tokens per second after longer and longer texts, from a run of `tools/bench --peers` with several
contexts."""

import sys
from math import log
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs" / "pictures"))
from svg import LETTERS, Picture  # noqa: E402

PANELS = (("prefill", lambda run, engine: [1000 * run["prompt_tokens"] / ms for ms in engine["prefill_ms"]]),
          ("decode", lambda _, engine: engine["decode_tokens_per_s"]))
LEFT, PANEL, WIDE, TOP, HIGH = 70, 400, 250, 70, 200
OTHERS = ("orange", "green", "violet", "red", "grey")


def curves(runs, speeds):
    """{engine: [(context, tokens per second), ...]}"""
    found = {}
    for run in runs:
        for name, engine in run["engines"].items():
            if engine.get("prefill_ms"):
                found.setdefault(name, []).append((run["decode_prompt_tokens"], median(speeds(run, engine))))
    return found


def separated(heights, gap=15):
    """The places, moved apart so that each is at least `gap` below the one above it."""
    placed = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    return placed


def drawn(runs, caption):
    """One panel for prefill and one for decoding. All axes are logarithmic: contexts usually double from one to the
    next, and speeds also differ by factors."""
    contexts = sorted({run["decode_prompt_tokens"] for run in runs})
    names = [*dict.fromkeys(name for run in runs for name, engine in run["engines"].items() if engine.get("prefill_ms"))]
    ours = [name for name in names if name.startswith("Staircase")]
    others = dict(zip((name for name in names if name not in ours), OTHERS * len(names)))
    rows = 15 * max(len(names) - 8, 0)
    picture = Picture("lengths", 2 * PANEL + LEFT, TOP + HIGH + 74 + rows, "Tokens per second after longer texts",
                      f"{caption}. " + " ".join(
                          f"{name} in {panel}: " + ", ".join(f"{rate:.0f} at {context}" for context, rate in points) + "."
                          for panel, speeds in PANELS for name, points in curves(runs, speeds).items()))
    picture.text(14, 24, "Tokens per second after longer texts; higher is faster", anchor="start", size=16, weight="600")

    def place(value, least, most, length):
        return length * (log(value) - log(least)) / (log(most) - log(least)) if most > least else length / 2

    for number, (panel, speeds) in enumerate(PANELS):
        left, found = LEFT + number * PANEL, curves(runs, speeds)
        rates = [rate for points in found.values() for _, rate in points]
        least, most = min(rates), max(rates)
        picture.text(left, TOP - 18, panel, anchor="start", weight="600")
        for context in contexts:
            x = left + place(context, contexts[0], contexts[-1], WIDE)
            picture.line([(x, TOP), (x, TOP + HIGH)], "grey", width=1, opacity=0.3)
            label = f"{context // 1000}k" if context % 1000 == 0 else str(context)
            picture.text(x, TOP + HIGH + 18, label, size=12)
        for rate in (least, most):
            picture.text(left - 8, TOP + HIGH - place(rate, least, most, HIGH) + 4, f"{rate:,.0f}", anchor="end", size=12)
        ends = sorted((TOP + HIGH - place(points[-1][1], least, most, HIGH), name) for name, points in found.items())
        for (y, name), label in zip(ends, separated([y for y, _ in ends])):
            points = [(left + place(context, contexts[0], contexts[-1], WIDE), TOP + HIGH - place(rate, least, most, HIGH))
                      for context, rate in found[name]]
            colour = "blue" if name in ours else others[name]
            picture.line(points, colour, width=3 if name in ours else 1.5)
            picture.text(points[-1][0] + 8, label + 4, name, anchor="start", size=12, weight="600" if name in ours else "",
                         colour=colour if colour in LETTERS else "")
    picture.text(LEFT, TOP + HIGH + 40 + rows, "tokens of context", anchor="start", size=13)
    picture.text(14, TOP + HIGH + 64 + rows, caption, anchor="start", size=13, colour="grey")
    return picture


def caption_of(run, machine):
    cache = f", caches in {run['cache_dtype']}" if run["cache_dtype"] else ""
    return ", ".join(filter(None, (run["model"], f"{run['threads']} threads{cache}", machine, run.get("date"))))
