"""The pictures of beams and of batches: what they make of a trace, against the program's output and against events
alone."""

import json
import math
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import ROOT, Limited, run

BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
SCRIPTS = "\n".join((ROOT / "playground" / name).read_text(encoding="utf-8") for name in ("beams.js", "rows.js", "blocks.js", "attention.js", "views.js"))
EVENTS = """
  const events = require("fs").readFileSync(process.argv[2], "utf8").split("\\n").slice(0, -1).map((line) => JSON.parse(line));
  const start = events[0], texts = new Map();"""
LAST = "So they lived happily together until they died."  # the text ends after it
BEAMS = EVENTS + """
  const searches = [];
  for (const event of events) {
    const search = searches.at(-1), { text } = event;
    if (event.event === "text" && search?.prompt !== start.prompts[event.prompt]) searches.push(new BeamSearch(start.prompts[event.prompt], textRules(start, event), start.n_positions));
    if (event.event === "text") texts.set(text, []);
    if (event.event === "pass") search.pass(event.rows);
    if (event.event === "copy") search.copy(event);
    if (event.event === "logits") search.logits(event);
    if (event.event === "token") { search.finish(); texts.get(text).push(event.token); }
    if (event.event === "end") { search.finish(); search.tell(text, texts.get(text), event.finish_reason, event.score); }
  }
  console.log(JSON.stringify(searches.map(({ wrong, doubtful, told, levels, prompt }) => ({ wrong, doubtful: [...doubtful],
    told: [...told].map(([text, node]) => [text, node.text.slice(prompt.length), node.score]), sums: [...told.values()].map((node) => node.sum),
    ended: levels.flat().filter((node) => node.ended).map((node) => node.score),
    grown: levels.map((level) => level.filter((node) => !node.ended && !node.left).map((node) => [node.text, node.sum])) }))));"""
ROWS = EVENTS + """
  const batch = new BatchRows(start.n_positions, start.options["--use-cache"] !== "false");
  for (const event of events) {
    if (event.event === "text") batch.begin(event.text, start.prompts[event.prompt]);
    if (event.event === "pass") batch.pass(event);
    if (event.event === "copy") batch.copy(event);
    if (event.event === "token") batch.token(event.text, event.token);
    if (event.event === "end") batch.end(event.text);
  }
  console.log(JSON.stringify(batch.passes.map(({ cells }) => [...cells.values()].map(({ stay }) => stay.text ?? null))));"""


@unittest.skipUnless(shutil.which("node"), "no Node.js is installed")
class OfPrograms(Limited):
    LIMIT = 240

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def steps(self, *names):
        found = [path for name in names for path in BUILD.glob(f"steps/[0-9][0-9]*-{name}")]
        if not found:
            self.skipTest("none of the steps is built")
        return found

    def traced(self, step, script, *options, requests=None):
        """The program's output, the events of its trace, and what a script makes of them."""
        trace, path = self.folder / "trace", self.folder / "script.js"
        path.write_text(SCRIPTS + script)
        done = subprocess.run([step, *(() if "--model" in options else ("--model", "tales-1m")), "--device", "cpu", "--json", "--trace", trace, *options],
                              input=requests, capture_output=True, text=True, timeout=120, check=True)
        made = subprocess.run(["node", path, trace], capture_output=True, text=True, timeout=120, check=True)
        events = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        return json.loads(done.stdout)["sequences"], events, json.loads(made.stdout)

    def lineage(self, events):
        """Every text of a search and its sum, from the events alone: that of each row, after each of its passes."""
        held, found, logits = {}, [], {}
        for event in events:
            if event["event"] == "copy":
                held[event["to"]] = held[event["from"]]
            elif event["event"] == "logits":
                most = max(event["logits"])
                log = most + math.log(sum(math.exp(logit - most) for logit in event["logits"]))
                logits[event["row"]] = [logit - log for logit in event["logits"]]
                held[event["row"]] = (held[event["row"]][0], held[event["row"]][1], logits[event["row"]])
            elif event["event"] == "pass":
                new = {}
                for row in event["rows"]:
                    tokens = row["tokens"]
                    if not found:
                        new[row["row"]] = (tokens, 0.0, None)
                        continue
                    if row["start"]:
                        text, before, behind = held[row["row"]]
                    else:
                        (text, before, behind), = [one for one in found[-1].values() if one[0] == tokens[:-1]]
                    new[row["row"]] = (text + tokens[-1:], before + behind[tokens[-1]], None)
                held = {**held, **new}
                found.append({row: held[row] for row in new})
            if found and event["event"] == "logits":
                found[-1][event["row"]] = held[event["row"]]
        return [sorted([text, total] for text, total, _ in rows.values()) for rows in found]

    def test_beams_have_the_parents_that_the_events_say_and_lead_to_the_texts_that_are_shown(self):
        for step in self.steps("beam-search", "finished-beams", "beam-rows", "n-best", "length-penalty", "early-stopping", "beam-tree"):
            for options in ((), ("--no-use-cache",)) if step.name[:2] not in ("40", "41") else ((),):
                with self.subTest(step.name, options=options):
                    shown, events, (search,) = self.traced(step, BEAMS, "--prompt", "A fox", "--num-beams", "4", "--max-new-tokens", "25", *options)
                    self.assertEqual((search["wrong"], search["doubtful"]), ("", []))
                    lineage = self.lineage(events)
                    self.assertEqual(len(lineage), 25)
                    for expected, grown in zip(lineage, search["grown"], strict=False):
                        self.assertEqual([text for text, _ in sorted(grown)], [text for text, _ in expected])
                        for (_, one), (_, other) in zip(sorted(grown), expected, strict=True):
                            self.assertAlmostEqual(one, other, delta=1e-6)
                    self.assertEqual([(text, tokens) for text, tokens, _ in search["told"]], [(1, shown[0]["token_ids"])])
                    self.assertAlmostEqual(search["told"][0][2], shown[0]["score"], delta=1e-5)

    def test_a_score_may_be_the_sum_itself(self):
        """Where texts that have ended stay among the beams, and fewer and fewer grow."""
        for step in self.steps("beam-search"):
            for prompt in (LAST, "They lived happily", "A king"):
                with self.subTest(prompt):
                    shown, events, (search,) = self.traced(step, BEAMS, "--prompt", prompt, "--num-beams", "3", "--max-new-tokens", "20")
                    self.assertEqual((search["wrong"], search["doubtful"]), ("", []))
                    for expected, grown in zip(self.lineage(events), search["grown"], strict=False):
                        self.assertEqual([text for text, _ in sorted(grown)], [text for text, _ in expected])
                    self.assertEqual([(text, tokens) for text, tokens, _ in search["told"]], [(1, shown[0]["token_ids"])])
                    for said in (search["told"][0][2], search["sums"][0]):
                        self.assertAlmostEqual(said, shown[0]["score"], delta=1e-5)

    def test_the_texts_that_end_are_those_of_the_search(self):
        for step in self.steps("beam-tree"):
            for options in (("--length-penalty", "2"), ("--early-stopping", "never", "--repetition-penalty", "1.3"), ("--presence-penalty", "0.4"),
                            ("--stop", ","), ("--min-new-tokens", "2", "--frequency-penalty", "0.5"), ("--ignore-eos",), ("--no-use-cache", "--stop", " the")):
                with self.subTest(options):
                    shown, _, searches = self.traced(step, BEAMS, "--prompt", LAST, "--prompt", "A king",
                                                     "--num-beams", "4", "--num-return-sequences", "4", "--max-new-tokens", "20", *options)
                    self.assertEqual([(search["wrong"], search["doubtful"]) for search in searches], [("", [])] * 2)
                    told = {text: (tokens, score) for search in searches for text, tokens, score in search["told"]}
                    self.assertEqual([told[text][0] for text in sorted(told)], [one["token_ids"] for one in shown])
                    for text, one in enumerate(shown, 1):
                        self.assertAlmostEqual(told[text][1], one["score"], delta=1e-5)
                    for search in searches:  # those that are shown are the best of those that ended
                        best = sorted(search["ended"], reverse=True)[:4]
                        self.assertEqual(best, sorted((score for _, _, score in search["told"]), reverse=True))

    def with_context(self, positions):
        """tales-1m with this many positions of its 512."""
        known, folder = ROOT / "models/tales-1m", self.folder / "model"
        shutil.copytree(known, folder)
        config = json.loads((known / "config.json").read_text())
        whole = config["n_positions"]
        (folder / "config.json").write_text(json.dumps({**config, "n_positions": positions, "n_ctx": positions}))
        content = (known / "model.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        header, data, kept = json.loads(content[8:8 + length]), content[8 + length:], b""
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            if name.endswith("wpe.weight"):
                entry["shape"][0], last = positions, first + (last - first) * positions // whole
            entry["data_offsets"] = [len(kept), len(kept) + last - first]
            kept += data[first:last]
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + kept)
        return folder

    def test_where_texts_look_alike_nobody_guesses(self):
        """Texts that differ in tokens before the context only."""
        for step in self.steps("beam-tree"):
            _, _, (search,) = self.traced(step, BEAMS, "--model", self.with_context(32), "--prompt", "A fox", "--num-beams", "3",
                                          "--max-new-tokens", "50", "--ignore-eos", "--no-use-cache")
            self.assertIn("look alike", search["wrong"])
            self.assertEqual(search["told"], [])

    def test_each_row_has_the_text_whose_tokens_it_is_fed(self):
        prompts = ["A fox", "Once upon a time there was a king who had", "The king said", "A", "The old king and his daughter went into the wood and there"]
        lines = [json.dumps({"prompt": prompt, "max_new_tokens": count, "do_sample": count % 2 == 0, "seed": count}) for prompt, count in
                 zip([*prompts, *prompts[::-1]], (3, 9, 4, 24, 12, 20, 5, 2, 30, 7), strict=True)]
        batches = [arguments for prompt in prompts for arguments in ("--prompt", prompt)] + ["--do-sample", "--max-new-tokens", "20"]
        requests = ["--requests", "-", "--max-batch-size", "4"]
        ended = ["--prompt", LAST, "--prompt", "A fox", "--no-use-cache", "--max-new-tokens", "5"]
        ways = {"variable-batching": [batches, ended], "leaving-rows": [batches, [*batches, "--no-use-cache"]],
                "queue": [[*batches, "--max-batch-size", "3"]],
                "shared-prefill": [[*batches, "--num-return-sequences", "3", "--max-batch-size", "6"], [*batches, "--num-return-sequences", "2", "--no-use-cache"]],
                "continuous-batching": [requests], "chunked-prefill": [[*requests, "--prefill-chunk", "4"]],
                "waiting-for-blocks": [[*requests, "--prefill-chunk", "3", "--kv-blocks", "8"]],
                "preemption": [[*requests, "--kv-blocks", "8"], [*requests, "--kv-blocks", "8", "--prefill-chunk", "5"]],
                "prefix-caching": [[*requests, "--kv-blocks", "10", "--prefill-chunk", "16"]]}
        for step in self.steps(*ways):
            for options in ways[step.name.partition("-")[2]]:
                with self.subTest(step.name, options=options):
                    shown, events, passes = self.traced(step, ROWS, *options, requests="\n".join(lines) if options[0] == "--requests" else None)
                    whole = [one["prompt_token_ids"] + one["token_ids"] for one in shown]
                    fed = [event["rows"] for event in events if event["event"] == "pass"]
                    self.assertTrue(any(len(rows) > 1 for rows in fed))
                    for rows, texts in zip(fed, passes, strict=True):
                        self.assertEqual(len(set(texts)), len(texts), rows)
                        for row, text in zip(rows, texts, strict=True):
                            self.assertIsNotNone(text, row)
                            end = row["start"] + len(row["tokens"])
                            self.assertEqual(whole[text - 1][row["start"]:end], row["tokens"])

    def test_each_row_has_the_blocks_that_its_positions_need_and_none_twice(self):
        script = EVENTS + """
          const batch = new BatchRows(start.n_positions), pool = new BlockPasses();
          for (const event of events) {
            if (event.event === "text") batch.begin(event.text, start.prompts[event.prompt]);
            if (event.event === "pass") { batch.pass(event); pool.pass(); }
            if (event.event === "blocks") pool.blocks(event);
            if (event.event === "token") batch.token(event.text, event.token);
            if (event.event === "end") batch.end(event.text);
          }
          console.log(JSON.stringify([pool.passes, pool.passes.map((_, pass) => pool.lost(pass, batch)),
            pool.passes.map((_, pass) => Math.max(...[...pool.users(pass).values()].map((rows) => rows.length)))]));"""
        limited = ["--requests", str(ROOT / "bench/four-requests.jsonl"), "--max-batch-size", "2", "--kv-blocks", "5"]
        # Their arrivals would let a fast machine finish one before the next is there. Of two that begin together, the
        # shorter one ends first, and the next one shares the blocks of the other.
        requests = [json.loads(line) for line in (ROOT / "bench/same-beginning.jsonl").read_text(encoding="utf-8").splitlines()]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
            self.addCleanup(os.unlink, file.name)
            file.writelines(json.dumps({**request, "arrival": 0, "max_new_tokens": 10 + 5 * i}) + "\n" for i, request in enumerate(requests))
        alike = ["--requests", file.name, "--max-batch-size", "2"]
        ways = {"paged-kv-cache": limited[:-2], "block-pool": limited[:-2], "waiting-for-blocks": limited, "preemption": limited,
                "prefix-caching": alike, "prefix-eviction": alike}
        for step in self.steps(*ways):
            name = step.name.partition("-")[2]
            with self.subTest(step.name):
                _, events, (passes, lost, most) = self.traced(step, script, *ways[name])
                fed = [event["rows"] for event in events if event["event"] == "pass"]
                self.assertEqual(len(passes), len(fed))
                shown = [event["rows"] for event in events if event["event"] == "blocks"]
                self.assertTrue(all(one != other for one, other in zip(shown, shown[1:], strict=False)))
                for after, rows in zip(passes, fed, strict=True):
                    for row in rows:
                        own = after["rows"][row["row"]]
                        self.assertEqual(len(set(own)), len(own))
                        self.assertGreaterEqual(len(own) * after["size"], row["start"] + len(row["tokens"]))
                why = {one["why"] for of_pass in lost for one in of_pass}
                self.assertEqual("preempted" in why, name == "preemption")
                self.assertEqual(max(most) > 1, name.startswith("prefix"))

    def test_where_rows_look_alike_nobody_guesses(self):
        for step in self.steps("shared-prefill"):
            for count, expected in (("2", [None, None]), ("1", [1, 2])):  # of two texts a prompt, one has no row in the first pass
                with self.subTest(count):
                    _, _, passes = self.traced(step, ROWS, "--prompt", "A fox", "--prompt", "A fox", "--do-sample", "--num-return-sequences", count,
                                               "--max-new-tokens", "4", "--no-use-cache")
                    self.assertEqual(passes[0], expected)
                    self.assertEqual(sorted(passes[1]), list(range(1, 2 * int(count) + 1)))


@unittest.skipUnless(shutil.which("node"), "no Node.js is installed")
class OfEvents(Limited):
    """What the scripts make of a few events, worked out by hand."""

    def made(self, script):
        done = subprocess.run(["node", "-e", SCRIPTS + f"\nconsole.log(JSON.stringify((() => {{ {script} }})()));"],
                              capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    def last_stage(self, text, **options):
        """Probabilities of four tokens with 1/2, 1/4, 1/8 and 1/8 of the model's; the text has a prompt of one token,
        and 3 ends it."""
        given = json.dumps({"--" + name.replace("_", "-"): value for name, value in options.items()})
        return self.made(f"return [...stages([4, 3, 2, 2].map((power) => power * Math.LN2), {text}, "
                         f"{{ options: {given}, eos: 3, prompted: 1 }}).at(-1)[1]];")

    def test_what_is_reached_exactly_is_reached(self):
        kept = lambda *arguments, **options: [share > 0 for share in self.last_stage(*arguments, **options)]  # noqa: E731
        for count, may_end in ((1, True), (2, True), (3, False), (4, False)):  # of two new tokens
            self.assertEqual(kept([0, 1, 1], min_new_tokens=str(count)), [True, True, True, may_end], count)
        for share, expected in (("0.5", 1), ("0.51", 2), ("0.75", 2), ("0.875", 3), ("0.9", 4)):
            self.assertEqual(sum(kept([0], top_p=share)), expected, share)
        for k, expected in (("1", 1), ("2", 2), ("3", 4), ("4", 4)):  # two equal ones are the third
            self.assertEqual(sum(kept([0], top_k=k)), expected, k)
        self.assertEqual(kept([0], temperature="0"), [True, False, False, False])
        self.assertEqual(kept([0], temperature="0.5"), [True] * 4)

    def test_a_penalty_counts_a_token_of_the_prompt_and_of_the_text(self):
        for option, value, shares in (("presence_penalty", math.log(2), (8, 4, 4, 4)), ("frequency_penalty", math.log(2), (8, 2, 4, 4)),
                                      ("repetition_penalty", 3, (2 ** (4 / 3), 2, 4, 4))):
            for got, share in zip(self.last_stage([0, 1, 1], **{option: str(value)}), shares, strict=True):
                self.assertAlmostEqual(got, share / sum(shares), places=12, msg=option)

    ROWS = """const batch = new BatchRows(8); batch.begin(1, [5, 6]); batch.begin(2, [5, 6]);
      batch.pass({ batch: 2, rows: [{ row: 0, start: 0, tokens: [5, 6] }] });
      const said = [batch.token(1, 7)];
      batch.copy({ from: 0, first: 0, positions: 2, to: 1 });"""

    def test_a_token_behind_a_copy_is_of_the_row_that_was_copied_to(self):
        said, texts, tokens = self.made(self.ROWS + """
      said.push(batch.token(2, 8));
      batch.pass({ rows: [{ row: 0, start: 2, tokens: [7] }, { row: 1, start: 2, tokens: [8] }] });
      said.push(batch.token(2, 9), batch.token(1, 9));
      return [said, [...batch.passes[1].cells.values()].map(({ stay }) => stay.text), [...batch.stays.values()].map(({ tokens }) => tokens)];""")
        self.assertEqual(said, [0, 0, 1, 0])
        self.assertEqual(texts, [1, 2])
        self.assertEqual(tokens, [[5, 6, 7], [5, 6, 8]])

    def test_a_copy_speaks_of_one_token_and_of_none_behind_the_next_pass(self):
        said = self.made("""const batch = new BatchRows(8); batch.begin(1, [5, 6]); batch.begin(2, [5, 6]); batch.begin(3, [4, 4]);
      batch.pass({ batch: 3, rows: [{ row: 0, start: 0, tokens: [5, 6] }, { row: 2, start: 0, tokens: [4, 4] }] });
      const said = [batch.token(1, 7)];
      batch.copy({ from: 0, first: 0, positions: 2, to: 1 });
      said.push(batch.token(2, 8), batch.token(3, 9));
      batch.copy({ from: 0, first: 1, positions: 1, to: 0 });
      batch.pass({ rows: [{ row: 0, start: 1, tokens: [7] }, { row: 1, start: 2, tokens: [8] }, { row: 2, start: 2, tokens: [9] }] });
      return [...said, batch.token(3, 1), batch.token(2, 1)];""")
        self.assertEqual(said, [0, 0, 2, 2, 1])

    def test_a_row_that_is_moved_to_another_takes_its_text_along(self):
        texts = self.made("""const batch = new BatchRows(8); batch.begin(1, [5, 6]); batch.begin(2, [4]);
      batch.pass({ batch: 2, rows: [{ row: 0, start: 0, tokens: [5, 6] }, { row: 1, start: 0, tokens: [4] }] });
      batch.token(1, 0); batch.token(2, 8); batch.end(1);
      batch.copy({ from: 1, first: 0, positions: 1, to: 0 });
      batch.copy({ from: 0, first: 0, positions: 1, to: 1 });
      batch.pass({ batch: 2, rows: [{ row: 0, start: 1, tokens: [8] }] });
      batch.token(2, 9);
      return batch.passes.map(({ cells }) => [...cells.values()].map(({ stay }) => stay.text));""")
        self.assertEqual(texts, [[1, 2], [2]])

    # Three passes of two rows: texts 1 and 2 share block 0, text 2 loses its blocks to text 1 and comes back as row 1.
    BLOCKS = """const batch = new BatchRows(8), pool = new BlockPasses();
      batch.begin(1, [5, 6]); batch.begin(2, [5, 7]);
      const pass = (rows, blocks) => {
        batch.pass({ batch: 2, rows }); pool.pass();
        if (blocks) pool.blocks({ pool: 4, size: 1, rows: blocks });
      };
      pass([{ row: 0, start: 0, tokens: [5, 6] }, { row: 1, start: 1, tokens: [7] }], [[0, 2], [0, 1]]);
      batch.token(1, 3); batch.token(2, 3);
      pass([{ row: 0, start: 2, tokens: [3] }], [[0, 2, 1]]);
      batch.token(1, 4);
      pass([{ row: 0, start: 3, tokens: [4] }]);
      batch.token(1, 5); batch.end(1);
      pass([{ row: 0, start: 0, tokens: [5, 7, 3] }], [[0, 3, 1]]);
      batch.token(2, 5);"""

    def test_blocks_are_those_of_the_newest_event_and_have_users(self):
        rows, before, users = self.made(self.BLOCKS + """
      return [pool.passes.map(({ rows }) => rows), pool.passes.map(({ before }) => before), [...pool.users(0)]];""")
        self.assertEqual(rows, [[[0, 2], [0, 1]], [[0, 2, 1]], [[0, 2, 1]], [[0, 3, 1]]])
        self.assertEqual(before, [[], *rows[:3]])
        self.assertEqual(users, [[0, [0, 1]], [2, [0]], [1, [1]]])

    def test_a_text_that_loses_its_blocks_is_preempted_or_has_ended(self):
        lost = self.made(self.BLOCKS + "return pool.passes.map((_, pass) => pool.lost(pass, batch));")
        self.assertEqual(lost, [[], [{"text": 2, "blocks": [0, 1], "why": "preempted"}], [], [{"text": 1, "blocks": [0, 2, 1], "why": "ended"}]])
        lost = self.made(self.BLOCKS + "batch.passes.pop(); return pool.lost(1, batch);")
        self.assertEqual(lost, [{"text": 2, "blocks": [0, 1], "why": "gone"}])

    def test_a_row_that_is_not_fed_has_the_text_of_its_blocks(self):
        texts = self.made("""const stay = (text) => ({ stay: { text } }), pool = new BlockPasses();
      const batch = { passes: [new Map([[0, stay(1)], [1, stay(2)]]), new Map([[0, stay(1)]])].map((cells) => ({ cells })) };
      pool.pass(); pool.blocks({ pool: 4, size: 1, rows: [[0], [2]] });
      pool.pass(); pool.blocks({ pool: 4, size: 1, rows: [[0, 1], [2]] });
      return [0, 1].map((row) => pool.textOf(1, row, batch));""")
        self.assertEqual(texts, [1, 2])

    # As much of a page as the pictures need: an element prints its words.
    PAGE = """class Part {
        style = { setProperty() {} };
        parts = [];
        append(...parts) { this.parts.push(...parts); }
        setAttribute() {}
        toString() { return this.parts.join(""); }
      }
      globalThis.document = { createElement: () => new Part() };
      const table = (caption, columns, rows) => makeElement("table", {}, caption, JSON.stringify(rows.map((row) => row.map(String))));"""

    def test_a_picture_of_blocks_names_texts_shares_and_losses_in_words(self):
        first, second = self.made(self.PAGE + self.BLOCKS + """
      return [0, 1].map((pass) => drawBlocks(pool, pass, batch, `Pass ${pass + 1}`, table).parts.map(String));""")
        self.assertEqual(first[0], "Pass 1: 3 of 4 blocks are in use, and 1 is free. A block has 1 positions.")
        self.assertEqual(first[1], "0 1+2 ×21 22 13 ·")
        self.assertIn('[["0","1","0 ×2, 2","2"],["1","2","0 ×2, 1","2"]]', first[-1])
        self.assertEqual(second[1], "0 11 12 13 ·")
        self.assertEqual(second[3], "Text 2 is preempted and has to wait: it releases its blocks 0, 1.")


class Refused(Limited):
    """Lines that are invalid in their place."""
    START = {"event": "start", "options": {}, "n_positions": 8, "eos_token_id": 0, "prompts": [[0]], "vocabulary": ["a", "b"]}
    TEXT = {"event": "text", "text": 1, "prompt": 0, "options": {}}
    PASS = {"event": "pass", "model": "m", "batch": 2, "rows": [{"row": 0, "start": 0, "tokens": [0]}, {"row": 1, "start": 0, "tokens": [0, 1]}]}
    COPY = {"event": "copy", "model": "m", "from": 1, "first": 0, "positions": 2, "to": 0}

    def test_a_line_that_speaks_of_what_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            for events, sentence in [
                    ([self.COPY], "line 3: row 1 of m holds 0 positions, too few for this copy"),
                    ([self.PASS, {**self.COPY, "model": "other"}], "line 4: row 1 of other holds 0 positions"),
                    ([self.PASS, {**self.COPY, "from": 9}], "line 4: row 9 of m holds 0 positions"),
                    ([self.PASS, {**self.COPY, "first": 1}], "line 4: row 1 of m holds 2 positions"),
                    ([self.PASS, {**self.COPY, "to": -1}], "line 4: row 1 of m holds 2 positions"),
                    ([self.PASS, {**self.COPY, "positions": "two"}], "'positions' of line 4 must be a whole number"),
                    ([self.PASS, {**self.COPY, "from": []}], "'from' of line 4 must be a whole number"),
                    ([{**self.PASS, "batch": "two"}], "'batch' of line 3 must be a whole number"),
                    ([{"event": "end", "text": 1, "finish_reason": "eos", "score": "good"}], "'score' of line 3 must be a number"),
                    ([{**self.PASS, "batch": 1}], "line 3: row 1 is not one of 1"),
                    ([{**self.PASS, "rows": 3}], "'rows' of line 3 must be a list"),
                    ([self.PASS, {"event": "blocks", "model": "m", "pool": 2, "size": 16, "rows": [[0], [2]]}],
                     "line 4: a row has a block outside the pool's 2, numbered from 0"),
                    ([{**self.TEXT, "prompt": 1}], "line 3: there is no prompt 1; the trace has 1, counted from 0"),
                    ([{"event": "end", "text": 2, "finish_reason": "eos"}], "line 3: text 2 has not begun"),
                    ([{"event": "token", "text": 2, "token": 0, "origin": "model"}], "line 3: text 2 has not begun"),
                    ([self.PASS, {"event": "logits", "row": 2, "position": 0, "logits": [1, 2]}], "line 4: row 2 was not fed in the pass before")]:
                with self.subTest(sentence):
                    trace.write_text("".join(json.dumps(event) + "\n" for event in (self.START, self.TEXT, *events)))
                    done = run("tools/trace", trace)
                    self.assertEqual((done.returncode, done.stdout), (1, ""))
                    self.assertIn(f"is not a trace: {sentence}", done.stderr)
            trace.write_text("".join(json.dumps(event) + "\n" for event in (self.START, self.TEXT, self.PASS, self.COPY, self.COPY)))
            self.assertEqual(run("tools/trace", trace).returncode, 0)


if __name__ == "__main__":
    unittest.main()
