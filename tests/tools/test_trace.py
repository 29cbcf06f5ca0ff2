"""tools/trace: what is a trace and what is none, and the page that it makes; its numbers against those of a program."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import ROOT, Limited, run

sys.path.insert(0, str(ROOT / "docs/pictures"))
import tales  # noqa: E402
import todays_example  # noqa: E402

BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
START = {"event": "start", "options": {}, "n_positions": 8, "eos_token_id": 1, "prompts": [[0]],
         "vocabulary": ["a", "</script><b>"]}
EVENTS = [START, {"event": "text", "text": 1, "prompt": 0, "options": {"--top-k": "2"}},
          {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0]}]},
          {"event": "blocks", "model": "m", "pool": 2, "size": 16, "rows": [[1]]},
          {"event": "experts", "model": "m", "block": 0, "tokens": [[1, 0]]},
          {"event": "logits", "row": 0, "position": 0, "logits": [0.5, 1.5]},
          {"event": "attention", "row": 0, "tokens": [0], "weights": [[1]]},
          {"event": "mask", "text": 1, "state": 0, "allowed": [1]},
          {"event": "token", "text": 1, "token": 1, "origin": "model"},
          {"event": "end", "text": 1, "finish_reason": "length"}]


def lines(events):
    return "".join(json.dumps(event) + "\n" for event in events)


class Pages(Limited):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.trace = self.folder / "run.jsonl"

    def refused(self, sentence, *arguments):
        done = run("tools/trace", *(arguments or [self.trace]))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "^error: .*" + sentence)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_all_events_are_in_the_page_and_nothing_ends_its_script(self):
        self.trace.write_text(lines(EVENTS))
        done = run("tools/trace", self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "run.jsonl.html").read_text()
        inside = page[page.index("for (const event of [") + 20:page.index("]) show(event)") + 1]
        self.assertEqual(json.loads(inside), EVENTS)
        self.assertNotIn("<", inside)
        self.assertEqual(page.count("</script>"), 2)
        done = run("tools/trace", self.trace, self.folder / "other.html")
        self.assertEqual((self.folder / "other.html").read_text(), page)

    def test_a_trace_that_is_cut_off_is_shown_without_its_last_line(self):
        self.trace.write_text(lines(EVENTS)[:-5])
        done = run("tools/trace", self.trace)
        self.assertEqual(done.returncode, 0)
        self.assertIn("run.jsonl ends within line 10, which is left out", done.stderr)
        self.assertNotIn("finish_reason", (self.folder / "run.jsonl.html").read_text().split("for (const event of")[1])

    def test_what_a_field_holds_must_be_of_its_type(self):
        wrong = {"text": {"text": ["1", 1.0, True, None, [1]], "prompt": ["0", {}], "options": [None, [], "x", {"--top-k": 2}]},
                 "pass": {"model": [1, None], "rows": [{}, [1], [{"row": 0, "start": 0}], [{"row": 0, "start": 0, "tokens": 0}],
                                                       [{"start": 0, "tokens": [0]}],
                                                       [{"row": 0, "start": "0", "tokens": [0]}], [{"row": 0, "start": 0, "tokens": [0.5]}]]},
                 "blocks": {"model": [1], "pool": ["2", None], "size": [0.5], "rows": [1, [1], [["1"]], {}]},
                 "experts": {"model": [1], "block": ["0", None], "tokens": [1, [1], [["1"]], {}]},
                 "logits": {"row": [0.5], "position": [None], "logits": [1, ["1"], [[1]], [True], {}]},
                 "attention": {"row": ["0"], "tokens": [0, ["a"]], "weights": [[1], [["1"]], 1, [None]]},
                 "mask": {"text": [None], "state": ["0", 0.5], "allowed": [1, ["a"], [0.5], {}]},
                 "token": {"text": [None], "token": ["a"], "origin": [0, None]},
                 "end": {"text": [""], "finish_reason": [None, 1]},
                 "start": {"options": [[], {"a": None}], "n_positions": ["8"], "eos_token_id": [None], "prompts": [[1], [[None]]],
                           "vocabulary": ["ab", [1], {"0": "a"}]}}
        self.assertEqual(set(wrong), {event["event"] for event in EVENTS})
        for number, event in enumerate(EVENTS, 1):
            self.assertEqual({"event", *wrong[event["event"]]}, set(event))
            for field, values in wrong[event["event"]].items():
                for value in values:
                    with self.subTest(f"{event['event']}.{field} = {value}"):
                        self.trace.write_text(lines([*EVENTS[:number - 1], {**event, field: value}, *EVENTS[number:]]))
                        self.refused(f"not a trace: '{field}' of line {number} must be an? (whole number|number|text|list|object)")
        for kind, field in (("pass", "batch"), ("end", "score"), ("start", "n_head")):
            events = [{**event, field: None} if event["event"] == kind else event for event in EVENTS]
            self.trace.write_text(lines(events))
            self.refused(f"'{field}' of line [0-9]+ must be a")
        self.trace.write_text(lines([{**START, "n_head": 4, "n_kv_head": "2"}]))
        self.refused("'n_kv_head' of line 1 must be a whole number$")
        self.trace.write_text(lines([START, {"event": "text", "text": "1", "prompt": "0", "options": []}]))
        self.refused("'text' of line 2 must be a whole number$")  # the first of several
        self.trace.write_text(lines([{**START, "prompts": [[1], 2]}]))
        self.refused("'prompts' of line 1 must be a list, each item a list, each item a whole number$")
        self.trace.write_text(lines([START, {"event": "pass", "model": "m", "rows": [{}]}]))
        self.refused("'rows' of line 2 must be a list, each item an object with row, start, tokens$")

    def test_numbers_that_name_something_name_what_is_there(self):
        copy = {"event": "copy", "model": "m", "from": 0, "first": 0, "positions": 1, "to": 1}
        at = {event["event"]: place for place, event in enumerate(EVENTS)}
        for kind, right, wrong, sentence in [
                ("text", {"prompt": 0}, {"prompt": 1}, "there is no prompt 1"),
                ("text", {"prompt": 0}, {"prompt": -1}, "there is no prompt -1"),
                ("pass", {"batch": 1}, {"batch": 0}, "row 0 is not one of 0"),
                ("blocks", {"rows": [[0, 1]]}, {"rows": [[2]]}, "a row has a block outside the pool's 2"),
                ("blocks", {"rows": [[]]}, {"rows": [[-1]]}, "a row has a block outside the pool's 2"),
                ("logits", {}, {"row": 1}, "row 1 was not fed"),
                ("mask", {}, {"text": 2}, "text 2 has not begun"),
                ("token", {}, {"text": 2}, "text 2 has not begun"),
                ("end", {}, {"text": 2}, "text 2 has not begun"),
                (None, copy, {**copy, "positions": 2}, "row 0 of m holds 1 positions"),
                (None, {**copy, "to": 0}, {**copy, "to": -1}, "row 0 of m holds 1 positions"),
                (None, {**copy, "positions": 0}, {**copy, "positions": -1}, "row 0 of m holds 1 positions"),
                (None, {**copy, "first": 0}, {**copy, "first": -1}, "row 0 of m holds 1 positions"),
                (None, copy, {**copy, "from": 1}, "row 1 of m holds 0 positions"),
                (None, copy, {**copy, "model": "n"}, "row 0 of n holds 0 positions"),
                (None, {**copy, "first": 1, "positions": 0}, {**copy, "first": 1}, "row 0 of m holds 1 positions")]:
            for values in (right, wrong):
                with self.subTest(kind=kind, values=values):
                    events = [{**event, **values} if event["event"] == kind else event for event in EVENTS]
                    self.trace.write_text(lines([*events[:3], values, *events[3:]] if kind is None else events))
                    if values is wrong:
                        self.refused(f"line {at[kind] + 1 if kind else 4}: {sentence}")
                    else:
                        self.assertEqual(run("tools/trace", self.trace).returncode, 0)

    def test_what_is_no_trace_is_refused(self):
        self.refused("cannot be read: No such file", self.folder / "nothing")
        self.refused("cannot be read: Is a directory", self.folder)
        for content, sentence in [("", "it has no line"), ("hello\n", "line 1 is not an event"), ("[1]\n", "line 1 is not an event"),
                                  ("[" * 100_000 + "\n", "line 1 is not an event"), ('{"event": []}\n', "line 1 cannot be '..'"),
                                  (lines([{"event": "start"}]), "line 1 has no 'eos_token_id'"),
                                  (lines(EVENTS[1:]), "line 1 cannot be 'text'"), (lines([START, START]), "line 2 cannot be 'start'"),
                                  (lines([START]) + "\n", "line 2 is not an event"), (lines([START, {"event": "x"}]), "line 2 cannot be 'x'")]:
            with self.subTest(content[:40]):
                self.trace.write_text(content)
                self.refused(sentence)
        self.trace.write_bytes(b"\xff\xfe")
        self.refused("cannot be read: it is not text")
        self.trace.write_text(lines(EVENTS))
        self.refused("cannot be written: No such file", self.trace, self.folder / "none" / "page.html")
        self.refused("is the trace itself", self.trace, self.folder / "." / "run.jsonl")
        self.assertEqual(self.trace.read_text(), lines(EVENTS))


@unittest.skipUnless(shutil.which("node"), "no Node.js is installed")
class Stages(Limited):
    """What the page makes of the logits is what the program chose from."""

    SCRIPT = """
      let start, logits, mask;
      const texts = new Map(), found = [];
      for (const line of require("fs").readFileSync(process.argv[2], "utf8").split("\\n").slice(0, -1)) {
        const event = JSON.parse(line);
        if (event.event === "start") start = event;
        if (event.event === "text") texts.set(event.text, [[...start.prompts[event.prompt]], textRules(start, event)]);
        if (event.event === "logits") logits = event.logits;
        if (event.event === "mask") mask = event;
        if (event.event !== "token") continue;
        const [text, rules] = texts.get(event.text);
        found.push([...stages(logits, text, rules, mask).at(-1)[1]]);
        mask = undefined;
        text.push(event.token);
      }
      console.log(JSON.stringify(found));"""

    def agrees(self, step, *options):
        """The page's last stage has the probabilities that the program shows, for each of 12 tokens of a text."""
        program = BUILD / "steps" / step
        if not program.exists():
            self.skipTest(f"step {step[:2]} is not built")
        with self.subTest(" ".join(map(str, options))), tempfile.TemporaryDirectory() as folder:
            trace, script = Path(folder) / "trace", Path(folder) / "stages.js"
            done = subprocess.run([program, "--max-new-tokens", "12", "--do-sample", "--seed", "4", "--json", "--device", "cpu",
                                   "--show-candidates", "6", "--trace", trace, *options],
                                  capture_output=True, text=True, timeout=120, check=True)
            candidates = [one for sequence in json.loads(done.stdout)["sequences"] for one in sequence["candidates"]]
            script.write_text((ROOT / "playground/views.js").read_text() + self.SCRIPT)
            shown = json.loads(subprocess.run(["node", script, trace], capture_output=True, text=True, timeout=120, check=True).stdout)
            self.assertEqual(len(shown), len(candidates))
            self.assertEqual(len(shown) % 12, 0)
            for probabilities, likeliest in zip(shown, candidates, strict=True):
                for candidate in likeliest:
                    self.assertAlmostEqual(probabilities[candidate["token_id"]], candidate["probability"], delta=1e-5)
                self.assertAlmostEqual(sum(probabilities), 1.0, delta=1e-9)

    def test_the_last_stage_has_the_probabilities_that_the_program_shows(self):
        for options in ("--temperature 0.7 --top-k 9", "--top-p 0.8", "--repetition-penalty 1.3 --temperature 1.4 --top-p 0.95",
                        "--presence-penalty 0.5 --frequency-penalty 0.3", "--temperature 0", "--top-k 1", ""):
            self.agrees("11-repetition-penalty", "--prompt", "The fox and the", *options.split())

    def test_a_mask_comes_before_all_other_options(self):
        for options in ("", "--temperature 1.5 --top-k 3", "--repetition-penalty 1.5 --top-p 0.5"):
            self.agrees("101-regex", "--prompt", "The fox", "--regex", "( [a-z]{6,9}){30}", *options.split())

    def test_each_text_is_chosen_by_its_own_options_and_none_ends_too_early(self):
        with tempfile.TemporaryDirectory() as folder:
            requests = Path(folder) / "requests"
            requests.write_text(lines([{"prompt": "The fox", "temperature": 3, "min_new_tokens": 12},
                                       {"prompt": "The old king", "top_k": 3},
                                       {"prompt": "A", "top_p": None, "repetition_penalty": 1.5, "ignore_eos": True}]))
            self.agrees("50-requests", "--requests", requests, "--top-p", "0.9")
            self.agrees("51-continuous-batching", "--requests", requests, "--max-batch-size", "1", "--top-p", "0.9")
            self.agrees("51-continuous-batching", "--prompt", "The fox", "--temperature", "3", "--min-new-tokens", "12")


class Masks(Limited):
    """The masks of a trace against an enumeration of the vocabulary."""

    def masked(self, step, *options):
        """The vocabulary, and [text before, state, allowed, token] for each mask; a text is the new tokens' alone."""
        program = BUILD / "steps" / step
        if not program.exists():
            self.skipTest(f"step {step[:3]} is not built")
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            subprocess.run([program, "--model", "tales-1m", "--device", "cpu", "--trace", trace, *options],
                           capture_output=True, timeout=120, check=True)
            start, *events = map(json.loads, trace.read_text(encoding="utf-8").splitlines())
        texts, found = {}, []
        for mask, event in zip([None, *events], events):
            if event["event"] == "text":
                texts[event["text"]] = ""
            if event["event"] != "token":
                continue
            if mask["event"] == "mask":
                self.assertEqual(mask["text"], event["text"])
                self.assertIn(event["token"], mask["allowed"])
                found.append([texts[event["text"]], mask["state"], mask["allowed"], event["token"]])
            if event["token"] != start["eos_token_id"]:
                texts[event["text"]] += start["vocabulary"][event["token"]]
        self.assertEqual(sum(event["event"] == "mask" for event in events), len(found))
        return start, found, texts

    def right(self, start, found, begins, ends):
        """Each mask has the tokens after which a text still begins an answer, and the end where it is one."""
        self.assertTrue(found)
        for text, _, allowed, _ in found:
            self.assertEqual(allowed, [number for number, token in enumerate(start["vocabulary"])
                                       if (ends(text) if number == start["eos_token_id"] else "\ufffd" not in token and begins(text + token))])

    def test_each_mask_has_the_tokens_that_an_enumeration_allows(self):
        choices = ("the fox", "the wolf", "a fox", "a")
        start, found, texts = self.masked("100-choices", "--prompt", "Who came? ", "--do-sample", "--temperature", "3", "--num-return-sequences", "8",
                                          *(option for choice in choices for option in ("--choice", choice)))
        self.right(start, found, lambda text: any(choice.startswith(text) for choice in choices), choices.__contains__)
        self.assertLessEqual(set(texts.values()), set(choices))
        self.assertGreater(len(set(texts.values())), 1)
        for step in ("101-regex", "102-token-trie"):
            with self.subTest(step):
                start, found, _ = self.masked(step, "--prompt", "Once", "--regex", "( [a-z]{2,5}){3,4}\\.", "--do-sample", "--temperature", "2",
                                              "--num-return-sequences", "3")
                part = "( [a-z]{2,5}){%s}"
                self.right(start, found, lambda text: re.fullmatch(f"({part % '0,3'}( [a-z]{{0,5}})?|{part % '3,4'}\\.?)", text),
                           re.compile(part % "3,4" + "\\.").fullmatch)

    def test_a_state_has_one_number_and_numbers_come_as_states_are_met(self):
        for step in ("101-regex", "102-token-trie"):
            with self.subTest(step):
                _, found, _ = self.masked(step, "--prompt", "Once", "--regex", "( [a-z]+)+\\.", "--do-sample", "--temperature", "2",
                                          "--num-return-sequences", "9", "--max-new-tokens", "30")
                self.assertGreater(len(found), 60)
                masks, met = {}, []
                for text, state, allowed, _ in found:
                    self.assertEqual(masks.setdefault(state, allowed), allowed)
                    # At the beginning, after a blank, inside a word, after the stop.
                    met.append("start" if not text else text[-1] if text[-1] in " ." else "word")
                    self.assertEqual(state, list(dict.fromkeys(met)).index(met[-1]))

    def test_tokens_that_were_never_chosen_have_no_mask(self):
        with tempfile.TemporaryDirectory() as folder:
            grammar = Path(folder) / "grammar"
            grammar.write_text('root ::= "The name of the animal is " ("fox" | "wolf") "."\n')
            options = ("--prompt", "Who?", "--grammar", grammar)
            _, every, texts = self.masked("103-grammar", *options)
            for step, *jump in (("105-jump-ahead",), ("105-jump-ahead", "--jump-ahead"), ("106-tool-calls", "--jump-ahead")):
                with self.subTest(step=step, jump=jump):
                    _, found, same = self.masked(step, *options, *jump)
                    self.assertTrue(found)
                    self.assertEqual(bool(jump), len(found) < len(every))
                    allowed = {text: tokens for text, _, tokens, _ in every}
                    self.assertEqual([tokens for _, _, tokens, _ in found], [allowed[text] for text, *_ in found])
                    self.assertEqual(same, texts)


def turned(head, position):
    """Rotary positions: a pair is feature i and feature i + n/2."""
    half = len(head) // 2
    angles = [position * 10000 ** (-i / half) for i in range(half)]
    return ([a * math.cos(angle) - b * math.sin(angle) for angle, a, b in zip(angles, head, head[half:])]
            + [a * math.sin(angle) + b * math.cos(angle) for angle, a, b in zip(angles, head, head[half:])])


class Attention(Limited):
    def test_each_head_of_a_group_reads_the_keys_of_its_group(self):
        step = BUILD / "steps/11-repetition-penalty"
        if not step.exists():
            self.skipTest("step 11 is not built")
        weights = todays_example.Weights("tales-gqa-1m")
        size, tokens = weights.config["head_dim"], [weights.token_id[token] for token in ("The", "Ġwolf", "Ġran", "Ġinto")]
        block = "layers.0."
        normed = [todays_example.rms_norm(weights["embed_tokens"][token], weights[block + "input_layernorm"]) for token in tokens]

        def parts(name, head):
            """The queries or keys of one head, at their positions."""
            rows = weights[f"{block}self_attn.{name}"][head * size:(head + 1) * size]
            return [turned(todays_example.project(rows, x), position) for position, x in enumerate(normed)]

        keys = [parts("k_proj", head) for head in range(2)]  # and no more
        self.assertEqual(len(weights[block + "self_attn.k_proj"]), 2 * size)
        for head, group in ((0, 0), (1, 0), (2, 1), (3, 1)):
            with self.subTest(f"head {head}"), tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "trace"
                subprocess.run([step, "--model", "tales-gqa-1m", "--prompt", "The wolf ran into", "--max-new-tokens", "1", "--device",
                                "cpu", "--trace", trace, "--trace-attention", f"0,{head}"], capture_output=True, timeout=120, check=True)
                events = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
                [found] = [event for event in events if event["event"] == "attention"]
                self.assertEqual(found["tokens"], tokens)
                self.assertEqual((events[0]["n_head"], events[0]["n_kv_head"]), (4, 2))
                for position, (query, got) in enumerate(zip(parts("q_proj", head), found["weights"], strict=True)):
                    want = tales.softmax([tales.dot(query, key) / math.sqrt(size) for key in keys[group][:position + 1]])
                    for share, right in zip(got, want, strict=True):
                        self.assertAlmostEqual(share, right, delta=1e-5)

    def test_it_is_that_of_plain_python(self):
        step = BUILD / "steps/11-repetition-penalty"
        if not step.exists():
            self.skipTest("step 11 is not built")
        model = tales.Model()
        tokens = [model.token_id[token] for token in ("The", " wolf", " ran", " into")]
        x = model.embed(tokens)
        for block in range(3):
            want = model.heads(block, x)[block][4]
            with self.subTest(f"block {block}"), tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "trace"
                subprocess.run([step, "--prompt", "The wolf ran into", "--max-new-tokens", "1", "--device", "cpu", "--trace", trace,
                                "--trace-attention", f"{block},{block}"], capture_output=True, timeout=120, check=True)
                events = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
                [found] = [event for event in events if event["event"] == "attention"]
                self.assertEqual(found["tokens"], tokens)
                for got, wanted in zip(found["weights"], want, strict=True):
                    for share, right in zip(got, wanted, strict=True):
                        self.assertAlmostEqual(share, right, delta=1e-5)
            x = model.block(block, x)

    def test_heads_of_a_group_share_their_keys(self):
        """Llama's first block: two neighbouring heads of queries look at one head of keys."""
        step, folder = BUILD / "steps/11-repetition-penalty", ROOT / "models/tales-gqa-1m"
        if not step.exists():
            self.skipTest("step 11 is not built")
        model = tales.Model(folder)
        tokens = [model.token_id[token] for token in ("The", " wolf", " ran", " into")]
        config, layer = model.config, "model.layers.0"
        size, group = config["head_dim"], config["num_attention_heads"] // config["num_key_value_heads"]
        self.assertEqual(group, 2)

        def normed(row):
            root = math.sqrt(sum(x * x for x in row) / len(row) + config["rms_norm_eps"])
            return [x / root * g for x, g in zip(row, model.weight(f"{layer}.input_layernorm.weight"), strict=True)]

        def turned(row, position):
            half, theta = size // 2, config["rope_parameters"]["rope_theta"]
            angles = [position * theta ** (-2 * i / size) for i in range(half)]
            return ([row[i] * math.cos(angle) - row[i + half] * math.sin(angle) for i, angle in enumerate(angles)]
                    + [row[i + half] * math.cos(angle) + row[i] * math.sin(angle) for i, angle in enumerate(angles)])

        rows = [normed(model.weight("model.embed_tokens.weight")[token]) for token in tokens]
        queries, keys = ([[tales.dot(row, output) for output in model.weight(f"{layer}.self_attn.{name}_proj.weight")]
                          for row in rows] for name in "qk")
        for head in range(config["num_attention_heads"]):
            with self.subTest(head=head), tempfile.TemporaryDirectory() as place:
                trace = Path(place) / "trace"
                subprocess.run([step, "--model", folder, "--prompt", "The wolf ran into", "--max-new-tokens", "1",
                                "--device", "cpu", "--trace", trace, "--trace-attention", f"0,{head}"],
                               capture_output=True, timeout=120, check=True)
                [found] = [event for event in map(json.loads, trace.read_text(encoding="utf-8").splitlines())
                           if event["event"] == "attention"]
                q, k = ([turned(row[at * size:(at + 1) * size], position) for position, row in enumerate(of)]
                        for of, at in ((queries, head), (keys, head // group)))
                for i, got in enumerate(found["weights"]):
                    want = tales.softmax([tales.dot(q[i], k[j]) / math.sqrt(size) for j in range(i + 1)])
                    for share, right in zip(got, want, strict=True):
                        self.assertAlmostEqual(share, right, delta=1e-5)


if __name__ == "__main__":
    unittest.main()
