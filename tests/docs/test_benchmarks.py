"""The figures of docs/benchmarks: their page is made from its file, their ratios are those of the figures, and other
pages quote what was measured."""

import json
import re
import sys
import unittest
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/benchmarks"
sys.path.insert(0, str(ROOT / "bench"))

import cpu_page  # noqa: E402

DATA = cpu_page.read()
RESULTS = [result for machine in DATA["machines"].values() for result in machine["results"]]
PAGE = (FOLDER / "cpu.md").read_text(encoding="utf-8")
COLUMNS = {"prefill": "prefill_ms", "decode": "decode_tokens_per_s", "batch": "batch_tokens_per_s"}  # by the first word
OURS = "Staircase, "

# Ratios in prose that have no figures in brackets: of these figures of the same page, or measured in runs of which only
# the ratio was kept.
COMPUTED = {"docs/prefill-and-decode.md": {"1.4": ("125", "90"), "26": ("10.4", "0.40")},
            "docs/benchmarks/decoding.md": {"1.8": (7.5 / 10153, 3.4 / 8166), "1.3": (7.3 / 292, 3.3 / 174)}}
MEASURED = {"docs/architecture.md": ["0.7"], "docs/server.md": ["2.6", "1.03"],
            "docs/benchmarks/decoding.md": ["1.84", "1.93"],
            "docs/benchmarks/notes.md": ["5.29", "7.69", "8.0", "7.9", "8.0"]}
RATIO = re.compile(r"(\d+\.\d+|\b26) times(?:(?:(?! times|\. )[^()])*?\(([\d.,]+) and ([\d.,]+))?")


def rounded(number):
    """(smallest, largest) of what is written so; a number that is no text is exact."""
    if not isinstance(number, str):
        return number, number
    half = 0.5 * 10.0 ** -len(number.replace(",", "").partition(".")[2])
    return float(number.replace(",", "")) - half, float(number.replace(",", "")) + half


def may_be(ratio, one, other):
    """Whether the ratio of two rounded figures, either way, may have been rounded to this."""
    low, high = rounded(ratio)
    for above, below in ((rounded(one), rounded(other)), (rounded(other), rounded(one))):
        if above[0] / below[1] <= high and above[1] / below[0] >= low:
            return True
    return False


def prose(path):
    """Without tables, in one line."""
    return " ".join(" ".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("|")).split())


def tables(page):
    """[(header, rows)], each row a list of cells."""
    found = []
    for block in re.findall(r"(?m)(?:^\|.*\n)+", page):
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        found.append((header, rows))
    return found


class Page(unittest.TestCase):
    def test_the_page_is_made_from_its_file(self):
        self.assertEqual(PAGE, cpu_page.text(DATA), "python3 docs/book/build.py derive writes it again")
        self.assertEqual(cpu_page.FILE.read_text(encoding="utf-8"), cpu_page.compact(DATA) + "\n")
        self.assertEqual(len(tables(PAGE)), len(RESULTS))

    def test_a_person_has_written_what_limits_each_result(self):
        for result in RESULTS:
            with self.subTest(result["command"]):
                self.assertRegex(result["limit"], r"^[A-Z].*\.$")
                for run in result["runs"]:
                    self.assertRegex(run["date"], r"^20\d\d-\d\d-\d\d$")
        for name, machine in DATA["machines"].items():
            self.assertRegex(machine["about"], r"\.$", name)

    def test_no_table_has_more_rows_than_a_reader_compares(self):
        for header, rows in tables(PAGE):
            self.assertLessEqual(len(rows), 40, header)

    def test_figures_and_ratios_beside_other_engines_are_those_of_the_file(self):
        seen = 0
        for result, (header, rows) in zip(RESULTS, tables(PAGE)):
            if header[0] != "engine":
                continue
            run, = result["runs"]
            self.assertEqual([row[0] for row in rows], list(run["engines"]))
            for name, *cells in rows:
                engine = run["engines"][name]
                for column, key in COLUMNS.items():
                    at = next((place for place, heading in enumerate(header[1:]) if heading.startswith(column)), None)
                    if at is None:
                        self.assertTrue(all(key not in one for one in run["engines"].values()))
                        continue
                    smallest, middle, largest = (float(value) for value in re.fullmatch(
                        r"([\d.]+) \(([\d.]+)–([\d.]+)\)", cells[at]).group(2, 1, 3))
                    for shown, value in ((smallest, min(engine[key])), (middle, median(engine[key])), (largest, max(engine[key]))):
                        self.assertAlmostEqual(shown, value, delta=(0.5 if key.startswith("batch") else 0.05) + 1e-9)
                    ours = median(run["engines"][OURS + engine["dtype"]][key])
                    others = [engine] if not name.startswith(OURS) else [
                        other for other_name, other in run["engines"].items()
                        if other["dtype"] == engine["dtype"] and not other_name.startswith(OURS)]
                    ratios = [median(other[key]) / ours if key == "prefill_ms" else ours / median(other[key]) for other in others]
                    wanted = f"{min(ratios):.2f}" if ratios else "–"
                    self.assertEqual(cells[at + 1], f"**{wanted}**" if ratios and name.startswith(OURS) else wanted, name)
                    seen += 1
        self.assertGreater(seen, 200)

    def test_a_batch_is_a_multiple_of_one_sequence(self):
        seen = 0
        for header, rows in tables(PAGE):
            one = next((row for row in rows if row[0].startswith("1 sequence ")), None)
            for row in rows:
                for at in range(1, len(row) - 1, 2):
                    if row[0].split()[1].startswith("sequences"):
                        self.assertTrue(may_be(row[at + 1].split(" ×")[0], row[at], one[at]), row)
                        seen += 1
        self.assertEqual(seen, 12)


class Prose(unittest.TestCase):
    def test_each_ratio_is_that_of_its_figures(self):
        seen = 0
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(FOLDER.glob("*.md"))]:
            page, alone = str(path.relative_to(ROOT)), []
            for ratio, one, other in RATIO.findall(prose(path)):
                if one or ratio in COMPUTED.get(page, {}):
                    figures = (one, other) if one else COMPUTED[page][ratio]
                    self.assertTrue(may_be(ratio, *figures), f"{page}: {ratio} times is not {figures[0]} and {figures[1]}")
                    seen += 1
                else:
                    alone.append(ratio)
            self.assertEqual(alone, MEASURED.get(page, []), f"{page}: put the two figures of a ratio in brackets after it, (A and B)")
        self.assertGreater(seen, 12)

    def test_caches_are_multiples_of_no_cache(self):
        """In the tables of step 19: speed-ups beside tokens per second."""
        seen = 0
        for header, rows in tables((FOLDER / "decoding.md").read_text(encoding="utf-8")):
            if header[0] == "new tokens":
                for row in rows:
                    for at in (position for position, name in enumerate(header) if name == "×"):
                        self.assertTrue(may_be(row[at], row[at - 1], row[1]), row)
                        seen += 1
        self.assertEqual(seen, 16)

    def test_other_pages_quote_what_was_measured(self):
        run = DATA["machines"]["AMD EPYC (Zen 5)"]["results"][0]["runs"][0]["engines"][OURS + "float32"]
        prefill, decode, batch = (f"{median(run[key]):.0f}" for key in COLUMNS.values())
        gpu = json.loads((FOLDER / "gpu-nvidia-h200.json").read_text(encoding="utf-8"))["benchmarks"]
        one = {dtype: gpu[f"124m, {dtype}"]["Staircase"]["decode"][0] for dtype in ("bfloat16", "int8")}
        rate = {dtype: f"{figures['tokens_per_s']:,.0f} tokens/s" for dtype, figures in one.items()}
        for page, text in (("docs/prefill-and-decode.md", f"takes {prefill} ms: {float(prefill) / 512:.2f} ms for each token"),
                           ("docs/prefill-and-decode.md", f"1000 / {decode} = {1000 / float(decode):.1f} ms"),
                           ("docs/prefill-and-decode.md", f"({decode} and {batch} tokens/s"),
                           ("docs/memory.md", f"{rate['int8']}, against {rate['bfloat16'].split()[0]} in bfloat16"),
                           ("README.md", f"decoded {rate['bfloat16']}, {one['bfloat16']['percent_of_copy']:.0f} % of")):
            self.assertIn(text, prose(ROOT / page))

    def test_a_wrong_ratio_is_found(self):
        self.assertEqual(RATIO.findall("is 1.29 times as fast as x.cpp's (1.59 and 1.17 ms), 7.6 times, sixteen (2 and 3)"),
                         [("1.29", "1.59", "1.17"), ("7.6", "2", "3")])
        self.assertEqual(RATIO.findall("it is 2.0 times that. Then (6 and 3)"), [("2.0", "", "")])
        for ratio, one, other, expected in (("1.36", "1.59", "1.17", True), ("1.29", "1.59", "1.17", False), ("0.74", "1.59", "1.17", True),
                                            ("9.5", "104.6", "11.1", True), ("9.6", "104.6", "11.1", False), ("2.93", "2,149", "733", True)):
            self.assertEqual(may_be(ratio, one, other), expected, (ratio, one, other))


if __name__ == "__main__":
    unittest.main()
