"""Tokens per second compared with other engines, from docs/benchmarks/peers.json: longer bars are faster."""

import json
import re
from pathlib import Path

from svg import Picture, write

FILE = Path(__file__).resolve().parents[1] / "benchmarks/peers.json"
PROMPT = 512                      # tokens of the prefill, which is measured in milliseconds
PANELS = ("prefill", "decode", "decode, 8 at a time")
WIDTH, TOP, ROW = 620, 60, 21
LEFT, PANEL, BAR = 128, 164, 100


def short(engine):
    """`llama.cpp`, without a version and the text after it."""
    return re.sub(r"( \d[\d.]*)?( \(.*\))?(, .*)?$", "", engine).replace("'s gpt-2 example", "'s example")


def rates(figures):
    """Tokens per second of each panel."""
    milliseconds, *others = figures
    return [1000 * PROMPT / milliseconds, *others]


def draw():
    measured = json.loads(FILE.read_text(encoding="utf-8"))
    types = ("float32", "bfloat16")
    most = [max(rates(figures)[panel] for dtype in types for figures in measured[dtype].values()) for panel in range(3)]
    height = TOP + sum(len(measured[dtype]) * ROW + 40 for dtype in types) + 26
    ours = {dtype: rates(measured[dtype]["Staircase"]) for dtype in types}
    picture = Picture("speed", WIDTH, height, "Speed compared with other engines, in tokens per second",
                      f"{measured['model']} on {measured['machine']}, {measured['date']}. " + " ".join(
                          f"Staircase in {dtype}: {', '.join(f'{rate:.0f} {name}' for rate, name in zip(ours[dtype], PANELS))}."
                          for dtype in types))
    picture.text(14, 24, "Tokens per second; longer is faster", anchor="start", size=16, weight="600")
    for panel, name in enumerate(PANELS):
        picture.text(LEFT + panel * PANEL, 46, name, anchor="start")
    y = TOP
    for dtype in types:
        y += 20
        picture.text(14, y, dtype, anchor="start", weight="600")
        y += 8
        for engine, figures in measured[dtype].items():
            mine = engine == "Staircase"
            picture.text(14, y + 14, short(engine), anchor="start", size=14, weight="600" if mine else "")
            for panel, rate in enumerate(rates(figures)):
                x, length = LEFT + panel * PANEL, BAR * rate / most[panel]
                picture.box(x, y + 3, length, ROW - 6, "blue" if mine else "grey", fill=0.75 if mine else 0.3, round=2)
                picture.text(x + length + 5, y + 15, f"{rate:.0f}", anchor="start", size=13, weight="600" if mine else "")
            y += ROW
        y += 12
    picture.text(14, height - 10, f"{measured['model']}, {measured['machine']}, {measured['date']}", anchor="start", size=13, colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
