#!/usr/bin/env python3
"""The benchmark runs and its figures can be true. How fast anything is, no test asks.

usage: bench_test.py BENCH_PROGRAM
"""

import contextlib
import csv
import dataclasses
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
import cpu_page  # noqa: E402
import peers  # noqa: E402
import rungs_output  # noqa: E402
import schemas  # noqa: E402


def run(*command):
    return subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120, check=False)


def numbers(value, path=""):
    """Every number in a JSON document, with the way to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, f"{path}[{index}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


class Speed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "speed.json")
            cls.done = run(PROGRAM, "speed", "--model", ROOT / "models" / "tales-1m", "--threads", 1,
                           "--prompt-tokens", 16, "--rounds", 1, "--batch", "2,3", "--json", file)
            cls.result = json.loads(file.read_text()) if file.exists() else None

    def test_it_prints_a_table(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        for word in ("1 thread", "read bandwidth", "prefill, 16 tokens", "decode, context 16", "decode, context 488",
                     "decode, batch 3", "verify 4 + 1 tokens", "peak memory"):
            self.assertIn(word, self.done.stdout)

    def test_every_figure_is_positive(self):
        for path, value in numbers(self.result):
            self.assertTrue(math.isfinite(value) and value > 0, f"{path} is {value}")

    def test_figures_fit_together(self):
        prefill = self.result["prefill"]
        limit = self.result["limits"]["multiply_add_gflop_per_s"]["median"]
        self.assertAlmostEqual(prefill["percent_of_multiply_add"] / 100, prefill["gflop_per_s"]["median"] / limit)
        self.assertAlmostEqual(prefill["gflop"] / prefill["ms"]["median"] * 1e3, prefill["gflop_per_s"]["median"])
        read = self.result["limits"]["read_gb_per_s"]["median"]
        for figures in [self.result["one_token_pass"], *self.result["decode"], *self.result["batches"]]:
            self.assertAlmostEqual(figures["percent_of_read"] / 100, figures["gb_per_s"]["median"] / read)
            self.assertLessEqual(figures["ms"]["min"], figures["ms"]["max"])

    def test_the_work_is_counted_right(self):
        # tales-1m: 2 blocks, width 128, MLP 512, 4096 tokens; 16 tokens to read
        block, pairs = 2 * (3 + 1 + 8) * 128 * 128, 16 * 17 / 2
        last = 16 * 2 * 2 * 128 * 128 + 2 * (1 + 1 + 8) * 128 * 128 + 4 * 128 * 16
        self.assertAlmostEqual(self.result["prefill"]["gflop"] * 1e9,
                               16 * block + 4 * 128 * pairs + last + 2 * 128 * 4096)
        # one more token after one sample's mean context, 16 + 7.5: all weights, one row of positions, the cache
        self.assertAlmostEqual(self.result["decode"][0]["bytes"],
                               self.result["load"]["weight_bytes"] - 511 * 128 * 4 + 2 * 2 * 24.5 * 128 * 4)
        # three sequences after a mean context of 256 + 7.5: the weights once, three caches
        batch = self.result["batches"][2]
        self.assertAlmostEqual(batch["bytes"],
                               self.result["load"]["weight_bytes"] - 511 * 128 * 4 + 3 * 2 * 2 * 264.5 * 128 * 4)
        one = 2 * block + 2 * 4 * 128 * 264.5 + 2 * 128 * 4096
        self.assertAlmostEqual(batch["gflop_per_s"]["median"] * batch["ms"]["median"] * 1e6, 3 * one, delta=1)

    def test_batches_and_verification_are_compared_with_one_token(self):
        batches, passes = self.result["batches"], self.result["verification"]
        self.assertEqual([figures["batch"] for figures in batches], [1, 2, 3])
        self.assertEqual([figures["drafted"] for figures in passes], [1, 2, 4, 8])
        for figures in batches:
            self.assertEqual(figures["context"], 256)
            self.assertAlmostEqual(figures["tokens_per_s"], 1e3 * figures["batch"] / figures["ms"]["median"])
            self.assertAlmostEqual(figures["times_batch_1"], figures["tokens_per_s"] / batches[0]["tokens_per_s"])
        for figures in passes:
            self.assertAlmostEqual(figures["times_one_token"],
                                   figures["ms"]["median"] / figures["one_token_ms"]["median"])

    def test_a_cache_in_16_bits_is_half_as_many_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "speed.json")
            done = run(PROGRAM, "speed", "--model", ROOT / "models" / "tales-1m", "--threads", 1, "--dtype", "float16",
                       "--prompt-tokens", 16, "--rounds", 1, "--json", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(file.read_text())
        self.assertEqual(result["batches"], [])
        self.assertEqual(result["load"]["cache_bytes"] * 2, self.result["load"]["cache_bytes"])
        # the positions stay in float32
        self.assertAlmostEqual(result["decode"][0]["bytes"],
                               result["load"]["weight_bytes"] - 511 * 128 * 4 + 2 * 2 * 24.5 * 128 * 2)


class Generation(unittest.TestCase):
    def test_the_model_does_not_depend_on_the_clock(self):
        with tempfile.TemporaryDirectory() as folder:
            prompts, file = Path(folder, "prompts.json"), Path(folder, "out.json")
            prompts.write_text(json.dumps({"prefill": [1, 2, 3], "decode": [4, 5], "batch": [[6, 7], [8, 9, 10]]}))
            texts = []
            for clock in ([], ["--threads", 1, "--cpu-time"]):
                done = run(PROGRAM, "generation", "--model", ROOT / "models" / "tales-1m", "--prompts", prompts,
                           "--new-tokens", 10, "--json", file, *clock)
                self.assertEqual(done.returncode, 0, done.stderr)
                result = json.loads(file.read_text())
                self.assertEqual((len(result["token_ids"]), len(result["gaps"])), (10, 10))
                self.assertGreater(min(result["gaps"]), 0)
                self.assertGreater(result["decode_tokens_per_s"], 0)
                self.assertGreater(result["batch_tokens_per_s"], 0)
                texts.append(result["token_ids"])
            self.assertEqual(*texts)

    def test_what_has_no_prompt_is_not_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            prompts, file = Path(folder, "prompts.json"), Path(folder, "out.json")
            prompts.write_text(json.dumps({"prefill": [], "decode": [4, 5], "batch": []}))
            done = run(PROGRAM, "generation", "--model", ROOT / "models" / "tales-1m", "--prompts", prompts,
                       "--new-tokens", 3, "--json", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(set(json.loads(file.read_text())), {"prompt_ms", "decode_tokens_per_s", "token_ids", "gaps"})

    def test_a_cache_in_another_type_rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            prompts, file = Path(folder, "prompts.json"), Path(folder, "out.json")
            prompts.write_text(json.dumps({"prefill": [], "decode": list(range(4, 40)), "batch": []}))
            gaps = {}
            for dtype in "float32", "int8":
                done = run(PROGRAM, "generation", "--model", ROOT / "models" / "tales-1m", "--prompts", prompts,
                           "--new-tokens", 3, "--cache-dtype", dtype, "--json", file)
                self.assertEqual(done.returncode, 0, done.stderr)
                result = json.loads(file.read_text())
                self.assertGreater(result["prompt_ms"], 0)
                gaps[dtype] = result["gaps"]
        self.assertNotEqual(*gaps.values())
        for one, other in zip(*gaps.values()):
            self.assertAlmostEqual(one, other, delta=0.1)


class Peers(unittest.TestCase):
    """The code around the engines, with engines that only report what they would have measured."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        (self.folder / "peers").mkdir()
        self.setting = peers.Setting(root=ROOT, build=self.folder, program=PROGRAM, model=self.folder / "a-model",
                                     threads=[2], prompt_tokens=None, rounds=1, busy=0.0, only=[])
        os.environ["PEERS_DIR"] = str(self.folder)

    def tearDown(self):
        del os.environ["PEERS_DIR"]
        self.temporary.cleanup()

    def engines(self, *entries, threads=2):
        (self.folder / "peers.json").write_text(json.dumps(entries))
        self.left_out = {}
        return peers.read_peers_file(self.setting, threads, self.left_out)

    def prompts(self, **changes):
        """What all engines read, as JSON and as lines of token ids."""
        setting = dataclasses.replace(self.setting, **changes)
        file, _ = peers.write_prompts(setting, {"vocab_size": 50, "max_position_embeddings": 1000})
        lines = [[int(token) for token in line.split()] for line in file.with_suffix(".txt").read_text().splitlines()]
        return json.loads(file.read_text()), lines

    def test_every_decoding_has_the_chosen_context(self):
        for context in (16, 17, 1000 - peers.NEW_TOKENS):
            prompts, lines = self.prompts(context=context)
            self.assertEqual(lines, [prompts["decode"], prompts["prefill"], *prompts["batch"]])
            self.assertEqual([len(line) for line in lines], [context, 512] + peers.BATCH * [context])
            self.assertLess(max(map(max, lines)), 49)  # the last token ends the text

    def test_decoding_only_has_no_other_prompt(self):
        prompts, lines = self.prompts(context=20, decode_only=True)
        self.assertEqual((prompts["prefill"], prompts["batch"], lines), ([], [], [prompts["decode"]]))
        self.assertEqual(prompts["decode"], self.prompts(context=20)[0]["decode"])

    def test_of_several_contexts_the_prompt_before_decoding_is_the_prefill(self):
        prompts, lines = self.prompts(context=20, prefill_is_context=True)
        self.assertEqual((prompts["prefill"], prompts["batch"], lines), ([], [], [prompts["decode"]]))
        self.assertEqual(len(prompts["decode"]), 20)
        self.assertEqual(peers.write_prompts(dataclasses.replace(self.setting, context=20, prefill_is_context=True),
                                             {"vocab_size": 50, "max_position_embeddings": 1000})[1], 20)

    def test_engines_whose_cache_cannot_have_the_type_are_left_out(self):
        entries = [{"name": name, "dtype": "int8", "commands": [f"echo 'RESULT {{{{\"decode_tok_s\": 1}}}}' {words}"]}
                   for name, words in (("with", "# {cache}"), ("without", ""))]
        self.assertIn("# default", self.engines(*entries)[0].commands[0][-1])
        self.setting.cache_dtype = "int4"
        engine, = self.engines(*entries)
        self.assertIn("# int4", engine.commands[0][-1])
        self.assertIn("without: its cache cannot be int4", self.left_out["without"])
        left_out, names = {}, {peers.REFERENCE: "float32", "transformers, bfloat16": "bfloat16", "CTranslate2, int8": "int8"}
        self.assertEqual(list(peers.with_such_a_cache(self.setting, names, left_out)), [peers.REFERENCE])
        self.assertEqual(list(left_out), ["transformers, bfloat16", "CTranslate2, int8"])
        self.setting.cache_dtype = "bfloat16"
        self.assertEqual(list(peers.with_such_a_cache(self.setting, names, {})), [peers.REFERENCE, "transformers, bfloat16"])
        self.setting.cache_dtype = ""
        self.assertEqual(peers.with_such_a_cache(self.setting, names, {}), names)

    def test_a_smaller_cache_reaches_all_engines_but_those_in_float32(self):
        self.engines()  # no others
        self.setting.cache_dtype = "int8"
        with mock.patch.object(peers, "python_with_packages", lambda *_: Path("python")), \
                mock.patch.object(peers, "converted_model", lambda setting, name, command: Path(f"/models/{name}")):
            engines, texts, left_out = peers.find_engines(self.setting, 3, "prompts.json")
        self.assertEqual(texts, [peers.OURS, peers.REFERENCE])
        self.assertEqual([engine.name for engine in engines],
                         ["Staircase, float32", "Staircase, float16", "Staircase, bfloat16", "Staircase, int8", "Staircase, int4",
                          "transformers, float32", "OpenVINO, bfloat16", "OpenVINO, int8"])
        for engine in engines:
            command = list(map(str, engine.commands[0]))
            self.assertEqual("--cache-dtype" in command and command[command.index("--cache-dtype") + 1] == "int8",
                             engine.dtype != "float32", engine.name)
        self.assertIn("transformers, bfloat16", left_out)

    def test_a_smaller_cache_leaves_nothing_of_float32(self):
        engines = [peers.Engine(name, "float32", [], {}, name == peers.OURS) for name in (peers.OURS, peers.REFERENCE)]
        self.setting.only, self.setting.cache_dtype = ["float32"], "int8"
        with self.assertRaisesRegex(peers.Failure, "^--only float32: weights in float32 are not measured beside a cache in int8;"):
            peers.chosen(self.setting, engines, {})
        self.setting.cache_dtype = "float32"
        self.assertEqual(peers.chosen(self.setting, engines, {}), (engines, []))

    def test_a_comparison_over_several_contexts(self):
        def result(setting, threads, prompts, prompt_tokens):
            length = len(json.loads(prompts.read_text())["decode"])
            return {"threads": threads, "context": setting.context, "length": length, "tokens": prompt_tokens,
                    "engines": {peers.OURS: {"agreement": {"agrees": length != 30}, "version": ""}}}
        self.setting.model.mkdir()
        (self.setting.model / "config.json").write_text(json.dumps({"vocab_size": 50, "n_positions": 200}))
        settings = [dataclasses.replace(self.setting, context=context, prefill_is_context=True, threads=[1, 2]) for context in (20, 40)]
        with mock.patch.object(peers, "compare_with_threads", result):
            found = peers.compare(settings)
            self.assertEqual([(run_["threads"], run_["context"], run_["length"], run_["tokens"]) for run_ in found["runs"]],
                             [(1, 20, 20, 20), (2, 20, 20, 20), (1, 40, 40, 40), (2, 40, 40, 40)])
            self.assertTrue(found["agree"])
            self.assertFalse(peers.compare([dataclasses.replace(self.setting, context=30)])["agree"])
            self.assertTrue(peers.compare([dataclasses.replace(self.setting, context=30, texts=False)])["agree"])
        with mock.patch.object(peers, "compare_with_threads") as called:  # the longest does not fit: nothing is measured
            self.assertRaisesRegex(peers.Failure, "^--context 73: with 128 new tokens", peers.compare,
                                   [*settings, dataclasses.replace(self.setting, context=73)])
            called.assert_not_called()

    def test_a_context_without_room_for_the_new_tokens_is_refused(self):
        with self.assertRaisesRegex(peers.Failure, "^--context 873: with 128 new tokens .* the 1000 positions of a-model$"):
            self.prompts(context=873)

    def test_an_engine_from_outside_says_its_figures_in_a_line(self):
        engine, = self.engines({
            "name": "other, float16", "dtype": "float16", "prepare": "echo {model} > {converted}",
            "commands": ["""echo noise; echo 'RESULT {{"decode_tok_s": 5, "prefill_ms": [2, 1, 3], "tokens": [7]}}'""",
                         """cat {converted}; echo 'RESULT {{"decode_tok_s": 6, "batch8_tok_s": {threads}{new_tokens}}}'"""]})
        self.assertEqual((engine.precision, engine.version), ("16 bits", ""))
        known, = self.engines({"name": "other", "dtype": "int8", "commands": ["true"], "version": "other 1.2"})
        self.assertEqual(known.version, "other 1.2")
        self.assertEqual(peers.run_engine(engine, self.setting, 2), {
            "decode_tokens_per_s": 5, "prefill_ms": [2, 1, 3], "token_ids": [7],
            "batch_tokens_per_s": int(f"2{peers.NEW_TOKENS}")})

    def test_an_engine_for_other_threads_stays_out(self):
        entry = {"name": "other", "dtype": "int8", "commands": ["true"], "threads": 1}
        self.assertEqual(self.engines(entry), [])
        self.assertEqual(self.engines(entry, threads=1)[0].precision, "8 bits")

    def test_a_failure_says_which_engine(self):
        for command, why in (("echo no such thing; false", "no such thing"), ("true", "no line that begins with RESULT")):
            engine, = self.engines({"name": "other", "dtype": "int8", "commands": [command]})
            with self.assertRaisesRegex(peers.Failure, f"other failed.*{why}"):
                peers.run_engine(engine, self.setting, 2)
        for entry in ({"name": "without a type"}, "no entry", {"name": "other", "dtype": [], "commands": []}):
            with self.assertRaisesRegex(peers.Failure, "peers.json cannot be used"):
                self.engines(entry)

    def test_an_unknown_type_of_weights_is_refused_with_the_known_ones(self):
        with self.assertRaisesRegex(peers.Failure, "other has weights in 'q8_0'; it must be one of float32, .*int8, int4"):
            self.engines({"name": "other", "dtype": "q8_0", "commands": ["true"]})

    def test_an_engine_whose_model_cannot_be_prepared_is_left_out(self):
        failing = {"name": "other", "dtype": "int4", "prepare": "echo no room; false", "commands": ["true"]}
        self.assertEqual([engine.name for engine in self.engines(failing, {**failing, "name": "next", "prepare": "true"})],
                         ["next"])
        self.assertRegex(self.left_out["other"], "other: preparing the model failed; see .*failed.log")
        self.assertEqual((self.folder / "peers" / "failed.log").read_text(), "no room\n")

    def test_where_the_processors_time_counts_only_engines_with_such_a_clock_run(self):
        entries = [{"name": name, "dtype": "int8", "commands": [f"echo 'RESULT {{{{\"decode_tok_s\": 1}}}}' {words}"]}
                   for name, words in (("with", "# {clock}"), ("without", ""))]
        self.assertEqual(len(self.engines(*entries)), 2)
        self.setting.cpu_time = True
        engine, = self.engines(*entries)
        self.assertEqual(engine.name, "with")
        self.assertIn("# cpu", engine.commands[0][-1])
        self.assertIn("cannot measure processor time", self.left_out["without"])

    def test_only_keeps_ours_of_the_same_types_and_the_texts_of_the_reference(self):
        names = ["Staircase, float32", "Staircase, int8", "Staircase, int4", "transformers, float32", "other, q8_0", "another, int8"]
        dtypes = ["float32", "int8", "int4", "float32", "int8", "int8"]
        engines = [peers.Engine(name, dtype, [], {}, name.startswith("Staircase")) for name, dtype in zip(names, dtypes)]
        self.assertEqual(peers.chosen(self.setting, engines, {}), (engines, []))
        self.setting.only = ["q8_0"]
        kept, texts = peers.chosen(self.setting, engines, {})
        self.assertEqual([engine.name for engine in kept], [names[0], names[1], names[3], names[4]])
        self.assertEqual(texts, [names[0], names[3]])
        self.setting.texts = False
        kept, texts = peers.chosen(self.setting, engines, {})
        self.assertEqual(([engine.name for engine in kept], texts), ([names[1], names[4]], []))
        self.setting.only = ["q8_0", "nothing"]
        with self.assertRaisesRegex(peers.Failure, "--only nothing: no engine's name contains that"):
            peers.chosen(self.setting, engines, {})
        peers.chosen(self.setting, engines, {"nothing": "nothing: it failed before"})

    def test_an_engine_that_fails_has_its_reason_and_the_others_their_figures(self):
        said = {"decode_tok_s": 8, "batch8_tok_s": 40, "prefill_ms": [2, 7, 1], "tokens": [1, 2], "prefill_token": 3}
        part = {"decode_tokens_per_s": 16, "batch_tokens_per_s": 80, "prefill_ms": [0.5, 1, 9], "token_ids": [1, 2],
                "prefill_token": 3, "prefill_gap": 1.0, "gaps": [1.0, 1.0]}
        ours = ["bash", "-c", f"echo '{json.dumps(part)}' > {self.folder}/peers/result.json"]
        engines = [peers.Engine("Staircase, float32", "float32", [ours], {}, True),
                   peers.Engine("Staircase, int8", "int8", [ours], {}, True),
                   peers.Engine("transformers, float32", "float32", [ours], {}),
                   *self.engines({"name": "other, q8_0", "dtype": "int8", "commands": [f"echo 'RESULT {{{json.dumps(said)}}}'"]},
                                 {"name": "broken, q8_0", "dtype": "int8", "commands": ["echo out of luck; false"]})]
        self.setting.rounds, self.setting.only = 2, ["q8_0"]
        with mock.patch.object(peers, "find_engines", lambda *_: (*peers.chosen(self.setting, engines, {}), {})), \
                contextlib.redirect_stdout(io.StringIO()) as shown:
            result = peers.compare_with_threads(self.setting, 2, "prompts", 512)
        self.assertIn("left out: broken, q8_0 failed (out of luck)", shown.getvalue())
        self.assertEqual(result["engines"]["other, q8_0"]["decode_tokens_per_s"], [8, 8])
        self.assertEqual(result["engines"]["other, q8_0"]["prefill_ms"], [2, 2])  # the median of each round's
        self.assertEqual(result["engines"]["transformers, float32"]["decode_tokens_per_s"], [])
        self.assertTrue(result["engines"]["Staircase, float32"]["agreement"]["agrees"])
        self.assertEqual(result["leads"], {"8 bits": {key: {"ours": "Staircase, int8", "peer": "other, q8_0", "lead": 2.0}
                                                     for key, _, _, _ in peers.COLUMNS}})

    def test_without_texts_nothing_of_the_reference_runs_and_the_tables_have_no_column_of_texts(self):
        part = {"decode_tokens_per_s": 16, "token_ids": [1, 2], "gaps": [1.0, 1.0]}
        report = ["bash", "-c", f"echo '{json.dumps(part)}' > {self.folder}/peers/result.json"]
        fails = ["bash", "-c", "false"]
        engines = [peers.Engine(peers.OURS, "float32", [fails], {}, True), peers.Engine(peers.REFERENCE, "float32", [fails], {}),
                   peers.Engine("Staircase, int8", "int8", [report], {}, True), peers.Engine("other, int8", "int8", [report], {})]
        self.setting.only, self.setting.texts, self.setting.decode_only = ["other"], False, True
        with mock.patch.object(peers, "find_engines", lambda *_: (*peers.chosen(self.setting, engines, {}), {})), \
                contextlib.redirect_stdout(io.StringIO()) as shown:
            result = peers.compare_with_threads(self.setting, 2, "prompts", 512)
        self.assertEqual(list(result["engines"]), ["Staircase, int8", "other, int8"])
        self.assertEqual({engine["agreement"] for engine in result["engines"].values()}, {None})
        self.assertIn("| engine | decode, tokens/s | ratio |\n|---|---|---|\n", shown.getvalue())

    def test_a_table_of_decoding_has_no_other_column(self):
        part = {"decode_tokens_per_s": 16, "token_ids": [1, 2], "gaps": [1.0, 1.0]}
        report = ["bash", "-c", f"echo '{json.dumps(part)}' > {self.folder}/peers/result.json"]
        engines = [peers.Engine("Staircase, float32", "float32", [report], {}, True),
                   peers.Engine("transformers, float32", "float32", [report], {})]
        self.setting.context, self.setting.decode_only = 100, True
        with mock.patch.object(peers, "find_engines", lambda *_: (engines, [], {})), \
                contextlib.redirect_stdout(io.StringIO()) as shown:
            result = peers.compare_with_threads(self.setting, 2, "prompts", 512)
        self.assertIn("2 threads, decoding after 100 tokens, 1 rounds", shown.getvalue())
        self.assertIn("| engine | decode, tokens/s | ratio | greedy tokens as in transformers |\n|---|---|---|---|\n"
                      "| Staircase, float32 | 16.0 (16.0–16.0) | **1.00** | 2 of 2 |", shown.getvalue())
        self.assertTrue(result["engines"]["Staircase, float32"]["agreement"]["agrees"])
        self.assertEqual(result["decode_prompt_tokens"], 100)

    def test_an_environment_without_the_packages_is_refused(self):
        os.environ["OPENVINO_VENV"] = "no-such-folder"
        self.addCleanup(os.environ.pop, "OPENVINO_VENV")
        with self.assertRaisesRegex(peers.Failure, "OPENVINO_VENV=no-such-folder: this is not a .* with torch, openvino"):
            peers.openvino_engines(self.setting, [], {})
        self.setting.only = ["CTranslate2"]
        self.assertEqual(peers.openvino_engines(self.setting, [], {}), [])

    def test_a_model_is_converted_again_when_its_file_has_changed(self):
        command = ["bash", "-c", f'mkdir -p "$3" && echo once >> {self.folder}/conversions', "convert"]
        self.setting.model.mkdir()
        for weights, conversions in (("a", 1), ("a", 1), ("longer", 2)):
            file = self.setting.model / "model.safetensors"
            if not file.exists() or file.read_text() != weights:
                file.write_text(weights)
            folder = peers.converted_model(self.setting, "other", command)
            self.assertEqual(len((self.folder / "conversions").read_text().splitlines()), conversions)
        self.assertEqual(folder, self.folder / "peers" / "a-model-other")
        with self.assertRaisesRegex(peers.Failure, "another could not convert"):
            peers.converted_model(self.setting, "another", ["false"])

    def test_what_a_command_prints_is_in_its_log(self):
        log = self.folder / "log"
        for status in 0, 3:
            self.assertEqual(peers.run("sh", "-c", f"cat; echo $X; echo wrong >&2; exit {status}", log=log,
                                       environment={**os.environ, "X": "right"}), status == 0)
            self.assertEqual(log.read_text(), "right\nwrong\n")

    def test_texts_agree_up_to_a_near_tie(self):
        near, far = peers.NEAR_TIE / 2, peers.NEAR_TIE
        reference = {"token_ids": [1, 2, 3], "gaps": [1.0, near, 1.0], "prefill_token": 7, "prefill_gap": 1.0}
        for run_, same, tie, agrees in (
                ({"token_ids": [1, 2, 3], "prefill_token": 7}, 3, False, True),
                ({"token_ids": [1, 9, 3], "prefill_token": 7}, 1, True, True),
                ({"token_ids": [9, 2, 3], "prefill_token": 7}, 0, False, False),
                ({"token_ids": [9, 2, 3], "prefill_token": 7, "gaps": [near, 1.0, 1.0]}, 0, True, True),
                ({"token_ids": [9, 2, 3], "prefill_token": 7, "gaps": [far, 1.0, 1.0]}, 0, False, False),
                ({"token_ids": [1, 2, 3], "prefill_token": 8}, 3, False, False),
                ({"token_ids": [1, 2, 3]}, 3, False, False)):
            with self.subTest(run_):
                self.assertEqual(peers.agreement(run_, reference), {"same_tokens": same, "of": 3, "near_tie": tie, "agrees": agrees})
        other = {"token_ids": [1, 2, 3], "prefill_token": 8}
        for gap, agrees in (near, True), (far, False):
            self.assertEqual(peers.agreement(other, {**reference, "prefill_gap": gap})["agrees"], agrees)
        del reference["prefill_token"]
        self.assertTrue(peers.agreement(other, reference)["agrees"])

    def test_every_engine_is_found_or_has_its_reason(self):
        python = Path("/venv/bin/python")
        self.engines()  # no others
        self.setting.cpu_time = True
        with mock.patch.object(peers, "python_with_packages", lambda *_: python), \
                mock.patch.object(peers, "converted_model", lambda setting, name, command: Path(f"/models/{name}")):
            engines, texts, left_out = peers.find_engines(self.setting, 3, "prompts.json")
        self.assertEqual((texts, left_out), ([], {}))
        self.assertEqual([engine.name for engine in engines],
                         [f"Staircase, {dtype}" for dtype in ("float32", "float16", "bfloat16", "int8", "int4")]
                         + ["transformers, float32", "transformers compiled, float32", "transformers, bfloat16",
                            "transformers compiled, bfloat16", "CTranslate2 with oneDNN, float32"]
                         + [f"{name}, {dtype}" for name in ("CTranslate2", "OpenVINO") for dtype in ("float32", "bfloat16", "int8")])
        for engine in engines:
            with self.subTest(engine.name):
                words, = [list(map(str, command)) for command in engine.commands]
                self.assertEqual(engine.dtype, engine.name.split(", ")[1])
                self.assertEqual(engine.ours, engine.name.startswith("Staircase"))
                self.assertIn(engine.dtype, words)
                self.assertEqual(words[words.index("--threads") + 1:words.index("--threads") + 2] + ["--cpu-time" in words,
                                 words[words.index("--prompts") + 1], words[words.index("--new-tokens") + 1],
                                 words[words.index("--json") + 1]],
                                 ["3", True, "prompts.json", str(peers.NEW_TOKENS), f"{self.folder}/peers/result.json"])
                model = {"C": "/models/CTranslate2", "O": "/models/OpenVINO"}.get(engine.name[0], str(self.setting.model))
                self.assertEqual(words[words.index("--model") + 1], model + ("-int8" if engine.name == "OpenVINO, int8" else ""))
                self.assertEqual(("--compiled" in words, engine.environment == {"CT2_USE_MKL": "0"}),
                                 ("compiled" in engine.name, "oneDNN" in engine.name))

        def missing(build, environment):
            if environment is peers.OPENVINO:
                raise peers.Failure("no network")
            return python

        self.setting.cpu_time = False
        with mock.patch.object(peers, "python_with_packages", missing), \
                mock.patch.object(peers, "converted_model", side_effect=peers.Failure("no room")):
            engines, _, left_out = peers.find_engines(self.setting, 3, "prompts.json")
        self.assertEqual(left_out, {"CTranslate2": "CTranslate2: no room", "OpenVINO": "OpenVINO: no network"})
        self.assertEqual({engine.name.split(",")[0] for engine in engines}, {"Staircase", "transformers", "transformers compiled"})
        self.assertFalse(any("--cpu-time" in command for engine in engines for command in engine.commands))

    def test_packages_are_installed_where_they_are_missing(self):
        calls = []

        def play(*command, log, environment=None):
            words = list(map(str, command))
            calls.append(" ".join(words[1:3]) + (" torch" if "torch" in words[3:] and "--index-url" in words else ""))
            if words[1:3] == ["-m", "venv"]:
                (self.folder / "venv/bin").mkdir(parents=True)
                (self.folder / "venv/bin/python").touch()
            return words[1] != self.fails and not (self.fails == "pip" and words[2] == "pip" and "--index-url" not in words)

        made = self.folder / "venv/bin/python"
        with mock.patch.object(peers, "run", play), contextlib.redirect_stderr(io.StringIO()) as told, mock.patch.dict(os.environ):
            os.environ.pop("PEERS_VENV", None)
            self.fails = "pip"
            with self.assertRaisesRegex(peers.Failure, "pip could not install torch, transformers, ctranslate2, safetensors: .*PEERS_VENV=DIR"):
                peers.python_with_packages(self.folder, peers.MAIN)
            self.assertEqual(calls, ["-m venv", "-m pip torch", "-m pip"])
            self.fails = "-c"  # the packages are not there yet
            calls.clear()
            self.assertEqual(peers.python_with_packages(self.folder, peers.MAIN), made)
            self.assertEqual([call.split(" ")[1] for call in calls[1:]], ["pip", "pip"])
            self.assertIn("Installing torch, transformers, ctranslate2, safetensors into build-bench/venv/", told.getvalue())
            self.fails = ""
            calls.clear()
            self.assertEqual(peers.python_with_packages(self.folder, peers.MAIN), made)
            self.assertEqual(len(calls), 1)
            os.environ["PEERS_VENV"] = str(self.folder / "venv")
            self.assertEqual(peers.python_with_packages(Path("/none"), peers.MAIN), made)
            shutil.rmtree(self.folder / "venv")
            del os.environ["PEERS_VENV"]
            self.fails = "-m"
            with self.assertRaisesRegex(peers.Failure, "python3 -m venv failed"):
                peers.python_with_packages(self.folder, peers.MAIN)

    def test_a_short_context_limits_the_prompt(self):
        config = {"vocab_size": 50, "n_positions": 200}
        self.assertEqual(peers.write_prompts(self.setting, config)[1], 200)
        for given, count in ((1, 1), (200, 200)):
            self.assertEqual(peers.write_prompts(dataclasses.replace(self.setting, prompt_tokens=given), config)[1], count)
        with self.assertRaisesRegex(peers.Failure, "--prompt-tokens 201: the context of a-model is 200 positions"):
            peers.write_prompts(dataclasses.replace(self.setting, prompt_tokens=201), config)

    def test_only_equal_precisions_are_compared(self):
        def engine(precision, ours, prefill, decode):
            return {"precision": precision, "ours": ours, "prefill_ms": prefill, "decode_tokens_per_s": decode,
                    "batch_tokens_per_s": []}
        leads = peers.leads_of({"ours": engine("float32", True, [10.0], [50.0]), "slow": engine("float32", False, [40.0], [20.0]),
                                "fast": engine("float32", False, [20.0], [40.0, 25.0, 1.0]),
                                "smaller": engine("4 bits", False, [1.0], [900.0])})
        self.assertEqual(leads, {"float32": {"prefill_ms": {"ours": "ours", "peer": "fast", "lead": 2.0},
                                             "decode_tokens_per_s": {"ours": "ours", "peer": "fast", "lead": 2.0}}})


class Scaling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "scaling.json")
            cls.done = run(PROGRAM, "scaling", "--shape", "124m", "--threads", "1,2,16", "--json", file)
            cls.passes = json.loads(file.read_text())["passes"] if file.exists() else []

    def percent(self, number, name):
        return next(o["percent"] for o in self.passes[number]["operations"] if o["name"] == name)

    def test_it_prints_a_table(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        for word in ("Counted, not timed", "prefill, 512 tokens", "decode, batch 8", "output layer"):
            self.assertIn(word, self.done.stdout)

    def test_the_shares_of_the_work_are_the_whole(self):
        self.assertEqual(len(self.passes), 3)
        for one in self.passes:
            self.assertAlmostEqual(sum(o["share"] for o in one["operations"]), 1.0)

    def test_one_thread_has_everything_and_more_are_never_better_than_their_number(self):
        for one in self.passes:
            self.assertAlmostEqual(one["speed_up"][0], 1.0)
            for operation in one["operations"]:
                self.assertAlmostEqual(operation["percent"][0], 100.0)
                for percent in operation["percent"]:
                    self.assertLessEqual(percent, 100.001)

    def test_figures_that_can_be_worked_out_by_hand(self):
        # 24 halves of panels: of 16 threads eight have two, and the mean is 1.5.
        self.assertAlmostEqual(self.percent(1, "attention output")[2], 75.0)
        # 72: eight threads have five, and the mean is 4.5.
        self.assertAlmostEqual(self.percent(1, "queries, keys, values")[2], 90.0)
        # 12 heads: four threads have none.
        self.assertAlmostEqual(self.percent(1, "attention")[2], 75.0)
        # One row is one thread's.
        self.assertAlmostEqual(self.percent(1, "layer norm")[1], 50.0)
        # 512 rows are cut as well.
        self.assertAlmostEqual(self.percent(0, "attention output")[2], 100.0)
        # 11 rows at a time are 47 pieces, the last one short: of two threads one has 23, 253 rows, and the other 259.
        self.assertAlmostEqual(self.percent(0, "layer norm")[1], 100 * 256 / 259)


class Changes(unittest.TestCase):
    def measure(self, texts):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "changes.json")
            done = run(PROGRAM, "changes", "--models", ROOT / "models", "--texts", texts, "--rounds", 1, "--json", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(file.read_text())

    def test_the_page_has_the_sizes_and_losses(self):
        page = (ROOT / "docs/todays-models.md").read_text(encoding="utf-8")
        rows = self.measure(ROOT / "tests/reference/unseen.json")
        self.assertEqual(len(rows), 8)
        for row in rows:
            self.assertIn(f"| {row['change']} | {row['parameters']:,} | {row['cached_numbers']:,} | {row['nats_per_token']:.3f} |",
                          page)
            self.assertGreater(min(row["prefill_ms"], row["decode_ms"]), 0)

    def test_the_loss_is_the_logarithm_of_the_perplexity(self):
        """Of "The wolf ran into the wood.", for which 38-perplexity prints 45.2153 with tales-gpt2-1m."""
        with tempfile.TemporaryDirectory() as folder:
            texts = Path(folder, "texts.json")
            texts.write_text(json.dumps({"texts": [[321, 1682, 897, 434, 259, 883, 13]]}))
            self.assertAlmostEqual(self.measure(texts)[0]["nats_per_token"], math.log(45.2153), places=4)


def tool_module():
    """tools/bench itself."""
    loader = importlib.machinery.SourceFileLoader("bench_tool", str(ROOT / "tools" / "bench"))
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_tool", loader))
    loader.exec_module(tool)
    return tool


class Masks(unittest.TestCase):
    FILES = {
        "right.json": {"schema": {"type": "array", "items": {"enum": ["é", 7]}},
                       "tests": [{"valid": True, "data": [7, "é"]}, {"valid": False, "data": [7, 8]}]},
        "wrong.json": {"schema": {"const": 1}, "tests": [{"valid": True, "data": 2}, {"valid": False, "data": 1}]},
        "refused.json": {"schema": {"contains": {"const": 2}}, "tests": [{"valid": False, "data": 1}]},
        "no-tests.json": {"schema": {}}, "no-verdict.json": {"schema": {}, "tests": [{"data": 1}]}, "list.json": [],
    }

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in cls.FILES.items():
                Path(folder, name).write_text(json.dumps(content))
            Path(folder, "broken.json").write_text("{")
            cls.found = schemas.read(Path(folder))
            shares = [schemas.read(Path(folder), share) for share in ("0-7", "8-f")]
            cls.shared = [name for share in shares for name in share]
            cls.few = schemas.read(Path(folder), most=2)
            lines, out = Path(folder, "lines"), Path(folder, "out.json")
            lines.write_text(schemas.lines(cls.found.values()))
            cls.done = run(PROGRAM, "masks", "--model", ROOT / "models" / "tales-1m", "--schemas", lines, "--json", out)
            cls.results = dict(zip(cls.found, json.loads(out.read_text()) if out.exists() else []))

    def test_files_without_schema_or_verdict_are_left_out(self):
        usable = {"right.json", "wrong.json", "refused.json"}
        self.assertEqual((set(self.found), set(self.shared), len(self.shared)), (usable, usable, 3))
        self.assertEqual(list(self.few), list(self.found)[:2])

    def test_documents_are_judged_and_masks_counted(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        self.assertEqual(self.results["right.json"]["wrong"], [])
        self.assertEqual(self.results["wrong.json"]["wrong"], [[0, True, False], [1, False, True]])
        self.assertIn("/contains", self.results["refused.json"]["refused"])
        # The first token of 2 is not allowed; 1 is a token, and the end of the text comes after it.
        self.assertEqual(len(self.results["wrong.json"]["masks_us"]), 3)

    def test_no_file_has_figures_of_nothing(self):
        self.assertEqual(set(schemas.figures([]).values()), {0})

    def test_the_figures_of_all_files(self):
        results = [{"compile_us": 10, "masks_us": [1, 2, 9], "wrong": []},
                   {"compile_us": 30, "masks_us": [4], "wrong": [[0, True, False], [1, False, True]]},
                   {"compile_us": 0, "masks_us": [], "wrong": [], "refused": "why"}]
        self.assertEqual(schemas.figures(results), {
            "files": 3, "passed": 1, "refused": 1, "accepts an invalid document": 1, "refuses a valid document": 1,
            "compile mean us": 20, "compile p50": 30, "compile p99": 30, "masks": 4, "mask mean us": 4.0, "mask p50": 4,
            "mask p99": 9, "mask max": 9})


class Needle(unittest.TestCase):
    """A sentence in a long text. The small model does not find it, but where it is hidden can be checked."""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "needle.json")
            cls.done = run(PROGRAM, "needle", "--model", ROOT / "models" / "tales-llama-1m", "--text", ROOT / "bench/fables.txt",
                           "--context", "40,200", "--needles", 2, "--dtype", "float32", "--threads", 1, "--json", file)
            cls.result = json.loads(file.read_text()) if file.exists() else None

    def test_the_sentence_is_hidden_at_its_depth_and_asked_for_at_the_end(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        texts = self.result["texts"]
        self.assertEqual([(text["context"], text["depth"]) for text in texts],
                         [(context, depth) for context in (40, 200) for depth in (0, 25, 50, 75, 100) for _ in range(2)])
        self.assertEqual(len({text["number"] for text in texts}), len(texts))
        hay = texts[-1]["prompt"][:200]  # the needle comes after all of it
        for text in texts:
            prompt, context = text["prompt"], text["context"]
            self.assertGreater(len(prompt), context)
            at = next((i for i, (token, expected) in enumerate(zip(prompt, hay[:context])) if token != expected), context)
            added = len(prompt) - context
            first = context * text["depth"] // 100
            self.assertLessEqual(at, first + 1)  # both may begin with "The"
            if text["depth"] in (0, 100):
                self.assertIn(at, (first, first + 1))
            self.assertTrue(any(hay[at:context] == prompt[at + needle:context + needle] for needle in range(1, added)))
        self.assertGreater(len({json.dumps(text["prompt"][:150]) for text in texts if text["context"] == 200 and text["number"]}), 4)

    def test_each_cache_has_a_line(self):
        caches = self.result["caches"]
        self.assertEqual([name for name in caches if name.startswith("window")], ["window of 128", "window of 128, 4 sinks"])
        self.assertLess({"float32", "int8"}, set(caches))
        for name, cache in caches.items():
            self.assertEqual(len(cache["found"]), 20)
            self.assertIn(f"\n{name} ", self.done.stdout)
        self.assertIn("found after 200 tokens", self.done.stdout)
        # A window changes what is beyond it, and sinks change that again.
        lines = {name: json.dumps(cache["perplexity"]) for name, cache in caches.items()}
        self.assertEqual(len({lines[name] for name in ("float32", "window of 128", "window of 128, 4 sinks")}), 3)

    def test_the_perplexity_is_that_of_step_38(self):
        text = (ROOT / "bench/fables.txt").read_text(encoding="utf-8").split("\n\n")[1] + "\n\n"
        with tempfile.TemporaryDirectory() as folder:
            hay, file = Path(folder, "hay.txt"), Path(folder, "needle.json")
            hay.write_text(text, encoding="utf-8")
            command = [PROGRAM, "needle", "--model", ROOT / "models" / "tales-1m", "--text", hay, "--dtype", "float32",
                       "--needles", 1, "--threads", 1, "--json", file, "--context"]
            length = int(re.search(r"has (\d+) tokens", run(*command, 100000).stderr)[1])
            done = run(*command, length)
            self.assertEqual(done.returncode, 0, done.stderr)
            caches = json.loads(file.read_text())["caches"]
        step = Path(PROGRAM).parents[1] / "steps" / "38-perplexity"
        done = run(step, "--model", ROOT / "models" / "tales-1m", "--prompt", text, "--echo", "--max-new-tokens", 0, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        logprobs = [token["logprob"] for token in json.loads(done.stdout)["sequences"][0]["prompt_logprobs"][1:]]
        self.assertEqual(len(logprobs), length - 1)
        bands = caches["float32"]["perplexity"]
        self.assertEqual([(band["from"], band["to"]) for band in bands],
                         [(first, min(end, length) - 1) for first, end in ((1, 256), (256, 512)) if first < length])
        for band in bands:
            expected = math.exp(-statistics.mean(logprobs[band["from"] - 1:band["to"]]))
            self.assertAlmostEqual(band["perplexity"] / expected, 1, places=4)
        for one, other in zip(caches["int8"]["perplexity"], bands):
            self.assertNotEqual(one["perplexity"], other["perplexity"])
            self.assertAlmostEqual(one["perplexity"] / other["perplexity"], 1, delta=0.02)

    def test_what_does_not_fit_is_refused(self):
        for context, sentence in (("500", "--context 500: with the question and its answer, 5\\d\\d positions are needed, but the model has 512"),
                                  ("900000", "--context 900000: .*fables.txt has \\d+ tokens"), ("0", "--context: Value 0 not in range 1 to")):
            done = run(PROGRAM, "needle", "--model", ROOT / "models" / "tales-llama-1m", "--text", ROOT / "bench/fables.txt",
                       "--context", context, "--threads", 1)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, sentence)


class Written(unittest.TestCase):
    def test_the_json_file_has_each_run_with_its_date_and_commit(self):
        tool = tool_module()
        runs = [{"threads": 1, "tokens_per_s": [2.5]}, {"threads": 2, "tokens_per_s": [4.5]}]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "result.json"
            with mock.patch.object(sys, "argv", ["bench", "--json", str(file)]), mock.patch.object(tool, "build"), \
                    mock.patch.object(tool, "commit", lambda: "abc"), \
                    mock.patch.object(tool, "measure", lambda _: {"model": "tales-1m", "runs": [dict(run) for run in runs]}):
                tool.main()
            result = json.loads(file.read_text())
        self.assertEqual(result["model"], "tales-1m")
        dates = {run.pop("date") for run in result["runs"]}
        self.assertEqual((len(dates), result["runs"]), (1, [run | {"commit": "abc"} for run in runs]))


class Asked(unittest.TestCase):
    def test_each_measurement_gets_the_rounds_that_a_person_asks_for(self):
        tool = tool_module()
        for measured, usual in (["--products"], 5), (["--changes"], 7), ([], 7):
            for rounds, expected in ([], usual), (["--rounds", "3"], 3):
                with self.subTest(measured=measured, rounds=rounds), tempfile.TemporaryDirectory() as folder, \
                        mock.patch.object(sys, "argv", ["bench", "--threads", "2", *measured, *rounds]), \
                        mock.patch.object(tool, "BUILD", Path(folder)), mock.patch.object(tool, "warn_if_busy", lambda: 0.0), \
                        mock.patch.object(tool, "run_program") as program:
                    Path(folder, "result.json").write_text('{"ladders": []}')
                    tool.measure(tool.read_arguments())
                    words = program.call_args.args
                    self.assertEqual(words[words.index("--rounds") + 1], expected)

    def test_each_measurement_gets_what_a_person_asks_for(self):
        tool = tool_module()
        for asked, begin, words in [
                ("--scaling --threads 2,3", "scaling", {"--shape": "124m", "--threads": "2,3"}),
                ("--scaling --shape smollm2-135m", "scaling", {"--shape": "smollm2-135m"}),
                ("--rungs", "rungs", {"--threads": 2}), ("--rungs matvec", "rungs", {"--ladder": "matvec"}),
                ("--changes", "changes", {"--threads": 2}),
                ("--products --threads 2,3", "products", {"--shape": "124m", "--threads": 3}),
                ("--products --shape smollm2-135m", "products", {"--shape": "smollm2-135m"}),
                ("--threads 2,3", "speed", {"--dtype": "float32", "--prompt-tokens": 0, "--threads": 3}),
                ("--dtype int8 --prompt-tokens 9 --batch 4,5", "speed", {"--dtype": "int8", "--prompt-tokens": 9, "--batch": "4,5"})]:
            with self.subTest(asked), tempfile.TemporaryDirectory() as folder, \
                    mock.patch.object(sys, "argv", ["bench", "--threads", "2", *asked.split()]), \
                    mock.patch.object(tool, "BUILD", Path(folder)), mock.patch.object(tool, "warn_if_busy", lambda: 0.0), \
                    mock.patch.object(tool, "run_program") as program, mock.patch.object(tool, "run_command"):
                Path(folder, "result.json").write_text('{"ladders": []}')
                tool.measure(tool.read_arguments())
                given = list(program.call_args.args)
                self.assertEqual((given[0], {name: given[given.index(name) + 1] for name in words}), (begin, words))
                for optional, its_name in (("--batch", "--batch"), ("matvec", "--ladder")):
                    self.assertEqual(its_name in given, optional in asked)


class Rungs(unittest.TestCase):
    """What is measured and counted, and written for others."""

    RESULT = {"machine": {"cpu": "a <processor>"}, "threads": 2, "rounds": 5, "ladders": [
        {"ladder": "matvec", "limit": 50.0, "rungs": [
            {"name": "1-plain", "ms": 8.0, "gb_per_s": 5.0}, {"name": "2-loop-order", "ms": 2.0, "gb_per_s": 20.0},
            {"name": "engine, float32", "ms": 1.0, "gb_per_s": 40.0}]},
        {"ladder": "gpu-matvec", "rungs": [
            {"name": "1-thread", "bytes_of_sectors": 8000, "bytes_before_wait": 0},
            {"name": "2-warp", "bytes_of_sectors": 1000, "bytes_before_wait": 500}]}]}

    def test_a_ladder_of_a_gpu_is_counted_and_the_others_are_measured(self):
        tool = tool_module()
        for asked, measured, counted in (("--rungs", 1, list(tool.COUNTED)), ("--rungs matvec", 1, []),
                                         ("--rungs gpu-layer-norm", 0, ["gpu-layer-norm"])):
            with self.subTest(asked), tempfile.TemporaryDirectory() as folder, \
                    mock.patch.object(sys, "argv", ["bench", *asked.split()]), \
                    mock.patch.object(tool, "BUILD", Path(folder)), mock.patch.object(tool, "warn_if_busy", lambda: 0.0), \
                    mock.patch.object(tool, "run_program") as program, mock.patch.object(tool, "run_command") as counters, \
                    mock.patch.object(tool, "add_compiled") as compiled:
                Path(folder, "result.json").write_text('{"ladders": [7]}')
                result = tool.measure(tool.read_arguments())
                self.assertEqual(program.call_count, measured)
                self.assertEqual([call.args[1] for call in counters.call_args_list], counted)
                self.assertEqual([call.args for call in compiled.call_args_list], [(7, "sm_90")] * len(counted))
                self.assertEqual(result["ladders"], [7] * (measured + len(counted)))

    def test_the_table_has_a_line_for_each_rung(self):
        lines = list(csv.DictReader(io.StringIO(rungs_output.as_csv(self.RESULT))))
        self.assertEqual([(line["ladder"], line["name"]) for line in lines],
                         [("matvec", "1-plain"), ("matvec", "2-loop-order"), ("matvec", "engine, float32"),
                          ("gpu-matvec", "1-thread"), ("gpu-matvec", "2-warp")])
        self.assertEqual([line["times_below"] for line in lines], ["", "4.0", "", "", ""])
        self.assertEqual([line["share_of_limit"] for line in lines], ["0.1", "0.4", "0.8", "", ""])
        self.assertEqual([line["bytes_of_sectors"] for line in lines], ["", "", "", "8000", "1000"])

    KERNEL = {"registers": 22, "spilled_bytes": 0, "shared_bytes": 2048}
    CODE = {"instructions": 77, "loop_instructions": 18, "loads": 2, "loaded_bytes": 32, "shared_loads": 0, "multiplications": 4}

    def add_compiled(self, kernels, tools, ladder="gpu-matvec"):
        """(the ladder's figures, what is printed), where bench/sass.py finds `kernels` in each file."""
        tool, out = tool_module(), io.StringIO()
        counted = {"ladder": ladder, "rungs": [{"name": "1-thread"}, {"name": "3-wide-loads"}]}

        def compiled(file, architecture, *_):
            self.assertTrue(file.is_file(), file)
            self.assertEqual(architecture, "sm_80")
            return kernels

        with mock.patch.object(tool.sass, "toolkit", lambda: tools), mock.patch.object(tool.sass, "compiled", compiled), \
                mock.patch.object(tool.sass, "versions", lambda *_: "nvcc 13"), contextlib.redirect_stdout(out):
            tool.add_compiled(counted, "sm_80")
        return counted, out.getvalue()

    def test_where_the_cuda_toolkit_is_installed_registers_and_instructions_are_added(self):
        sass = tool_module().sass
        kernel = {"kernel": "multiply", **self.KERNEL, **self.CODE}
        counted, text = self.add_compiled([kernel], sass.Toolkit("nvcc", "nvdisasm", "c++filt"))
        self.assertEqual([rung["kernels"] for rung in counted["rungs"]], [[kernel]] * 2)
        self.assertEqual(counted["compiler"], "nvcc 13")
        self.assertRegex(text, r"(?s)Compiled by nvcc 13\.\n.*per multiply\n  1-thread +22 +0 +2048 +77 +18 +2 +32 +4 +4\.50\n")
        self.assertNotIn("would add", text)

    def test_without_nvdisasm_there_are_registers_and_without_nvcc_one_line(self):
        sass = tool_module().sass
        counted, text = self.add_compiled([{"kernel": "multiply", **self.KERNEL}], sass.Toolkit("nvcc", None, "c++filt"))
        self.assertRegex(text, r"(?s)\n  3-wide-loads +22 +0 +2048\n.*\nnvdisasm, which .* would add instructions\.\n$")
        self.assertNotIn("inner loop", text)
        counted, text = self.add_compiled([], None)
        self.assertEqual([*counted["rungs"][0], *counted], ["name", "ladder", "rungs"])
        self.assertEqual(text, "\nnvcc, which comes with the CUDA toolkit, would add registers and instructions.\n")

    def test_kernels_without_a_loop_or_multiplications_have_a_dash(self):
        ladder = {"ladder": "gpu-softmax", "rungs": [{"name": "4-split", "kernels": [
            {"kernel": "add_up", **self.KERNEL, **self.CODE, "loop_instructions": 0},
            {"kernel": "divide", **self.KERNEL, **self.CODE, "loaded_bytes": 0}]}]}
        lines = rungs_output.compiled_table(ladder, "nvcc 13")
        self.assertRegex(lines[-3], "per number$")
        self.assertRegex(lines[-2], r"^  4-split: add_up .* 77 +– .* 9\.62$")  # 77 for 8 numbers
        self.assertRegex(lines[-1], r"^  4-split: divide .* 77 +18 .* –$")

    def test_the_table_for_others_has_a_line_for_each_kernel_of_a_rung_with_several(self):
        one, two = ({"kernel": name, **self.KERNEL, **self.CODE} for name in ("score", "soften"))
        result = {"ladders": [{"ladder": "gpu-attention", "compiler": "nvcc 13", "rungs": [
            {"name": "1-three", "blocks": 9, "kernels": [one, {**two, "registers": 30}]}, {"name": "2-block", "blocks": 3, "kernels": [one]}]}]}
        lines = list(csv.DictReader(io.StringIO(rungs_output.as_csv(result))))
        self.assertEqual([(line["name"], line["blocks"], line["registers"], line["instructions"]) for line in lines],
                         [("1-three", "9", "", ""), ("1-three: score", "", "22", "77"), ("1-three: soften", "", "30", "77"),
                          ("2-block", "3", "22", "77")])
        self.assertNotIn("kernels", lines[0])

    def test_bars_of_the_picture_are_as_long_as_the_figures(self):
        root = ElementTree.fromstring(rungs_output.picture(self.RESULT))
        bars = [float(box.get("width")) for box in root.iter("{http://www.w3.org/2000/svg}rect")]
        self.assertEqual(len(bars), 5)
        for bar, share in zip(bars, (0.1, 0.4, 0.8, 1.0, 0.125)):
            self.assertAlmostEqual(bar, share * rungs_output.WIDTH, delta=0.01)
        texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("20.0 GB/s, 2.000 ms", "1 KB, 0 of them early", "a <processor>, 2 threads, 5 rounds"):
            self.assertIn(text, texts)

    def test_without_measured_ladders_the_picture_names_no_machine(self):
        self.assertNotIn("threads", rungs_output.picture({"ladders": self.RESULT["ladders"][1:]}))


class Understood(unittest.TestCase):
    """What a command line means, and what is refused before anything is built."""

    @classmethod
    def setUpClass(cls):
        cls.tool = tool_module()

    def read(self, line):
        """The arguments of a command line, or the sentence that refuses it."""
        with mock.patch.object(sys, "argv", ["bench", *line.split()]), contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                return self.tool.read_arguments()
            except SystemExit as end:
                self.assertEqual(end.code, 2)
                return told.getvalue().splitlines()[-1].removeprefix("tools/bench: error: ")

    def test_numbers_have_edges(self):
        for option in "--threads", "--batch":
            name = option[2:]
            self.assertEqual(getattr(self.read(f"{option} 1,1024"), name), [1, 1024])
            for wrong in "0", "1025", "1,0", "", "-1", "1;2":
                self.assertIn("is not a list of numbers from 1 to 1024, like 1,2", self.read(f"{option}={wrong}"))
        for line, contexts in (("--peers --context 1", [1]), ("--needle --context 7,20000,7", [7, 20000])):
            self.assertEqual(self.read(line).context, contexts)
        for wrong in "0", "-1", "x", "1.5", "", "1,", "1,0":
            self.assertIn(f"'{wrong}' is not a number of tokens from 1, or a list like 1000,4000", self.read(f"--peers --context={wrong}"))
        for option, more in (("--prompt-tokens", ""), ("--sample", "--masks ."), ("--rounds", "")):
            self.assertEqual(getattr(self.read(f"{option} 1 {more}"), option[2:].replace("-", "_")), 1)
            for wrong in "0", "-1", "x", "1.5":
                self.assertIn(f"'{wrong}' is not a whole number of 1 or more", self.read(f"{option}={wrong} {more}"))
        for architecture in "sm_80", "sm_90a", "sm_120":
            self.assertEqual(self.read(f"--rungs gpu-matvec --arch {architecture}").arch, architecture)
        for wrong in "90", "sm_", "native", "sm_90,sm_80":
            self.assertIn(f"'{wrong}' is not a GPU's architecture, like sm_90", self.read(f"--rungs gpu-matvec --arch {wrong}"))
        for share in "0-f", "3-3", "a-b":
            self.assertEqual(self.read(f"--masks . --share {share}").share, share)
        for wrong in "b-a", "0-g", "00-f", "0-", "F-f":
            self.assertIn(f"'{wrong}' is not a range of digits from 0 to f, like 0-7", self.read(f"--masks . --share {wrong}"))
        self.assertRegex(self.read("--rungs vector"), "'vector' is not a ladder; choose matvec, product, attention, prefill-attention, gpu-matvec, .* or gpu-[a-z]+$")
        self.assertEqual([self.read(line).rungs for line in ("--rungs product", "--rungs matvec", "--rungs", "")],
                         ["product", "matvec", "", None])

    def test_what_is_not_given_has_a_default(self):
        with mock.patch.object(self.tool, "processors", lambda: 6):
            self.assertEqual([self.read(line).threads for line in ("", "--peers", "--masks .", "--scaling", "--scaling --threads 3")],
                             [[6], [6], [1], [1, 2, 4, 8, 16], [3]])
        plain = self.read("")
        self.assertEqual((plain.model, plain.dtype, plain.cache_dtype, plain.share, plain.only), ("tales-6m", "float32", None, "0-f", []))
        self.assertEqual(self.read("--peers --only ours,other").only, ["ours", "other"])
        for shape in self.tool.SHAPES:
            self.assertEqual(self.read(f"--shape {shape}").shape, shape)
        for dtype in "float32", "float16", "bfloat16", "int8", "int4":
            self.assertEqual(self.read(f"--dtype {dtype}").dtype, dtype)
        for dtype in "float32", "float16", "bfloat16", "int8", "int4":
            self.assertEqual(self.read(f"--cache-dtype {dtype}").cache_dtype, dtype)
        self.assertIn("invalid choice: 'int2'", self.read("--cache-dtype int2"))

    def test_what_does_not_go_together_is_refused(self):
        measures = ["--products", "--rungs", "--scaling", "--sampling", "--changes", "--needle", "--peers", "--masks ."]
        for one in measures:
            for other in measures:
                if one != other:
                    self.assertIn("not allowed with", self.read(f"{one} {other}"))
        self.assertIn("not allowed with", self.read("--model tales-1m --shape 124m"))

        def refused(sentence, option, others):
            for other in others:
                with self.subTest(option, other=other):
                    self.assertIn(sentence, str(self.read(f"{option} {other}")))

        refused("--products needs the shape of a published model: --shape 124m, 355m", "--products", ["--model tales-1m"])
        refused("--scaling needs the shape of a published model", "--scaling", ["--model tales-1m"])
        refused("--pair needs --shape and no other measurement", "--pair", ["", "--model tales-1m"])
        refused("--pair needs --shape and no other measurement", "--pair --shape 124m", [
            measure for measure in (*measures, "--batch 2", "--json x.json") if measure != "--changes"])
        refused("--batch measures a model", "--batch 2", ["--products", "--scaling", "--sampling", "--peers", "--masks .", "--needle"])
        refused("--cache-dtype needs the measurement of a model", "--cache-dtype int8",
                [*(measure for measure in measures if measure != "--peers"), "--pair --shape 124m"])
        others = [measure for measure in measures if measure != "--peers"]
        refused("--context needs --peers or --needle", "--context 3", ["", "--products", "--masks ."])
        refused("--needle can only be combined with --model, --context, --dtype", "--needle", ["--shape 124m", "--rounds 3", "--threads 1,2", "--prompt-tokens 3", "--cpu-time"])
        others_models = ["--model tales-1m", "--shape 124m", "--batch 2", "--prompt-tokens 3", "--dtype int8", "--cpu-time"]
        refused("--changes measures eight models of its own, in float32", "--changes", others_models)
        refused("--rungs can only be combined with --threads N", "--rungs", others_models)
        for option in "--decode-only", "--prompt-tokens 9":
            refused("--context with several numbers measures prefill and decoding at each", "--peers --context 3,4", [option])
        for option in "--only x", "--decode-only":
            refused(f"{option.split()[0]} needs --peers", option, ["", *others])
        for option in "--sample 3", "--share 0-7":
            refused(f"{option.split()[0]} needs --masks", option, ["", *measures[:-1]])
        refused("--masks can only be combined with --model", "--masks .", ["--shape 124m", "--rounds 3", "--prompt-tokens 3", "--dtype int8", "--threads 2"])
        refused("--rungs can only be combined with --threads N", "--rungs", ["--threads 1,2"])
        refused("--arch needs --rungs with a ladder of a GPU: gpu-matvec, ", "--arch sm_80", ["", "--rungs matvec", "--products"])
        refused("--rungs gpu-matvec counts and measures no time", "--rungs gpu-matvec", ["--threads 2", "--rounds 3"])
        refused("--csv needs --rungs", "--csv x.csv", ["", "--products", "--scaling"])
        refused("--plot needs --rungs, or --peers and several contexts", "--plot x.svg",
                ["", "--products", "--scaling", "--peers", "--peers --context 3"])
        refused("--csv /nonexistent/x.csv: there is no folder /nonexistent", "--rungs", ["--csv /nonexistent/x.csv"])
        refused("--record needs the name of this machine", "--record x", [*others, "--pair --shape 124m"])
        refused("--record needs the name of this machine", "--record=", ["", "--peers"])
        refused("--cpu-time is the time of one thread", "--cpu-time", ["--threads 2", "--threads 1,1"])
        refused("there is no folder /nonexistent", "--json /nonexistent/x.json", [""])

        for line in ("--record x", "--record x --peers", "--cache-dtype int8 --batch 2 --json x.json", "--pair --shape 124m",
                     "--masks . --model tales-1m --share 0-7 --sample 3 --cpu-time --json x.json", "--cpu-time --threads 1",
                     "--changes --threads 1,2 --rounds 3 --json x.json", "--rungs --threads 2 --rounds 3 --json x.json",
                     "--products --shape 355m", "--scaling --threads 1,2", "--peers --context 3 --decode-only --only x",
                     "--peers --context 3,4 --cache-dtype int8 --plot x.svg", "--needle --model tales-1m --context 3,4 --dtype int8 --threads 1 --json x.json"):
            self.assertNotIsInstance(self.read(line), str, line)

    def test_a_model_is_a_folder_or_has_a_name(self):
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
            folder = Path(name).resolve()
            for model in "here/tales-1m", "collection/own", "collection/tales-6m":
                (folder / model).mkdir(parents=True)
                (folder / model / "config.json").write_text("{}")
            (folder / "here/empty").mkdir()
            find = self.tool.find_model
            self.assertEqual(find(str(folder / "here/tales-1m")), folder / "here/tales-1m")
            with mock.patch.dict(os.environ, STAIRCASE_MODELS=str(folder / "collection")):
                self.assertEqual([find(model) for model in ("own", "tales-6m", "tales-1m")],
                                 [folder / "collection/own", folder / "collection/tales-6m", ROOT / "models/tales-1m"])
            with mock.patch.dict(os.environ):
                os.environ.pop("STAIRCASE_MODELS", None)
                self.assertEqual(find("tales-6m"), ROOT / "models/tales-6m")
                for missing in "own", str(folder / "here/empty"):
                    self.assertRaisesRegex(peers.Failure, f"--model {missing}: there is no folder", find, missing)

    def test_a_busy_machine_is_announced(self):
        def share(before, after):
            texts = iter([f"cpu  {before}\ncpu0 9 9\n", f"cpu  {after}\n"])
            with mock.patch.object(self.tool.Path, "read_text", lambda _: next(texts)):
                return self.tool.busy_share(0)

        # user, nice, system, idle, iowait, irq, softirq, steal; the guests' time is within the user's
        self.assertAlmostEqual(share("1 1 1 10 5 1 1 1 7 7", "3 2 1 15 7 1 1 1 99 99"), 0.3)
        self.assertEqual(share("1 1 1 10 5 1 1 1 7 7", "1 1 1 10 5 1 1 1 7 7"), 0.0)
        self.assertEqual(share("0 0 0 0 0 0 0 0", "0 0 0 0 0 3 3 4"), 1.0)
        with mock.patch.object(self.tool.Path, "read_text", side_effect=OSError):
            self.assertEqual(self.tool.busy_share(0), 0.0)
        for busy, told in (0.0, ""), (0.1, ""), (0.126, "warning: 13% of the machine is busy with other work"):
            with mock.patch.object(self.tool, "busy_share", lambda: busy), contextlib.redirect_stderr(io.StringIO()) as lines:
                self.assertEqual(self.tool.warn_if_busy(), busy)
            self.assertEqual(lines.getvalue()[:len(told) or None], told)

    def test_a_shape_is_written_once(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.multiple(self.tool, ROOT=Path(name), BUILD=Path(name, "out")), \
                mock.patch.object(self.tool, "run_program") as program, mock.patch.object(self.tool, "add_tokenizer") as tokenizer, \
                contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as told:
            models = Path(name, "out/models")

            def written(*folders):
                for folder in folders:
                    (models / folder).mkdir(parents=True, exist_ok=True)
                    (models / folder / "model.safetensors").touch()

            self.assertEqual(self.tool.shaped_model("124m"), models / "gpt2-124m-shape")
            self.assertEqual(program.call_args.args, ("random-model", "--shape", "124m", "--folder", models / "gpt2-124m-shape"))
            self.assertEqual(told.getvalue(), "Writing random weights in the shape of gpt2-124m to out/models/gpt2-124m-shape/ ...\n")
            written("gpt2-124m-shape", "smollm2-135m-target")
            for _ in range(2):
                self.tool.shaped_model("124m")
            self.assertEqual((program.call_count, tokenizer.call_count), (1, 3))

            parts = [models / "smollm2-135m-target", models / "smollm2-135m-draft"]
            self.tool.write_pair("smollm2-135m")
            self.assertEqual(program.call_args.args, ("random-pair", "--shape", "smollm2-135m", "--folder", parts[0], "--draft-folder", parts[1]))
            self.assertEqual([call.args for call in tokenizer.call_args_list[3:]], [(part,) for part in parts])
            self.assertIn("--model out/models/smollm2-135m-target --draft-model out/models/smollm2-135m-draft ", printed.getvalue())
            self.assertIn("to out/models/ ...", told.getvalue())
            written("smollm2-135m-draft")
            self.tool.write_pair("smollm2-135m")
            self.assertEqual(program.call_count, 2)

    def test_a_commit_has_its_name_and_whether_sources_have_changed(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(self.tool, "ROOT", Path(name)):
            self.assertEqual(self.tool.commit(), "")  # no repository
            git = ["git", "-C", name, "-c", "user.name=a", "-c", "user.email=a@b"]
            for file in "source.cpp", "docs/page.md":
                Path(name, file).parent.mkdir(exist_ok=True)
                Path(name, file).write_text("1")
            for command in ["init", "-q"], ["add", "."], ["commit", "-qm", "first"]:
                subprocess.run([*git, *command], check=True)
            head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
            for file, end in ("docs/page.md", ""), ("new.cpp", ""), ("source.cpp", " with changes"):
                Path(name, file).write_text("2")
                self.assertEqual(self.tool.commit(), head + end)
            with mock.patch.object(self.tool.subprocess, "run", side_effect=FileNotFoundError):
                self.assertEqual(self.tool.commit(), "")

    def test_what_cannot_be_recorded_is_refused_before_it_is_measured(self):
        with mock.patch.object(sys, "argv", ["bench", "--record", "x"]), mock.patch.object(self.tool, "build") as build, \
                mock.patch.object(self.tool, "read_page", side_effect=peers.Failure("broken")):
            self.assertRaisesRegex(peers.Failure, "broken", self.tool.main)
        self.assertFalse(build.called)
        run_ = {"runs": [], "busy_before": 0.5}
        with mock.patch.object(sys, "argv", ["bench", "--record", "x"]), mock.patch.object(self.tool, "build"), \
                mock.patch.object(self.tool, "read_page"), mock.patch.object(self.tool, "measure", lambda _: run_), \
                mock.patch.object(self.tool, "record") as record:
            self.tool.main()
        self.assertEqual(record.call_args.args, ("x", run_, ["--record", "x"]))

    def test_a_program_that_fails_ends_the_tool(self):
        for script, status in ("exit 3", 3), ("kill -9 $$", 1):
            with self.assertRaises(SystemExit) as end:
                self.tool.run_command("sh", "-c", script)
            self.assertEqual(end.exception.code, status)
        self.assertIsNone(self.tool.run_command("true"))

    def test_documents_that_are_judged_wrongly_are_told_with_both_verdicts(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(self.tool, "BUILD", Path(name)), \
                mock.patch.object(self.tool, "run_program") as program, mock.patch.object(self.tool, "warn_if_busy"), \
                contextlib.redirect_stdout(io.StringIO()) as shown:
            folder = Path(name, "schemas")
            arguments = mock.Mock(masks=folder, share="0-f", sample=None, model="m", cpu_time=False)
            with self.assertRaisesRegex(peers.Failure, f"^--masks {folder}: there is no such folder$"):
                self.tool.measure_masks(arguments)
            folder.mkdir()
            with self.assertRaisesRegex(peers.Failure, f"^--masks {folder}: no file there has a schema and tests$"):
                self.tool.measure_masks(arguments)
            arguments.share = "0-7"
            with self.assertRaisesRegex(peers.Failure, "has a schema and tests in the share 0-7$"):
                self.tool.measure_masks(arguments)
            arguments.share = "0-f"
            for file in "a.json", "b.json":
                (folder / file).write_text(json.dumps({"schema": {}, "tests": [{"valid": True, "data": 1}]}))
            results = [{"compile_us": 1, "masks_us": [1], "wrong": wrong} for wrong in ([], [[0, True, False], [4, False, True]])]
            program.side_effect = lambda *words: Path(name, "result.json").write_text(json.dumps(results))
            measured = self.tool.measure_masks(arguments)
            told = shown.getvalue().splitlines()
            second = list(measured["results"])[1]
            self.assertEqual(told[-2:], [f"{second}: document 0 is valid, and was refused", f"{second}: document 4 is invalid, and was accepted"])
            self.assertEqual((measured["results"][second], measured["figures"]["files"]), (results[1], 2))
            self.assertEqual(json.loads("\n".join(told[:-2])), measured["figures"])
            self.assertEqual(program.call_args[0], ("masks", "--model", "m", "--schemas", Path(name, "schemas.jsonl"), "--json", Path(name, "result.json")))
            arguments.cpu_time = True
            self.tool.measure_masks(arguments)
            self.assertEqual(program.call_args[0][-1], "--cpu-time")

    def test_commands_for_choosing_tokens_take_turns(self):
        for python, turns in (False, 1), (True, 3):
            with tempfile.TemporaryDirectory() as name, mock.patch.object(self.tool, "run_command") as command, \
                    mock.patch.dict(os.environ, PEERS_VENV=name):
                if python:
                    Path(name, "bin").mkdir()
                    Path(name, "bin/python").touch()
                self.tool.measure_sampling()
                own = (self.tool.PROGRAM.parent / "bench-sampling", 1000)
                peer = (Path(name, "bin/python"), ROOT / "bench/transformers_sampling.py", 1000)
                self.assertEqual([call.args for call in command.call_args_list], [own, peer] * turns if python else [own])

    def test_each_command_is_measured_as_it_is_asked_for(self):
        for line, chosen in (("--pair --shape 355m", "write_pair"), ("--sampling", "measure_sampling"), ("--masks .", "measure_masks"),
                             ("--peers", "compare"), ("", "measure")):
            with self.subTest(line), contextlib.ExitStack() as stack:
                made = {name: stack.enter_context(mock.patch.object(place, name, return_value={"agree": True})) for place, name in (
                    (self.tool, "build"), (self.tool, "write_pair"), (self.tool, "measure_sampling"), (self.tool, "measure_masks"),
                    (self.tool, "measure"), (peers, "compare"))}
                stack.enter_context(mock.patch.object(self.tool, "warn_if_busy", lambda: 0.25))
                stack.enter_context(mock.patch.object(sys, "argv", ["bench", *line.split()]))
                self.tool.main()
                self.assertEqual([name for name, call in made.items() if call.called], ["build", chosen])
                if chosen == "write_pair":
                    self.assertEqual(made[chosen].call_args.args, ("355m",))
                if chosen == "compare":
                    (setting,), = made[chosen].call_args.args
                    self.assertEqual((setting.model, setting.rounds, setting.busy, setting.context, setting.decode_only,
                                      setting.texts), (ROOT / "models/tales-6m", 5, 0.25, 16, False, True))

    def test_what_a_person_sets_reaches_the_peers(self):
        with mock.patch.object(self.tool, "build"), mock.patch.object(self.tool, "warn_if_busy", lambda: 0.5), \
                mock.patch.object(self.tool, "shaped_model", lambda shape: Path("models", shape)), \
                mock.patch.object(peers, "compare", return_value={"agree": False}) as compare, \
                mock.patch.object(sys, "argv", "bench --peers --shape 355m --threads 1 --prompt-tokens 9 --rounds 3 --only a,b --cpu-time "
                                               "--context 7 --decode-only --cache-dtype int8 --no-texts".split()):
            self.assertRaisesRegex(peers.Failure, "the engines disagree about the text", self.tool.main)
        (setting,), = compare.call_args.args
        self.assertFalse(setting.texts)
        self.assertEqual((setting.cache_dtype, setting.prefill_is_context), ("int8", False))
        self.assertEqual((setting.model, setting.threads, setting.prompt_tokens, setting.rounds, setting.busy, setting.only,
                          setting.cpu_time, setting.context, setting.decode_only),
                         (Path("models/355m"), [1], 9, 3, 0.5, ["a", "b"], True, 7, True))


class Recorded(unittest.TestCase):
    """What --record adds to the file of the CPU's page."""

    def setUp(self):
        self.data = {"machines": {}}

    def peers_run(self, rates, tokens=16):
        """A run as tools/bench --peers gives it: {type: tokens per second of ours in each round}; the peer has half."""
        def engine(dtype, measured):
            return {"version": "", "dtype": dtype, "precision": peers.PRECISIONS[dtype], "ours": True, "prefill_ms": [],
                    "decode_tokens_per_s": measured, "batch_tokens_per_s": [], "agreement": None}
        engines = {f"Staircase, {dtype}": engine(dtype, measured) for dtype, measured in rates.items()}
        engines |= {f"other, {dtype}": engine(dtype, [rate / 2 for rate in measured]) for dtype, measured in rates.items()}
        return {"date": "2030-01-02", "commit": "abc", "model": "gpt2-124m-shape", "threads": 2, "rounds": 3, "prompt_tokens": 512,
                "cpu_time": False, "decode_prompt_tokens": tokens, "new_tokens": 128, "batch": 8,
                "engines": engines | {"transformers, float32": engine("float32", [])},
                "left_out": {"x": "x failed; see /home/me/failed.log"}, "leads": {}, "busy_before": 0.25}

    def limit_run(self, dtype, threads=1):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "speed.json")
            done = run(PROGRAM, "speed", "--model", ROOT / "models" / "tales-1m", "--threads", threads, "--rounds", 2, "--batch", "2",
                       "--dtype", dtype, "--prompt-tokens", 16, "--json", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(file.read_text()) | {"date": "2030-01-02", "commit": "abc"}

    def add(self, *runs, command="tools/bench --peers"):
        for each in runs:
            cpu_page.add(self.data, "A machine", "Two cores.", command, each)
        return [list(map(sorted, map(cpu_page.dtypes, result["runs"]))) for result in self.data["machines"]["A machine"]["results"]]

    def test_a_run_keeps_the_median_and_the_range_and_no_path(self):
        self.add(self.peers_run({"int8": [40.123456, 10.0, 20.0]}))
        kept = self.data["machines"]["A machine"]["results"][0]["runs"][0]
        self.assertEqual(kept["engines"]["Staircase, int8"]["decode_tokens_per_s"], [10.0, 20.0, 40.123])
        self.assertEqual(list(kept["engines"]), ["Staircase, int8", "other, int8"])
        self.assertNotIn("/home", json.dumps(self.data))

    def test_the_page_has_the_machine_the_command_and_the_table(self):
        self.add(self.peers_run({"int8": [40.0, 10.0, 20.0]}))
        self.assertNotIn("\n\n\n", cpu_page.text(self.data))  # what is unknown leaves no gap
        page = " ".join(cpu_page.text(self.data).split())
        for text in ("## A machine Two cores. ### GPT-2 124M beside other engines in int8 `tools/bench --peers`, 2030-01-02, commit abc. "
                     "25 % of the machine was busy with other work. | engine | decode, tokens/s | ratio | |---|---|---| "
                     "| Staircase, int8 | 20.0 (10.0–40.0) | **2.00** | | other, int8 | 10.0 (5.0–20.0) | 2.00 |",):
            self.assertIn(text, page)

    def test_a_newer_run_replaces_one_whose_types_it_has(self):
        one, both, after = self.peers_run({"int8": [1]}), self.peers_run({"int8": [2], "int4": [2]}), self.peers_run({"int8": [3]}, 1000)
        self.assertEqual(self.add(one, both), [[["int4", "int8"]]])
        self.data["machines"]["A machine"]["results"][0]["limit"] = "Memory."
        self.assertEqual(self.add(both, command="another"), [[["int4", "int8"]]])
        self.assertEqual(self.data["machines"]["A machine"]["results"][0]["limit"], "Memory.")
        self.assertEqual(self.data["machines"]["A machine"]["results"][0]["command"], "another")
        self.assertEqual(self.add(one, after), [[["int4", "int8"]], [["int8"]], [["int8"]]])
        self.assertEqual(self.data["machines"]["A machine"]["about"], "Two cores.")

    def test_runs_over_several_contexts_share_a_table_and_draw_a_picture(self):
        def at(context, rate, cache="int8"):
            run_ = self.peers_run({"int8": [rate]}, context)
            for engine in run_["engines"].values():
                if engine["decode_tokens_per_s"]:
                    engine["prefill_ms"] = [1e3 * context / rate / 4]
            return run_ | {"prefill_is_context": True, "cache_dtype": cache, "prompt_tokens": context}
        self.data["machines"]["A machine"] = {"about": "", "results": [{"command": "", "limit": "", "runs": [
            {"model": {"name": "gpt2-124m-shape", "dtype": "int8"}, "threads": 2, "clock": "wall"}]}]}
        self.assertEqual(self.add(at(4000, 50.0), at(1000, 100.0), at(1000, 200.0)), [[["int8"]], [["int8"], ["int8"]]])
        del self.data["machines"]["A machine"]["results"][0]
        self.assertEqual(len(self.add(at(1000, 200.0, ""))), 2)
        page = cpu_page.text(self.data)
        self.assertIn("### GPT-2 124M after texts of several lengths, caches in int8\n", page)
        self.assertIn("### GPT-2 124M after texts of several lengths\n", page)
        self.assertIn("| tokens/s | prefill 1000 | prefill 4000 | decode 1000 | decode 4000 |\n|---|---|---|---|---|\n"
                      "| **Staircase, int8** | 800 (800–800) | 200 (200–200) | 200 (200–200) | 50.0 (50.0–50.0) |\n"
                      "| other, int8 | 800 (800–800) | 200 (200–200) | 100 (100–100) | 25.0 (25.0–25.0) |", page)
        both = self.peers_run({"int8": [1], "bfloat16": [2]}) | {"prefill_is_context": True, "cache_dtype": "int4"}
        self.assertEqual(cpu_page.title([cpu_page.kept(both)]),
                         "GPT-2 124M after texts of several lengths, caches in int4, weights in bfloat16 and int8")
        drawing = peers.picture({"runs": [at(1000, 200.0), at(4000, 50.0)]})
        for words in ("Staircase, int8 in decode: 200 at 1000, 50 at 4000.", "other, int8 in prefill: 800 at 1000, 200 at 4000.",
                      ">4k</text>", "gpt2-124m-shape, 2 threads, caches in int8, 2030-01-02"):
            self.assertIn(words, drawing)

    def test_runs_beside_the_limits_share_a_table(self):
        float32, int8 = self.limit_run("float32"), self.limit_run("int8")
        self.assertEqual(self.add(float32, int8, float32), [[["int8"], ["float32"]]])
        self.assertEqual(self.add(float32 | {"threads": 2}), [[["int8"], ["float32"]], [["float32"]]])
        page = cpu_page.text(self.data)
        self.assertEqual(page.count("`tools/bench --peers`, each type with its `--dtype`, 2030-01-02"), 1)
        self.assertIn("\n| | int8 | of the limit | float32 | of the limit |\n", page)
        self.assertRegex(page, r"\n\| one-token pass, ms \| [\d.]+ \([\d.]+–[\d.]+\) \| \d+ % of the bandwidth \|")
        self.assertRegex(page, r"\n\| 2 sequences at context \d+, tokens/s \| \d+ \| \d\.\d\d × one sequence \|")

    def test_figures_are_shown_with_the_digits_that_they_are_worth(self):
        for figure, shown in (({"median": 99.96, "min": 99.0, "max": 101.5}, "100.0 (99.0–101.5)"), ({"median": 100.0, "min": 99.4, "max": 100.6}, "100 (99–101)"),
                              ({"median": 1.0}, "1.0"), ({"median": 0.994, "min": 0.5, "max": 2.0}, "0.99 (0.50–2.00)"),
                              ({"min": 3, "max": 4}, "3–4"), (None, "–")):
            self.assertEqual(cpu_page.spread(figure), shown)
        self.assertEqual([cpu_page.listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])], ["a", "a and b", "a, b and c"])
        self.assertEqual([cpu_page.shortened(value) for value in (1.2345678, 123456, "x", 0.000123456)], [1.2346, 123456, "x", 0.00012346])
        for shape, name in (("gpt2-124m-shape", "GPT-2 124M"), ("gpt2-355m-shape", "GPT-2 355M"), ("gpt2-774m-shape", "GPT-2 774M"),
                            ("gpt2-1558m-shape", "GPT-2 1558M"), ("tales-6m", "tales-6m")):
            self.assertTrue(cpu_page.title([{"model": {"name": shape}}]).startswith(f"{name} beside the machine's limits"), shape)
        tool = tool_module()
        self.assertEqual(set(cpu_page.SHAPES), {f"{tool.full_name(shape)}-shape" for shape in tool.SHAPES})
        engines = {dtype: {"dtype": dtype} for dtype in ("int4", "float32", "int8")}
        run_ = {"model": "tales-6m", "engines": engines, "decode_prompt_tokens": 16}
        self.assertEqual(cpu_page.title([run_]), "tales-6m beside other engines")
        self.assertEqual(cpu_page.title([{**run_, "engines": {"a": engines["int4"], "b": engines["float32"]}, "decode_prompt_tokens": 17}]),
                         "tales-6m beside other engines in float32 and int4, after 17 tokens")
        runs = [{"date": "2030-01-02", "commit": "b", "busy_before": 0.1}, {"date": "2030-01-01", "commit": "a"}]
        self.assertEqual(cpu_page.measured_by({"command": "c", "runs": runs}),
                         "`c`, each type with its `--dtype`, 2030-01-01 and 2030-01-02, commit a and b.")
        runs = [{"date": "2030-01-02", "busy_before": 0.106}]
        self.assertEqual(cpu_page.measured_by({"command": "c", "runs": runs, "about": "One."}),
                         "`c`, 2030-01-02. 11 % of the machine was busy with other work. One.")

    def test_a_run_beside_the_limits_has_a_row_for_each_figure(self):
        figures = {"model": {"name": "x", "dtype": "float32"}, "limits": {"read_gb_per_s": {"median": 20.0}}, "library_product_dtype": "bfloat16",
                   "prefill": {"tokens": 9, "ms": {"median": 3.0}, "percent_of_library_product": 50.4, "percent_of_multiply_add": 20.6},
                   "one_token_pass": {"ms": {"median": 2.0}, "percent_of_read": 61.0},
                   "decode": [{"context": 7, "ms": {"median": 4.0}, "percent_of_read": 30.0}],
                   "batches": [{"batch": 1, "tokens_per_s": 50.0, "context": 7}, {"batch": 4, "tokens_per_s": 120.0, "context": 7}],
                   "verification": [{"drafted": 4, "ms": {"median": 5.0}, "times_one_token": 1.25}],
                   "load": {"weight_bytes": 1_600_000, "peak_bytes_after_loading": 2_400_000, "peak_bytes_after_running": 3_000_000}}
        rows = {"read bandwidth, GB/s": ("20.0", "–"), "prefill of 9 tokens, ms": ("3.0", "50 % of oneDNN's products in bfloat16, 21 % of the multiply-adds"),
                "one-token pass, ms": ("2.0", "61 % of the bandwidth"), "decode, context 7, ms": ("4.0", "30 % of the bandwidth"),
                "1 sequence at context 7, tokens/s": ("50.0", "–"), "4 sequences at context 7, tokens/s": ("120", "2.40 × one sequence"),
                "verify 4 + 1 tokens, ms": ("5.0", "1.25 × one token"), "weights, MB": ("2", "–"), "peak memory after loading, MB": ("2", "–"),
                "peak memory at the end, MB": ("3", "–")}
        self.assertEqual(list(cpu_page.limit_rows(figures).items()), list(rows.items()))
        figures["model"]["dtype"] = "int8"
        self.assertEqual(cpu_page.limit_rows(figures)["prefill of 9 tokens, ms"][1], "50 % of oneDNN's products in bfloat16")
        figures["prefill"] = {"tokens": 9, "ms": None}
        for name in "limits", "load", "batches", "verification":
            del figures[name]
        self.assertEqual(cpu_page.limit_rows(figures), {"prefill of 9 tokens, ms": ("–", "–"), "one-token pass, ms": rows["one-token pass, ms"],
                                                        "decode, context 7, ms": rows["decode, context 7, ms"]})

    def test_what_one_type_lacks_has_a_dash_in_both_of_its_columns(self):
        def figures(dtype, context):
            return {"model": {"name": "x", "dtype": dtype}, "library_product_dtype": dtype, "prefill": {"tokens": 9, "ms": None},
                    "one_token_pass": {"ms": {"median": 2.0}, "percent_of_read": 61.0},
                    "decode": [{"context": context, "ms": {"median": 4.0}, "percent_of_read": 30.0}]}
        table = cpu_page.table([figures("float32", 7), figures("int8", 8)])
        self.assertEqual(table, ["| | float32 | of the limit | int8 | of the limit |", "|---|---|---|---|---|",
                                 "| prefill of 9 tokens, ms | – | – | – | – |",
                                 "| one-token pass, ms | 2.0 | 61 % of the bandwidth | 2.0 | 61 % of the bandwidth |",
                                 "| decode, context 7, ms | 4.0 | 30 % of the bandwidth | – | – |",
                                 "| decode, context 8, ms | – | – | 4.0 | 30 % of the bandwidth |"])

    def test_the_file_reads_back_and_shows_an_engine_a_line(self):
        self.add(self.peers_run({dtype: [1.0] for dtype in peers.PRECISIONS}))
        text = cpu_page.compact(self.data)
        self.assertEqual(json.loads(text), self.data)
        self.assertEqual(len([line for line in text.splitlines() if '"Staircase, ' in line and line.endswith("},")]), 5)

    def test_a_machine_has_its_processor_their_number_and_its_memory(self):
        tool = tool_module()
        files = {"/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9R45\n",
                 "/proc/meminfo": "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"}
        with mock.patch.object(tool.Path, "read_text", lambda path: files[str(path)]), mock.patch.object(tool, "processors", lambda: 6):
            self.assertEqual(tool.this_machine(), "AMD EPYC 9R45, 6 processors, 16 GB of memory.")
        with mock.patch.object(tool.Path, "read_text", side_effect=OSError), mock.patch.object(tool, "processors", lambda: 6):
            self.assertEqual(tool.this_machine(), "unknown, 6 processors.")

    def test_the_tool_writes_both_files_and_its_command(self):
        tool = tool_module()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            file = Path(folder, "cpu.json")
            file.write_text("{")
            with mock.patch.object(cpu_page, "FILE", file), mock.patch.object(cpu_page, "PAGE", file.with_suffix(".md")):
                self.assertRaisesRegex(peers.Failure, "cpu.json is not valid JSON", tool.read_page)
                file.write_text(json.dumps(self.data))
                tool.record("A machine", {"busy_before": 0.0, "runs": [self.peers_run({"int8": [1.0]})]},
                            ["--peers", "--record", "A machine", "--json=x.json", "--dtype", "int8", "--only", "a b"])
                result, = cpu_page.read()["machines"]["A machine"]["results"]
            self.assertEqual((result["command"], result["limit"]), ("tools/bench --peers --only 'a b'", ""))
            self.assertIn("## A machine", file.with_suffix(".md").read_text(encoding="utf-8"))
        self.assertRegex(tool.this_machine(), r"^.+, \d+ processors, \d+ GB of memory\.$")
        self.assertRegex(tool.commit(), r"^([0-9a-f]{7,}( with changes)?)?$")


class ShapedTokenizer(unittest.TestCase):
    """The tokenizer of a random model: every step refuses one that knows tokens beyond the model's vocabulary."""

    @classmethod
    def setUpClass(cls):
        cls.tool = tool_module()

    def files(self, size):
        """(vocab.json, the merges) beside a model of that vocabulary."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.json").write_text(json.dumps({"vocab_size": size}))
            (folder / "merges.txt").write_text("left over from a larger vocabulary")
            self.tool.add_tokenizer(folder)
            lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
            self.assertEqual(json.loads((folder / "tokenizer_config.json").read_text()), {
                "tokenizer_class": "GPT2Tokenizer", **{f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "unk")}})
            return json.loads((folder / "vocab.json").read_text(encoding="utf-8")), [line.split(" ") for line in lines[1:]]

    def test_a_smaller_vocabulary_has_the_first_tokens_and_the_end_of_the_text(self):
        whole, all_merges = self.files(50257)
        self.assertEqual((len(whole), len(all_merges)), (50257, 50000))
        for size in (300, 49152, 50256):
            with self.subTest(size):
                tokens, merges = self.files(size)
                self.assertEqual(sorted(tokens.values()), list(range(size)))
                self.assertEqual(tokens.pop("<|endoftext|>"), size - 1)
                self.assertLessEqual(tokens.items(), whole.items())
                self.assertEqual(sum(len(token) == 1 for token in tokens), 256)
                # A merge for each token of two or more characters, in the order of all.
                self.assertEqual(merges, all_merges[:size - 257])
                self.assertEqual({left + right for left, right in merges}, {token for token in tokens if len(token) > 1})

    def test_a_larger_vocabulary_leaves_it_whole(self):
        self.assertEqual(self.files(151936), self.files(50257))

    def test_a_step_runs_the_folder(self):
        step = Path(PROGRAM).parents[1] / "steps" / "01-greedy-decoding"
        if not step.exists():
            self.skipTest("step 01 is not built")
        with tempfile.TemporaryDirectory() as name:
            folder, tales = Path(name), ROOT / "models" / "tales-1m"  # of 4096 tokens
            for file in ("config.json", "model.safetensors"):
                (folder / file).symlink_to(tales / file)
            self.tool.add_tokenizer(folder)
            done = run(step, "--model", folder, "--prompt", "A fox", "--max-new-tokens", 2, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)


class Errors(unittest.TestCase):
    def check(self, status, sentence, *command):
        done = run(*command)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(sentence, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_of_the_program(self):
        self.check(2, "the shapes are 124m", PROGRAM, "random-model", "--shape", "9m", "--folder", "/nonexistent")
        self.check(1, "no such model", PROGRAM, "speed", "--model", "nothing")
        self.check(2, "--cpu-time measures one thread", PROGRAM, "generation", "--model", "tales-1m", "--prompts",
                   "prompts.json", "--threads", 2, "--cpu-time")
        self.check(1, "/nonexistent does not exist", PROGRAM, "changes", "--models", ROOT / "models", "--texts", "/nonexistent")
        self.check(2, "context is 512", PROGRAM, "speed", "--model", ROOT / "models" / "tales-1m", "--prompt-tokens", 513)

    def test_of_the_tool(self):
        tool = ROOT / "tools" / "bench"
        self.check(2, "invalid choice: '9m'", tool, "--shape", "9m")
        self.check(2, "not a list of numbers", tool, "--threads", "1,none")
        other = [["--products"], ["--scaling"], ["--sampling"], ["--peers"], ["--masks", "."]]
        for measure in other:
            self.check(2, "--batch measures a model", tool, "--batch", "2", *measure)
        for measure in [*other[:3], other[4], ["--changes"], ["--rungs", "matvec"], ["--pair", "--shape", "124m"]]:
            self.check(2, "--record needs the name of this machine", tool, "--record", "x", *measure)
        self.check(2, "--scaling needs the shape", tool, "--scaling", "--model", "tales-1m")
        settings = [["--model", "tales-1m"], ["--shape", "124m"], ["--batch", "2"], ["--prompt-tokens", "3"],
                    ["--dtype", "int8"], ["--threads", "1", "--cpu-time"]]
        for setting in settings:
            self.check(2, "--changes measures eight models of its own", tool, "--changes", *setting)
            self.check(2, "--rungs can only be combined with --threads N", tool, "--rungs", "matvec", *setting)
        self.check(2, "--rungs can only be combined with --threads N", tool, "--rungs", "matvec", "--threads", "1,2")
        for setting in [settings[1], ["--rounds", "2"], *settings[3:5], ["--threads", "2"]]:
            self.check(2, "--masks can only be combined with --model", tool, "--masks", ".", *setting)
        self.check(2, "--pair needs --shape", tool, "--pair")
        for measure in [*other, ["--rungs", "matvec"], ["--batch", "2"], ["--json", "figures.json"]]:
            self.check(2, "--pair needs --shape", tool, "--pair", "--shape", "124m", *measure)
        self.check(2, "--cpu-time is the time of one thread", tool, "--peers", "--threads", "2", "--cpu-time")
        self.check(2, "'0' is not a number of tokens from 1", tool, "--peers", "--context", "0")
        self.check(2, "--context needs --peers or --needle", tool, "--context", "16")
        self.check(2, "--decode-only needs --peers", tool, "--decode-only")
        self.check(2, "--record needs the name of this machine", tool, "--record", " ")
        for wrong in ("7", "8-7", "0-g"):
            self.check(2, f"'{wrong}' is not a range of digits", tool, "--masks", ".", "--share", wrong)
        self.check(2, "--share needs --masks", tool, "--share", "0-7")
        self.check(2, "--sample needs --masks", tool, "--sample", "7")
        for more in (["--rounds", "3"], ["--threads", "2"], ["--dtype", "int8"], ["--prompt-tokens", "8"], ["--shape", "124m"]):
            self.check(2, "--masks can only be combined with --model", tool, "--masks", ".", *more)
        self.check(2, "--only needs --peers", tool, "--only", "OpenVINO")
        self.check(2, "--no-texts needs --peers", tool, "--no-texts")
        self.check(2, "there is no folder", tool, "--json", "/nonexistent/out.json")
        self.assertIn("--peers", run(tool, "--help").stdout)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
