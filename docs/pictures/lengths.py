"""Tokens per second after longer and longer texts, from docs/benchmarks/cpu.json: weights and caches in bfloat16."""

import json
import sys
from pathlib import Path

from svg import write

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
import long_texts  # noqa: E402

MACHINE = "Intel Xeon with AMX and a large L3"


def draw():
    results = json.loads((ROOT / "docs/benchmarks/cpu.json").read_text(encoding="utf-8"))["machines"][MACHINE]["results"]
    at = {}  # of several runs after one length, the one with the most engines
    for run in (run for result in results for run in result["runs"] if run.get("cache_dtype") == "bfloat16"):
        engines = {name: engine for name, engine in run["engines"].items() if engine["dtype"] == "bfloat16"}
        if len(engines) > len(at.get(run["decode_prompt_tokens"], {"engines": ()})["engines"]):
            at[run["decode_prompt_tokens"]] = run | {"engines": engines, "model": "SmolLM2 135M"}
    runs = [at[context] for context in sorted(at)]
    return long_texts.drawn(runs, long_texts.caption_of(runs[0], f"an {MACHINE}"))


if __name__ == "__main__":
    write(__file__)
