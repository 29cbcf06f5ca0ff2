"""docs/benchmarks/cpu.md, made from cpu.json beside it: tools/bench --record MACHINE adds to both.

The file is {"machines": {name: {"about": TEXT, "results": [RESULT, ...]}}}, and a result is one table of the page:

    {"command": "tools/bench --peers ...",     what measured it, without --dtype
     "about": TEXT,                            optional: what else a reader must know
     "limit": TEXT,                            what limits these figures, written by a person
     "runs": [RUN, ...]}

A run is an output of tools/bench --json: either a comparison with other engines or, for each dtype of the weights, one
with the machine's limits. Only the smallest, the median and the largest value of each figure are kept. A key that the
page does not show may be missing. A figure may also be missing; the page then has a dash.
"""

import json
import statistics
import textwrap
from pathlib import Path

import peers

FILE = Path(__file__).resolve().parents[1] / "docs/benchmarks/cpu.json"
PAGE = FILE.with_suffix(".md")
COLUMNS = 120

SHAPES = {"gpt2-124m-shape": "GPT-2 124M", "gpt2-355m-shape": "GPT-2 355M", "gpt2-774m-shape": "GPT-2 774M",
          "gpt2-1558m-shape": "GPT-2 1558M", "smollm2-135m-shape": "SmolLM2 135M", "gemma-3-270m-shape": "Gemma 3 270M",
          "qwen3-0.6b-shape": "Qwen3 0.6B", "llama-3.2-1b-shape": "Llama 3.2 1B", "llama-3.1-8b-shape": "Llama 3.1 8B",
          "qwen3-30b-a3b-2-layers-shape": "Qwen3 30B-A3B, 2 layers", "mixture-124m-shape": "8 experts, 124M active",
          "dense-124m-shape": "one MLP, 124M"}

BEGINNING = """# Benchmarks on a CPU

Another page explains [what is measured, and how](../benchmarks.md). Each table names the command that made it. Its
figures are medians of rounds in which everything compared takes turns, with the smallest and the largest value in
brackets. Weights are random, except those of tales-6m.

In the tables with other engines, the ratio is our speed divided by theirs, with weights of the same type. The bold
ratio in a row of ours compares with the fastest other engine. Ratios are computed from the figures of `cpu.json`, which
up to 2026-11-28 have only the digits shown. Greedy tokens are compared with those of transformers in float32. Random
weights give nearly equal logits, so these tokens show that an engine runs, but not how well it rounds;
[72-quality](../../steps/72-quality) measures that. The engine "transformers compiled" is `generate` with a static cache
and `torch.compile`.

[The notes](notes.md) describe each experiment that led to these figures, or did not help.
"""


def read():
    return json.loads(FILE.read_text(encoding="utf-8"))


def shortened(value):
    """Rounded to five digits, which is more than the precision of any figure on this page."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def kept(run):
    """The part of a run of tools/bench --json that the file keeps."""
    if "engines" in run:
        engines = {}
        for name, engine in run["engines"].items():
            figures = {key: [shortened(pick(engine[key])) for pick in (min, statistics.median, max)]
                       for key, *_ in peers.COLUMNS if engine[key]}
            if figures:  # others ran only for their text
                engines[name] = {"dtype": engine["dtype"], "version": engine["version"], **figures, "agreement": engine["agreement"]}
        return {**{key: value for key, value in run.items() if key not in ("leads", "left_out")}, "engines": engines}

    def short(part):
        if isinstance(part, dict):
            return {key: short(value) for key, value in part.items()}
        return [short(value) for value in part] if isinstance(part, list) else shortened(part)

    return short(run)


def subject(run):
    """A key of what a run measured: a newer run replaces an older one with the same key."""
    if "engines" in run:
        at = "several contexts" if at_length(run) else run["decode_prompt_tokens"]
        return run["model"], run["threads"], run["cpu_time"], at, run.get("cache_dtype", "")
    return run["model"]["name"], run["threads"], run["clock"]


def at_length(run):
    """Whether the run belongs to a series over several contexts, in which the prompt is the context."""
    return run.get("prefill_is_context", False)


def dtypes(run):
    return {engine["dtype"] for engine in run["engines"].values()} if "engines" in run else {run["model"]["dtype"]}


def add(data, machine, about, command, run):
    """Adds a run of tools/bench --json. It replaces a run of the same subject if it has all types of that run. A run
    with the machine's limits in another type joins the table of the other types, and a run at another context joins its
    series. `about` describes a new machine."""
    results = data["machines"].setdefault(machine, {"about": about, "results": []})["results"]
    run = kept(run)
    for result in results:
        alike = all(subject(old) == subject(run) for old in result["runs"])
        replaced = [old for old in result["runs"] if dtypes(old) <= dtypes(run)
                    and (not at_length(run) or old.get("decode_prompt_tokens") == run["decode_prompt_tokens"])]
        if alike and ("engines" not in run or replaced or at_length(run)):
            result["runs"] = [old for old in result["runs"] if old not in replaced] + [run]
            result["command"] = command
            return
    results.append({"command": command, "limit": "", "runs": [run]})


def compact(part, indent=0):
    """JSON with a line for each engine, and for anything else that fits on a line."""
    line = json.dumps(part, ensure_ascii=False)
    if not part or not isinstance(part, (dict, list)) or len(line) <= 300:
        return line
    inner = " " * (indent + 2)
    if isinstance(part, dict):
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {compact(value, indent + 2)}" for key, value in part.items()]
    else:
        lines = [inner + compact(value, indent + 2) for value in part]
    brackets = "{}" if isinstance(part, dict) else "[]"
    return brackets[0] + "\n" + ",\n".join(lines) + "\n" + " " * indent + brackets[1]


def paragraph(*sentences):
    return textwrap.fill(" ".join(filter(None, sentences)), COLUMNS, break_long_words=False, break_on_hyphens=False)


def listed(words):
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def title(runs):
    run = runs[0]
    name = run["model"] if "engines" in run else run["model"]["name"]
    shape = SHAPES.get(name, name)
    if "engines" not in run:
        return f"{shape} beside the machine's limits"
    types = [dtype for dtype in peers.PRECISIONS if dtype in dtypes(run)]
    after = run["decode_prompt_tokens"]
    if at_length(run):
        return (f"{shape} after texts of several lengths" + (f", caches in {run['cache_dtype']}" if run["cache_dtype"] else "")
                + (f", weights in {listed(types)}" if len(types) > 1 else ""))
    return f"{shape} beside other engines" + (f" in {listed(types)}" if len(types) < 3 else "") + \
        (f", after {after} tokens" if after != 16 else "")


def measured_by(result):
    """The command, its dates, and the commits that it measured."""
    runs = result["runs"]
    dates = listed(sorted({run["date"] for run in runs}))
    commits = sorted({run["commit"] for run in runs if "commit" in run})
    busy = max(run.get("busy_before", 0) for run in runs)
    return paragraph(f"`{result['command']}`" + (", each type with its `--dtype`" if len(runs) > 1 and not at_length(runs[0]) else "") + f", {dates}"
                     + (f", commit {listed(commits)}" if commits else "") + ".",
                     f"{100 * busy:.0f} % of the machine was busy with other work." if busy > 0.1 else "", result.get("about"))


def digits(value):
    return 0 if value >= 100 or isinstance(value, int) else 1 if value >= 1 else 2


def spread(figure):
    """`median (min–max)`; parts may be unknown."""
    if figure is None:
        return "–"
    places = digits(figure.get("median", figure.get("max")))
    span = f"{figure['min']:.{places}f}–{figure['max']:.{places}f}" if "min" in figure else ""
    if "median" not in figure:
        return span
    return f"{figure['median']:.{places}f}" + (f" ({span})" if span else "")


def limit_rows(run):
    """{heading of a row: (the figure, its share of the limit)} for a run with the machine's limits."""
    rows = {"read bandwidth, GB/s": (spread(run["limits"]["read_gb_per_s"]), "–")} if "limits" in run else {}
    prefill = run["prefill"]
    shares = {f"oneDNN's products in {run['library_product_dtype']}": prefill.get("percent_of_library_product"),
              "the multiply-adds": prefill.get("percent_of_multiply_add") if run["model"]["dtype"] == "float32" else None}
    rows[f"prefill of {prefill['tokens']} tokens, ms"] = (
        spread(prefill["ms"]), ", ".join(f"{share:.0f} % of {what}" for what, share in shares.items() if share is not None) or "–")

    def share(figures):
        return f"{figures['percent_of_read']:.0f} % of the bandwidth"

    rows["one-token pass, ms"] = spread(run["one_token_pass"]["ms"]), share(run["one_token_pass"])
    for decode in run["decode"]:
        rows[f"decode, context {decode['context']}, ms"] = spread(decode["ms"]), share(decode)
    batches = {batch["batch"]: batch["tokens_per_s"] for batch in run.get("batches", [])}
    for count, rate in batches.items():
        rows[f"{count} sequence{'s' if count > 1 else ''} at context {run['batches'][0]['context']}, tokens/s"] = (
            f"{rate:.{digits(rate)}f}", f"{rate / batches[1]:.2f} × one sequence" if count > 1 else "–")
    for check in run.get("verification", []):
        rows[f"verify {check['drafted']} + 1 tokens, ms"] = spread(check.get("ms")), f"{check['times_one_token']:.2f} × one token"
    for key, name in (("weight_bytes", "weights"), ("peak_bytes_after_loading", "peak memory after loading"),
                      ("peak_bytes_after_running", "peak memory at the end")):
        if "load" in run:
            rows[f"{name}, MB"] = f"{run['load'][key] / 1e6:.0f}", "–"
    return rows


def limit_table(runs):
    columns = [limit_rows(run) for run in runs]
    yield "| | " + " | ".join(f"{run['model']['dtype']} | of the limit" for run in runs) + " |"
    yield "|---" * (1 + 2 * len(runs)) + "|"
    for name in dict.fromkeys(name for column in columns for name in column):
        yield f"| {name} | " + " | ".join(" | ".join(column.get(name, ("–", "–"))) for column in columns) + " |"


def length_table(runs):
    """Prefill and decoding of each engine after each context, in tokens/s."""
    runs = sorted(runs, key=lambda run: run["decode_prompt_tokens"])
    speeds = {"prefill": lambda run, engine: [1000 * run["prompt_tokens"] / ms for ms in reversed(engine["prefill_ms"])],
              "decode": lambda _, engine: engine["decode_tokens_per_s"]}
    yield "| tokens/s | " + " | ".join(f"{what} {run['decode_prompt_tokens']}" for what in speeds for run in runs) + " |"
    yield "|---" * (1 + len(speeds) * len(runs)) + "|"
    for name in dict.fromkeys(name for run in runs for name in run["engines"]):
        cells = []
        for speed in speeds.values():
            for run in runs:
                engine = run["engines"].get(name)
                cells.append(peers.spread(speed(run, engine), digits(statistics.median(speed(run, engine)))) if engine else "–")
        mark = "**" if name.startswith("Staircase") else ""
        yield f"| {mark}{name}{mark} | " + " | ".join(cells) + " |"


def table(runs):
    """The table of a result."""
    if "engines" not in runs[0]:
        return [*limit_table(runs)]
    if at_length(runs[0]):
        return [*length_table(runs)]
    run, = runs
    engines = {name: {**{key: [] for key, *_ in peers.COLUMNS}, "agreement": None, "ours": name.startswith("Staircase"), **engine}
               for name, engine in run["engines"].items()}
    return [*peers.table(engines, run["prompt_tokens"])]


def versions(runs):
    found = dict.fromkeys(engine["version"] for run in runs for engine in run.get("engines", {}).values() if engine.get("version"))
    return paragraph("; ".join(found) + ".") if found else ""


def text(data):
    """The page."""
    blocks = [BEGINNING.strip()]
    for name, machine in data["machines"].items():
        blocks += [f"## {name}", paragraph(machine["about"])]
        for result in machine["results"]:
            blocks += [f"### {title(result['runs'])}", measured_by(result), "\n".join(table(result["runs"])),
                       paragraph(result["limit"]), versions(result["runs"])]
    return "\n\n".join(filter(None, blocks)) + "\n"


def write(data):
    FILE.write_text(compact(data) + "\n", encoding="utf-8")
    PAGE.write_text(text(data), encoding="utf-8")
