"""Tokens per second compared with other engines, from docs/benchmarks/cpu.json: longer bars are faster."""

import json
import re
from pathlib import Path
from statistics import median

from svg import Picture, write

FILE = Path(__file__).resolve().parents[1] / "benchmarks/cpu.json"
MACHINE = "AMD EPYC (Zen 5)"      # whose first result is shown
PANELS = ("prefill", "decode", "decode, 8 at a time")
WIDTH, TOP, ROW = 620, 60, 21
LEFT, PANEL, BAR = 128, 164, 100


def short(engine):
    """`ggml's example`, of all its variants."""
    return re.sub(r"( compiled| with \w+)?, \w+$", "", engine).replace(" gpt-2 example", "'s example")


def rates(run, dtype):
    """{engine: tokens per second of each panel}, of several variants the fastest each; ours first, then by prefill."""
    found = {}
    for name, engine in run["engines"].items():
        if engine["dtype"] == dtype:
            here = [1000 * run["prompt_tokens"] / median(engine["prefill_ms"]), median(engine["decode_tokens_per_s"]),
                    median(engine["batch_tokens_per_s"])]
            found[short(name)] = [*map(max, here, found.get(short(name), here))]
    return dict(sorted(found.items(), key=lambda one: (one[0] != "Staircase", -one[1][0])))


def draw():
    run, = json.loads(FILE.read_text(encoding="utf-8"))["machines"][MACHINE]["results"][0]["runs"]
    types = ("float32", "bfloat16")
    measured = {dtype: rates(run, dtype) for dtype in types}
    most = [max(of_engine[panel] for dtype in types for of_engine in measured[dtype].values()) for panel in range(3)]
    caption = f"GPT-2 in the 124M shape, {run['threads']} threads of an {MACHINE}, {run['date']}"
    height = TOP + sum(len(measured[dtype]) * ROW + 40 for dtype in types) + 26
    picture = Picture("speed", WIDTH, height, "Speed compared with other engines, in tokens per second",
                      f"{caption}. " + " ".join(
                          f"Staircase in {dtype}: {', '.join(f'{rate:.0f} {name}' for rate, name in zip(measured[dtype]['Staircase'], PANELS))}."
                          for dtype in types))
    picture.text(14, 24, "Tokens per second; longer is faster", anchor="start", size=16, weight="600")
    for panel, name in enumerate(PANELS):
        picture.text(LEFT + panel * PANEL, 46, name, anchor="start")
    y = TOP
    for dtype in types:
        y += 20
        picture.text(14, y, dtype, anchor="start", weight="600")
        y += 8
        for engine, of_engine in measured[dtype].items():
            mine = engine == "Staircase"
            picture.text(14, y + 14, engine, anchor="start", size=14, weight="600" if mine else "")
            for panel, rate in enumerate(of_engine):
                x, length = LEFT + panel * PANEL, BAR * rate / most[panel]
                picture.box(x, y + 3, length, ROW - 6, "blue" if mine else "grey", fill=0.75 if mine else 0.3, round=2)
                picture.text(x + length + 5, y + 15, f"{rate:.0f}", anchor="start", size=13, weight="600" if mine else "")
            y += ROW
        y += 12
    picture.text(14, height - 10, caption, anchor="start", size=13, colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
