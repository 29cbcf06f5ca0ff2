"""The figures of `tools/bench --rungs`: a table for other programs, a picture, and what nvcc makes of GPU rungs."""

import csv
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs" / "pictures"))
from svg import Picture  # noqa: E402

UNITS = {"gb_per_s": "GB/s", "gflop_per_s": "GFLOP/s"}
LEFT, WIDTH, ROW = 190, 440, 22


def rows_of(result):
    """Returns a dictionary per rung: its ladder, its figures, and its gain over the rung below."""
    rows = []
    for ladder in result["ladders"]:
        below = None
        for rung in ladder["rungs"]:
            row = {"ladder": ladder["ladder"], **rung}
            kernels = row.pop("kernels", [])
            if len(kernels) == 1:
                row |= {key: value for key, value in kernels[0].items() if key != "kernel"}
            if "ms" in rung:
                speed = next(rung[unit] for unit in UNITS if unit in rung)
                row["share_of_limit"] = speed / ladder["limit"]
                is_rung = not rung["name"].startswith("engine")
                if below and is_rung:
                    row["times_below"] = below / rung["ms"]
                below = rung["ms"] if is_rung else None
            rows.append(row)
            rows += [{"ladder": ladder["ladder"], "name": name, **figures} for name, figures in named_kernels([rung])
                     if len(kernels) > 1]
    return rows


def named_kernels(rungs):
    """Returns (the rung's name, with the kernel's if it has several, figures of bench/sass.py) for each kernel."""
    return [(rung["name"] + (f": {kernel['kernel']}" if len(rung["kernels"]) > 1 else ""),
             {key: value for key, value in kernel.items() if key != "kernel"})
            for rung in rungs for kernel in rung.get("kernels", [])]


def compiled_table(ladder, versions):
    """Returns what nvcc makes of a ladder's kernels, as lines. Without nvdisasm only its first columns."""
    # Exponentials and sums are most of these two; the others multiply.
    unit = "number" if ladder["ladder"] in ("gpu-softmax", "gpu-layer-norm") else "multiply"
    has_code = any("instructions" in kernel for rung in ladder["rungs"] for kernel in rung.get("kernels", []))
    lines = [f"Compiled by {versions}."]
    if has_code:
        lines.append("A lane's loads, bytes and multiplications are those of the inner loop, or without one of the kernel.")
    lines += ["", f"  {'':<28}{'registers':>10}{'spilled':>9}{'shared':>8}"]
    if has_code:
        lines[-1] += f"{'instructions':>14}{'in loop':>9}{'loads':>7}{'bytes':>7}{'multiplies':>12}{f'per {unit}':>14}"
    for name, figures in named_kernels(ladder["rungs"]):
        line = f"  {name:<28}{figures['registers']:>10}{figures['spilled_bytes']:>9}{figures['shared_bytes']:>8}"
        if has_code:
            of = figures["loaded_bytes"] / 4 if unit == "number" else figures["multiplications"]
            per = format((figures["loop_instructions"] or figures["instructions"]) / of, ".2f") if of else "–"
            line += (f"{figures['instructions']:>14}{figures['loop_instructions'] or '–':>9}{figures['loads']:>7}"
                     f"{figures['loaded_bytes']:>7}{figures['multiplications']:>12}{per:>14}")
        lines.append(line)
    return lines


def as_csv(result):
    """Returns a table with a column for each figure of any ladder. A rung without this figure has an empty cell."""
    rows = rows_of(result)
    text = io.StringIO()
    columns = dict.fromkeys(["ladder", "name", *(key for row in rows for key in row)])
    table = csv.DictWriter(text, list(columns), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def bars_of(ladder):
    """Returns (what the bars show, [(name, length, text, whether it is the engine's)], the limit's length or None)."""
    if "limit" not in ladder:  # counted in the emulation, without a GPU
        bars = [(rung["name"], rung["bytes_of_sectors"] / 1e3,
                 f"{rung['bytes_of_sectors'] / 1e3:,.0f} KB, {rung['bytes_before_wait'] / 1e3:,.0f} of them early", False)
                for rung in ladder["rungs"]]
        return "KB that memory moves, counted in the emulation: no time", bars, None
    unit = next(unit for unit in UNITS if unit in ladder["rungs"][0])
    bars = [(rung["name"], rung[unit], f"{rung[unit]:,.1f} {UNITS[unit]}, {rung['ms']:.3f} ms", rung["name"].startswith("engine"))
            for rung in ladder["rungs"]]
    return f"{UNITS[unit]}, and the machine's limit of {ladder['limit']:,.0f}", bars, ladder["limit"]


def picture(result):
    """Draws the bars of each ladder, one ladder below another."""
    ladders = result["ladders"]
    heights = [64 + ROW * len(ladder["rungs"]) for ladder in ladders]
    machine = result.get("machine", {}).get("cpu", "")
    drawing = Picture("rungs", LEFT + WIDTH + 230, sum(heights) + 34, "Kernels in rungs",
                      "Bars for each rung of a ladder of kernels: " + ", ".join(ladder["ladder"] for ladder in ladders) + ".")
    top = 0
    for ladder, height in zip(ladders, heights):
        subject, bars, limit = bars_of(ladder)
        longest = max([limit or 0, *(length for _, length, _, _ in bars)]) or 1
        drawing.text(20, top + 26, f"{ladder['ladder']}: {subject}", anchor="start", weight="600")
        for i, (name, length, text, is_engine) in enumerate(bars):
            y, wide = top + 40 + i * ROW, WIDTH * length / longest
            drawing.text(LEFT - 10, y + 13, name, anchor="end", size=12)
            drawing.box(LEFT, y, max(wide, 1), ROW - 6, "green" if is_engine else "blue", fill=0.4, round=2)
            drawing.text(LEFT + WIDTH + 12, y + 13, text, anchor="start", size=12)
        if limit:
            x = LEFT + WIDTH * limit / longest
            drawing.line([(x, top + 34), (x, top + 36 + ROW * len(bars))], "red", dashes="4 4")
        top += height
    drawing.text(20, top + 14, machine and f"{machine}, {result['threads']} threads, {result['rounds']} rounds", anchor="start",
                 size=12, colour="grey")
    return drawing.svg()
