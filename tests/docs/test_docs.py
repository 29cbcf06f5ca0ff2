"""The docs: their numbers are those of the model and of the formulas, their pictures are what the scripts draw,
their commands print what the page shows, and their links lead somewhere."""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
PICTURES = ROOT / "docs/pictures"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "steps").glob("*/README.md")),
         *sorted((ROOT / "steps").glob("*/ANSWERS.md"))]

sys.path.insert(0, str(PICTURES))
import draft_run  # noqa: E402
import memory_table  # noqa: E402
import scaling_table  # noqa: E402
import svg  # noqa: E402
import todays_example  # noqa: E402
from example import Example  # noqa: E402
from tales import softmax  # noqa: E402

# Printed books, and a thesis without a lasting address.
OFFLINE = ["Queueing Systems, Volume 1: Theory", "The HARPY Speech Recognition System"]


def text_of(page):
    """A page's text. That of an answer is not indented, so its blocks are those of any other page."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^   ", "", text, flags=re.MULTILINE) if page.name == "ANSWERS.md" else text


def anchors(page):
    """The names of a page's headings, as the hosts of such pages make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-"))
    return found


def commands(page):
    """(the line, its variables, the command, its output on the page) of each `$` in an indented block."""
    variables, found = [], []
    lines = text_of(page).splitlines()
    for number, line in enumerate(lines):
        if re.match(r"    \w+=", line):
            variables.append(line.strip())
        if line.startswith("    $ tools/run "):
            said = []
            for following in lines[number + 1:]:
                if following.startswith("    $ ") or (following and not following.startswith("    ")):
                    break
                said.append(following)
            found.append((number + 1, list(variables), line[6:], " ".join(" ".join(said).split())))
    return found


def channels(colour):
    return [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]


def contrast(*colours):
    """WCAG's, of two colours."""
    def luminance(colour):
        return sum(share * (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
                   for share, value in zip((0.2126, 0.7152, 0.0722), colour))

    darker, lighter = sorted(map(luminance, colours))
    return (lighter + 0.05) / (darker + 0.05)


class Pages(unittest.TestCase):
    def test_links_lead_to_a_file_and_to_a_heading_of_it(self):
        for page in PAGES:
            text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"https?:", target):
                    continue
                with self.subTest(f"{page.relative_to(ROOT)}: {target}"):
                    path, _, anchor = target.partition("#")
                    file = (page.parent / path).resolve() if path else page
                    self.assertTrue(file.exists(), "there is no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(file))

    def test_every_source_has_a_link(self):
        unlinked, count = [], 0
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for part in re.findall(r"(?ms)^## (?:Sources|Further reading)\n(.*?)(?=^## |\Z)", text):
                for entry in re.findall(r"(?ms)^- .*?(?=^- |^\s*$|\Z)", part):
                    count += 1
                    titles = re.sub(r"\[[^]]*\]\(https?://[^)]*\)", "", entry)
                    if "](http" not in entry or re.search(r"(?<!\w)\*[^*]+\*(?!\w)", titles):
                        unlinked.append((page.parent.name, " ".join(entry.split())))
        self.assertGreater(count, 190)
        found = sorted({title for _, entry in unlinked for title in OFFLINE if title in entry})
        self.assertEqual([entry for entry in unlinked if not any(title in entry[1] for title in OFFLINE)], [])
        self.assertEqual(found, sorted(OFFLINE))

    def test_a_paper_in_the_text_is_linked_there_or_among_the_sources(self):
        unlinked, count = [], 0
        for page in PAGES:
            text = " ".join(page.read_text(encoding="utf-8").split())
            for author in re.findall(r"\w+ et al\.", text):
                count += 1
                if not re.search(re.escape(author) + r" \d{4}(, \[\*[^]]+)?\]\(http", text):
                    unlinked.append((page.parent.name, author))
        self.assertEqual(unlinked, [])
        self.assertGreater(count, 100)

    def test_the_code_of_a_ladder_is_that_of_its_files(self):
        pages = sorted((ROOT / "docs/kernels").glob("*.md"))
        self.assertTrue(pages)
        for page in pages:
            for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
                for code in re.findall(r"```(?:cpp|cuda)\n(.*?)```", section, re.DOTALL):
                    with self.subTest(page.name, section=section.splitlines()[0]):
                        file = page.parent / re.search(r"\]\(([^)]+\.(?:cpp|cu))\)", section)[1]
                        self.assertIn(" ".join(code.split()), " ".join(file.read_text(encoding="utf-8").split()))
        for ladder in (ROOT / "kernels/rungs").glob("*/*/"):
            for file in ladder.glob("[0-9]*_*.c*"):
                with self.subTest(file.name):
                    self.assertLessEqual(len(file.read_text(encoding="utf-8").splitlines()), 80)
                    self.assertTrue(any(f"{ladder.name}/{file.name})" in page.read_text(encoding="utf-8") for page in pages))

    def test_commands_print_what_the_page_says(self):
        """The shown text is part of the output; how it is cut into lines does not matter."""
        seen = 0
        for page in PAGES:
            for number, variables, command, said in commands(page):
                with self.subTest(f"{page.relative_to(ROOT)}, line {number}"):
                    step = next((ROOT / "steps").glob(command.split()[1] + "-*")).name
                    line = re.sub(r"^tools/run \d\d+", f"{BUILD}/steps/{step} --device cpu", command)
                    done = subprocess.run(["bash", "-c", "\n".join([*variables, line])], stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
                    self.assertEqual(done.returncode, 0, done.stdout)
                    self.assertIn(said, " ".join(done.stdout.split()))
                    self.assertNotEqual(said, "")
                    seen += 1
        self.assertGreater(seen, 10)


class Numbers(unittest.TestCase):
    def test_the_worked_example_is_that_of_the_model(self):
        page = (ROOT / "docs/how-gpt2-works.md").read_text(encoding="utf-8")
        example = Example()
        for name, text in example.parts().items():
            with self.subTest(name):
                self.assertIn(text, page)
        product, first, last = example.product()
        prose = " ".join(page.split())
        self.assertIn(f"{product:.2f} / √64 = {product / 8:.2f}", prose)
        self.assertIn(f"length {first:.1f} after the embedding and {last:.1f} after the last block", prose)
        self.assertIn(f"{100 * example.heads[3][4][3][1]:.0f} % of what", prose)

    def test_todays_models_have_the_numbers_of_their_page(self):
        page = (ROOT / "docs/todays-models.md").read_text(encoding="utf-8")
        for name, text in todays_example.parts().items():
            with self.subTest(name):
                self.assertIn(text, page)
        mean, deviation, root, _ = todays_example.norms()
        self.assertIn(f"a mean of {mean}, a standard deviation of {deviation} and a root mean square of {root}", " ".join(page.split()))

    def test_plain_python_finds_the_logits_of_transformers(self):
        """After "The wolf ran into" the engine and Hugging Face give " the" the log-probability −0.1060 (step 37)."""
        example = Example()
        likely = softmax(example.logits)[example.model.token_id[" the"]]
        self.assertAlmostEqual(likely, 2.718281828 ** -0.1060, places=4)

    def test_the_table_of_memory_follows_the_formulas(self):
        page = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
        for row in memory_table.rows():
            with self.subTest(row.split("|")[1].strip()):
                self.assertIn(row, page)

    def test_a_mac_generates_at_most_what_its_bandwidth_permits(self):
        """Bandwidth divided by the bytes of 16-bit weights, which docs/memory.md has in MiB."""
        weights = dict(re.findall(r"^\| (gpt2\S*) \|(?:[^|]*\|){2} ([\d,.]+) \|", (ROOT / "docs/memory.md").read_text(encoding="utf-8"),
                                  re.MULTILINE))
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in
                (ROOT / "docs/systems.md").read_text(encoding="utf-8").splitlines() if re.match(r"\| (chip|M\d)", line)]
        self.assertGreaterEqual(len(rows), 5)
        for chip, bandwidth, *speeds in rows[1:]:
            for model, speed in zip(rows[0][2:], speeds):
                with self.subTest(f"{chip}, {model}"):
                    most = float(bandwidth) * 1e9 / (float(weights[model].replace(",", "")) * 2**20)
                    self.assertEqual(speed, f"{most:,.0f}")

    def test_the_tables_of_scaling_follow_the_formulas(self):
        page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
        for name, rows in scaling_table.tables().items():
            self.assertEqual(len(rows), 4)
            with self.subTest(name):
                self.assertIn("|\n" + "\n".join(rows) + "\n\n", page)

    def test_ranks_receive_what_the_formula_of_scaling_says(self):
        for ranks in (2, 3, 4):
            done = subprocess.run([BUILD / "steps/98-tensor-parallel", "--device", "cpu", "--model", "tales-llama-1m", "--prompt",
                                   "A fox", "--max-new-tokens", "0", "--compare-ranks", str(ranks)],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            received, tokens = re.search(r"receives ([\d.]+) KiB for (\d+) tokens", done.stderr).groups()
            formula = scaling_table.tensor_parallel(scaling_table.TALES_LLAMA, ranks, int(tokens))
            self.assertEqual(received, f"{formula / 1024:.1f}")

    def test_stages_receive_what_the_formula_of_scaling_says(self):
        """Three stages, two texts: the stream of all tokens from the stage before, and on all but the last the
        logits."""
        done = subprocess.run([BUILD / "steps/99-pipeline-parallel", "--device", "cpu", "--model", "tales-llama-1m",
                               "--prompt", "A fox", "--prompt", "The wolf", "--max-new-tokens", "1", "--compare-ranks", "3"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        tokens = int(re.search(r"(\d+) prompt tokens", done.stderr)[1])
        shape = scaling_table.TALES_LLAMA
        stream, logits = scaling_table.pipeline(shape, tokens), 2 * scaling_table.logits(shape)
        self.assertEqual(re.findall(r"([\d.]+) KiB received", done.stderr),
                         [f"{count / 1024:.1f}" for count in (logits, stream + logits, stream)])

    def test_the_glossary_is_in_alphabetical_order(self):
        page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
        words = [word.lower().replace("α", "alpha").replace("γ", "gamma") for word in re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)[1:]]
        self.assertGreater(len(words), 40)
        self.assertEqual(words, sorted(words))


class DraftRun(unittest.TestCase):
    """What the first screen's picture shows of a trace."""

    def test_each_round_has_what_was_drafted_and_what_the_target_made_of_it(self):
        def fed(model, *tokens):
            return {"event": "pass", "model": model, "rows": [{"row": 0, "start": 0, "tokens": list(tokens)}]}

        def chosen(token, origin):
            return {"event": "token", "text": 0, "token": token, "origin": origin}

        events = [{"event": "start", "vocabulary": list("abcdef")}, {"event": "text"}, fed("tales-6m", 0, 1), chosen(2, "prompt"),
                  fed("tales-1m", 0, 1, 2), fed("tales-1m", 3), fed("tales-6m", 2, 3, 4), chosen(3, "accepted"), chosen(5, "corrected"),
                  fed("tales-1m", 5), {"event": "logits"}, fed("tales-6m", 5, 0), chosen(0, "accepted"), chosen(1, "bonus")]
        self.assertEqual(draft_run.rounds(events), [
            {"drafted": [], "tokens": [["c", "prompt"]]},
            {"drafted": ["d", "e"], "tokens": [["d", "accepted"], ["f", "corrected"]]},
            {"drafted": ["a"], "tokens": [["a", "accepted"], ["b", "bonus"]]}])

    def test_its_file_is_a_run_of_that_kind(self):
        run = json.loads(draft_run.FILE.read_text(encoding="utf-8"))
        self.assertTrue((ROOT / "steps" / f"{run['step']}-{draft_run.STEP}").is_dir())
        self.assertEqual(run["prompt"], draft_run.PROMPT)
        self.assertEqual(sum(len(one["tokens"]) for one in run["rounds"]), int(draft_run.OPTIONS[draft_run.OPTIONS.index("--max-new-tokens") + 1]))
        for one in run["rounds"]:
            accepted = [text for text, origin in one["tokens"] if origin == "accepted"]
            self.assertEqual(accepted, one["drafted"][:len(accepted)])


class Pictures(unittest.TestCase):
    def test_each_picture_is_what_its_script_draws(self):
        self.assertGreater(len(svg.pictures()), 6)
        for name in svg.pictures():
            with self.subTest(name):
                self.assertEqual((PICTURES / f"{name}.svg").read_text(encoding="utf-8"), svg.draw(name),
                                 f"python3 docs/pictures/{name}.py writes it again")
        # The map is drawn from the folders of the steps, by docs/book.
        self.assertEqual({path.stem for path in PICTURES.glob("*.svg")}, {*svg.pictures(), "staircase"})

    def test_pictures_suit_light_and_dark_ask_for_nothing_and_say_what_they_show(self):
        for path in PICTURES.glob("*.svg"):
            with self.subTest(path.name):
                text = path.read_text(encoding="utf-8")
                ElementTree.fromstring(text)
                self.assertIn("@media (prefers-color-scheme: dark)", text)
                self.assertIn("<title", text)
                self.assertIn("<desc", text)
                self.assertNotRegex(text.replace("http://www.w3.org/2000/svg", ""), r"https?:|url\(|@import|href")
                self.assertEqual("animation:" in text, "prefers-reduced-motion" in text)

    def test_letters_stand_out_from_their_background(self):
        """At least 4.5 to 1, as WCAG has it, on a white page and a dark one, and on the boxes around them."""
        seen = set()
        for path in PICTURES.glob("*.svg"):
            shapes = list(ElementTree.parse(path).getroot().iter())
            style = next(shape.text for shape in shapes if shape.tag.endswith("}style"))
            light = re.sub(r"@media \(prefers-color-scheme: dark\) \{(?:[^{}]*\{[^{}]*\})*\s*\}", "", style)
            for page, rules in (("#ffffff", light), ("#131416", style)):
                fills = dict(re.findall(r"\.([\w-]+) \{ (?:[^}]*; )?fill: (#\w+); \}", rules))
                ink = re.findall(r"(?m)^(?:.*dark\) \{ )?(?:#\w+|\.staircase) \{ (?:[^}]*; )?(?:color|fill): (#\w+)", rules)[-1]
                boxes = []
                for shape in shapes:
                    if shape.tag.endswith("}rect") and shape.get("fill", "none") != "none":
                        boxes.append([float(shape.get(name, 0)) for name in ("x", "y", "width", "height")] + [shape])
                    if not shape.tag.endswith("}text") or not (shape.text or "").strip():
                        continue
                    x, y = float(shape.get("x")), float(shape.get("y")) - 4
                    ground = channels(page)
                    shown_with = set(shape.get("class", "").split())
                    for left, top, width, height, box in boxes:
                        inside = left <= x <= left + width and top <= y <= top + height
                        if inside and set(box.get("class", "").split()) <= shown_with:
                            share = float(box.get("fill-opacity", 1))
                            ground = [a + (b - a) * share for a, b in zip(ground, channels(box.get("fill")))]
                    fill = next((fills[name] for name in shape.get("class", "").split() if name in fills), ink)
                    seen.add(fill)
                    with self.subTest(f"{path.name}: {shape.text}"):
                        self.assertGreaterEqual(contrast(channels(fill), ground), 4.5, f"{fill} on {page}")
        self.assertGreater(len(seen), 12)

    def test_texts_stay_inside_their_picture(self):
        """By a generous width of a letter, since each reader has another font."""
        for path in PICTURES.glob("*.svg"):
            root = ElementTree.parse(path).getroot()
            width, height = (float(root.get(name)) for name in ("width", "height"))
            for text in root.iter("{http://www.w3.org/2000/svg}text"):
                size = float(text.get("font-size", 14))
                room = len(text.text) * size * (0.62 if text.get("font-family") else 0.53)
                share = {"middle": 0.5, "end": 1}.get(text.get("text-anchor"), 0)
                left = float(text.get("x")) - room * share
                with self.subTest(f"{path.name}: {text.text}"):
                    self.assertGreaterEqual(left, -2)
                    self.assertLessEqual(left + room, width + 2)
                    self.assertLessEqual(float(text.get("y")), height)

    def test_each_picture_is_shown_somewhere(self):
        shown = {Path(target).name for page in PAGES
                 for target in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))}
        self.assertEqual({path.name for path in PICTURES.glob("*.svg")} - shown, set())


if __name__ == "__main__":
    unittest.main()
