"""The programs that run another engine once: bench/peer_*.py and bench/gpu_peer.py. The engine is a stand-in.

It has a clock of its own, in which a step takes a known time. Its cache refuses positions that do not follow those that
it holds. It counts a text on from its last token."""

import contextlib
import importlib
import json
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

from support import ROOT, Limited

sys.path.insert(0, str(ROOT / "bench"))
import peer_runs  # noqa: E402

VOCABULARY = 11
FIRST, LATER, COMPILED = 10.0, 2.0, 0.5  # seconds of a pass over a prompt, and of one for a new token
SLOW = 100.0                            # of a first pass, which compiles


class Array:
    """As much of a tensor as the programs use: nested lists, indexed as usual."""

    def __init__(self, rows):
        self.rows = rows

    @property
    def shape(self):
        found, inner = [], self.rows
        while isinstance(inner, list):
            found.append(len(inner))
            inner = inner[0] if inner else None
        return tuple(found)

    def __getitem__(self, at):
        def pick(rows, places):
            if not places:
                return rows
            place, *rest = places
            if place is None:
                return [pick(rows, rest)]
            return [pick(row, rest) for row in rows[place]] if isinstance(place, slice) else pick(rows[place], rest)

        return Array(pick(self.rows, at if isinstance(at, tuple) else (at,)))

    def __sub__(self, other):
        return Array([a - b for a, b in zip(self.rows, other.rows)])

    def argmax(self, axis, keepdim=False):
        assert axis == -1 and keepdim
        return Array([[row.index(max(row))] for row in self.rows])

    def topk(self, count):
        return SimpleNamespace(values=Array([sorted(row, reverse=True)[:count] for row in self.rows]))

    def tolist(self):
        return self.rows

    def clone(self):
        return Array([list(row) for row in self.rows])

    float = clone


class Cache:
    def __init__(self, room=None):
        self.room, self.length, self.used = room, 0, False

    def reset(self):
        self.length = 0


class Model:
    """Its next token is the last one plus 1. The best logit at position p leads by p + 1."""

    def __init__(self, clock, seconds=LATER):
        self.clock, self.seconds, self.calls = clock, seconds, []
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        self.generation_config = SimpleNamespace(eos_token_id=7, pad_token_id=None)
        self.dtype, self.seen, self.owner = "float32", set(), self

    def eval(self):
        return self

    def to(self, device):
        self.device = device
        return self

    def __call__(self, tokens, past_key_values=None, cache_position=None, position_ids=None, use_cache=None, logits_to_keep=0):
        (batch, count), cache = tokens.shape, past_key_values
        if cache is not None:
            places = list(range(cache.length, cache.length + count))
            if cache_position.tolist() != places or position_ids.tolist() != [places]:
                raise ValueError(f"positions {cache_position.tolist()} in a cache that holds {cache.length}")
            cache.length += count
            if cache.room is not None and cache.length > cache.room:
                raise ValueError(f"{cache.length} positions in a cache for {cache.room}")
            if (batch, count) not in self.seen:
                self.clock.now += SLOW
            self.seen.add((batch, count))
            self.clock.now += FIRST if count > 1 else self.seconds
        self.owner.calls.append((self.seconds, batch, count, type(cache), tokens.tolist()))

        def logits(position, token):
            row = [0.0] * VOCABULARY
            row[(token + 1) % VOCABULARY] = position + 1.0
            return row

        found = [[logits(place, token) for place, token in enumerate(row)] for row in tokens.tolist()]
        return SimpleNamespace(logits=Array([row[-logits_to_keep:] for row in found]))

    def generate(self, prompt, attention_mask, do_sample, max_new_tokens, streamer, **options):
        assert attention_mask.tolist() == [[1] * len(row) for row in prompt.tolist()] and not do_sample
        assert (self.generation_config.eos_token_id, self.generation_config.pad_token_id) == (None, 0), "a text may end early"
        rows = [list(row) for row in prompt.tolist()]
        self.calls.append((len(rows), len(rows[0]), max_new_tokens, options))
        self.clock.now += 1.0  # before the prompt is passed on
        streamer.put(prompt)
        for step in range(max_new_tokens):
            self.clock.now += LATER if step else FIRST
            rows = [[*row, (row[-1] + 1) % VOCABULARY] for row in rows]
            streamer.put(None)
        streamer.end()
        return Array(rows)


class Programs(Limited):
    def setUp(self):
        self.now = 1000.0
        self.model = Model(self)
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.loaded = []

        def load(folder, dtype):
            self.loaded.append((folder, dtype))
            return self.model

        def compiled(model, **options):
            self.compile_options = options
            other = Model(self, COMPILED)
            other.owner = model
            return other

        torch, transformers = ModuleType("torch"), ModuleType("transformers")
        torch.__dict__.update(
            __version__="2.9", float32="the type float32", bfloat16="the type bfloat16", set_grad_enabled=lambda on: None,
            set_num_threads=lambda count: setattr(self, "threads", count), inference_mode=contextlib.nullcontext,
            tensor=lambda rows, device=None: Array(rows), ones_like=lambda one: Array([[1] * len(row) for row in one.tolist()]),
            arange=lambda first, end, device=None: Array(list(range(first, end))), compile=compiled)
        transformers.__dict__.update(
            __version__="5.0", logging=SimpleNamespace(set_verbosity_error=lambda: None),
            AutoModelForCausalLM=SimpleNamespace(from_pretrained=load), DynamicCache=Cache, CompileConfig=SimpleNamespace,
            StaticCache=lambda config, max_batch_size, max_cache_len, device, dtype: Cache(max_cache_len))
        self.enterContext(mock.patch.dict(sys.modules, torch=torch, transformers=transformers))

    def program(self, name):
        """The program as a module, newly read, with our clocks: the processor computes half of the time."""
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
        self.addCleanup(sys.modules.pop, name, None)
        clocks = SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: self.now / 2)
        self.enterContext(mock.patch.object(module, "time", clocks))
        return module

    def run_main(self, module, *words):
        file = self.folder / "result.json"
        with mock.patch.object(sys, "argv", ["program", *map(str, words), "--json", str(file)]):
            module.main()
        return json.loads(file.read_text(encoding="utf-8"))

    def prompts(self, **of):
        file = self.folder / "prompts.json"
        file.write_text(json.dumps({"decode": [1, 2, 3], "prefill": [4, 5, 6, 7], "batch": [[1, 2]] * 8} | of), encoding="utf-8")
        return file

    def test_a_gpu_measures_the_first_token_and_each_step_after_the_prompt(self):
        module = self.program("gpu_peer")
        for more, seconds in (((), LATER), (("--compile",), COMPILED)):
            self.model.seen, self.model.calls = set(), []
            result = self.run_main(module, "--model", "m", "--new-tokens", 6, "--rounds", 3, "--prompt-tokens", 20, "--batches", 1, 4, *more)
            self.assertEqual(self.loaded[-1], ("m", "the type bfloat16"))
            self.assertEqual(self.model.device, "cuda")
            self.assertEqual(result, {"version": "transformers 5.0, PyTorch 2.9", "ttft_ms": 1000 * FIRST, "decode": [
                {"batch": batch, "tokens_per_s": batch / seconds, "ms_per_step": 1000 * seconds} for batch in (1, 4)]})
            prompts = [call for call in self.model.calls if call[2] > 1]
            self.assertEqual([call[1:3] for call in prompts], [(1, 20)] * 6 + [(1, module.DECODE_PROMPT)] * 6 + [(4, module.DECODE_PROMPT)] * 6)
            self.assertEqual({call[0] for call in self.model.calls if call[2] == 1}, {seconds})
            self.assertEqual([call[1] for call in self.model.calls if call[2] == 1], [1] * 5 * 6 + [4] * 5 * 6)
            self.assertTrue(all(0 <= token < VOCABULARY for call in prompts for row in call[4] for token in row))
            self.assertGreater(len(set(prompts[0][4][0])), 5)
        self.assertEqual(self.compile_options, {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False})

    def test_transformers_is_measured_from_the_first_token_on(self):
        module, file = self.program("peer_transformers"), self.prompts()
        usual = ("--model", "m", "--prompts", file, "--threads", 3, "--new-tokens", 5)
        result = self.run_main(module, *usual)
        self.assertEqual((self.threads, self.loaded), (3, [("m", "the type float32")]))
        self.assertEqual(result, {
            "version": "transformers 5.0, PyTorch 2.9", "prompt_ms": 1000 * (1 + FIRST), "decode_tokens_per_s": 1 / LATER, "token_ids": [4, 5, 6, 7, 8],
            "prefill_ms": [1000 * (1 + FIRST)] * 3, "prefill_token": 8, "batch_tokens_per_s": 8 / LATER,
            "gaps": [3.0, 4.0, 5.0, 6.0, 7.0], "prefill_gap": 4.0})
        self.assertEqual([call[:3] for call in self.model.calls if call[0] in (1, 8) and len(call) == 4],
                         [(1, 3, 8), (1, 3, 5), *[(1, 4, 1)] * 4, (8, 2, 4), (8, 2, 5)])
        self.model.calls = []
        half = self.run_main(module, *usual, "--cpu-time", "--dtype", "bfloat16", "--compiled")
        self.assertEqual((half["decode_tokens_per_s"], half["prefill_ms"][0]), (2 / LATER, 500 * (1 + FIRST)))
        self.assertEqual(self.loaded[-1][1], "the type bfloat16")
        runs = [call for call in self.model.calls if len(call) == 4]
        # A warm-up has the cache of the run itself.
        self.assertEqual([call[2] for call in runs if call[1] != 4], [5, 5, 5, 5])
        self.assertEqual({call[3]["cache_implementation"] for call in runs}, {"static"})
        self.assertTrue(runs[0][3]["compile_config"]._compile_all_devices)
        without = self.run_main(module, "--model", "m", "--prompts", self.prompts(prefill=[], batch=[]), "--threads", 1, "--new-tokens", 5)
        self.assertEqual(sorted(without), ["decode_tokens_per_s", "gaps", "prompt_ms", "token_ids", "version"])

    def test_ctranslate2_is_measured_from_the_first_step_on(self):
        test, engines = self, []

        class Generator:
            def __init__(self, model, **settings):
                engines.append((model, settings))

            def generate_batch(self, rows, callback, beam_size, sampling_topk, min_length, max_length, include_prompt_in_result, max_batch_size):
                test.assertEqual((beam_size, sampling_topk, include_prompt_in_result, max_batch_size), (1, 1, False, 0))
                test.assertEqual(min_length, max_length)
                test.assertTrue(all(word == f"w{word[1:]}" for row in rows for word in row))
                for step in range(max_length + test.more):
                    test.now += LATER if step else FIRST
                    for _ in rows:
                        test.assertFalse(callback(SimpleNamespace(step=step)))
                last = [int(row[-1][1:]) for row in rows]
                return [SimpleNamespace(sequences_ids=[[one + n for n in range(1, max_length + 1)]]) for one in last]

        class Converter:
            def __init__(self, source):
                self.source = source

            def convert(self, target, quantization, force):
                engines.append((self.source, target, quantization, force))

        ctranslate2 = ModuleType("ctranslate2")
        ctranslate2.__dict__.update(__version__="4.6", Generator=Generator, converters=SimpleNamespace(TransformersConverter=Converter),
                                    get_supported_compute_types=lambda device: {"cpu": {"float32", "int8"}}[device])
        self.enterContext(mock.patch.dict(sys.modules, ctranslate2=ctranslate2))
        module, file, self.more = self.program("peer_ctranslate2"), self.prompts(), 0
        (self.folder / "vocabulary.json").write_text(json.dumps([f"w{n}" for n in range(VOCABULARY)]), encoding="utf-8")
        usual = ("--model", self.folder, "--prompts", file, "--threads", 3, "--new-tokens", 5)
        self.assertEqual(self.run_main(module, *usual, "--compute-type", "int8"), {
            "version": "CTranslate2 4.6", "prompt_ms": 1000 * FIRST, "decode_tokens_per_s": 1 / LATER, "token_ids": [4, 5, 6, 7, 8], "prefill_ms": [1000 * FIRST] * 3,
            "prefill_token": 8, "batch_tokens_per_s": 8 / LATER})
        self.assertEqual(engines.pop(), (str(self.folder), {"device": "cpu", "compute_type": "int8", "inter_threads": 1, "intra_threads": 3}))
        self.assertEqual(self.run_main(module, *usual, "--cpu-time")["batch_tokens_per_s"], 16 / LATER)
        self.assertEqual(engines.pop()[1]["compute_type"], "float32")
        with self.assertRaisesRegex(SystemExit, "^CTranslate2 does not compute in bfloat16 on this processor$"):
            self.run_main(module, *usual, "--compute-type", "bfloat16")
        self.more = 1
        with self.assertRaisesRegex(SystemExit, "^9 steps instead of 8$"):  # in the warm-up
            self.run_main(module, *usual)
        with mock.patch.object(sys, "argv", ["program", "--convert", "from", "to"]):
            module.main()
        self.assertEqual(engines.pop(), ("from", "to", "float32", True))

    def openvino(self):
        """(the program, what its engine was given). The engine's model takes three of the four inputs, and its state
        follows the positions."""
        test, given = self, []

        class Numbers(Array):
            def astype(self, _):
                return self

            def argmax(self, axis):
                return Numbers([row.index(max(row)) for row in self.rows])

            def __getitem__(self, at):
                found = [[one] for one in self.rows] if at == (slice(None), None) else Array.__getitem__(self, at).rows
                return Numbers(found) if isinstance(found, list) else found

        class Request:
            def reset_state(self):
                self.length = 0

            def infer(self, inputs, share_inputs, share_outputs):
                tokens, places = inputs["input_ids"].tolist(), inputs["position_ids"].tolist()
                test.assertEqual(sorted(inputs), ["attention_mask", "input_ids", "position_ids"])  # not beam_idx
                test.assertEqual(places, [list(range(self.length, self.length + len(row))) for row in tokens])
                self.length += len(tokens[0])
                test.assertEqual(inputs["attention_mask"].tolist(), [[1] * self.length for _ in tokens])
                test.now += FIRST if len(tokens[0]) > 1 else LATER
                return {"logits": Numbers([[[float(n == (token + 1) % VOCABULARY) for n in range(VOCABULARY)] for token in row] for row in tokens])}

        class Core:
            def read_model(self, file):
                return file

            def compile_model(self, model, device, settings):
                given.append((model, device, settings))
                inputs = [SimpleNamespace(names={name}) for name in ("input_ids", "attention_mask", "position_ids")]
                return SimpleNamespace(create_infer_request=Request, inputs=inputs)

        openvino, numpy = ModuleType("openvino"), ModuleType("numpy")
        openvino.__dict__.update(Core=Core, opset13=None, get_version=lambda: "2025.3.0-19807-abc",
                                 save_model=lambda model, file, compress_to_fp16: given.append((model, file, compress_to_fp16)))
        numpy.__dict__.update(int64=None, int32=None, array=lambda rows, dtype=None: Numbers(rows), ones=lambda shape, _: Numbers([[1] * shape[1] for _ in range(shape[0])]),
                              arange=lambda *ends, dtype: Numbers(list(range(*ends))), tile=lambda row, times: Numbers([row.tolist()] * times[0]))
        self.enterContext(mock.patch.dict(sys.modules, openvino=openvino, numpy=numpy))
        return self.program("peer_openvino"), given

    def test_openvino_computes_in_the_type_that_is_asked_for(self):
        module, given = self.openvino()
        for dtype, cache, computed, kept, more in (
                ("float32", None, "f32", "f32", {}), ("bfloat16", None, "bf16", "bf16", {}), ("bfloat16", "int8", "bf16", "u8", {}),
                ("float32", "float16", "f32", "f16", {}), ("int8", None, "f32", "bf16", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}),
                ("int8", "int4", "f32", "u4", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32})):
            module.compiled(SimpleNamespace(dtype=dtype, cache_dtype=cache, threads=3, model="m"))
            self.assertEqual(given.pop(), (Path("m/openvino_model.xml"), "CPU", {
                "INFERENCE_NUM_THREADS": 3, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": computed,
                "KV_CACHE_PRECISION": kept, **more}))

    def test_openvino_is_measured_from_the_first_token_on(self):
        module, given = self.openvino()
        usual = ("--model", "m", "--prompts", self.prompts(), "--threads", 3, "--new-tokens", 5)
        self.assertEqual(self.run_main(module, *usual), {
            "version": "OpenVINO 2025.3.0", "prompt_ms": 1000 * FIRST, "decode_tokens_per_s": 1 / LATER, "token_ids": [4, 5, 6, 7, 8], "prefill_ms": [1000 * FIRST] * 3,
            "prefill_token": 8, "batch_tokens_per_s": 8 / LATER})
        self.assertEqual(given.pop()[2]["INFERENCE_NUM_THREADS"], 3)
        self.assertEqual(self.run_main(module, *usual, "--cpu-time")["batch_tokens_per_s"], 16 / LATER)

    def test_openvino_s_model_is_converted_in_its_type_and_keeps_the_last_token(self):
        module, given = self.openvino()

        class Exported:
            @staticmethod
            def from_pretrained(source, **options):
                given.append((source, options))
                return SimpleNamespace(save_pretrained=given.append)

        intel = ModuleType("optimum.intel")
        intel.__dict__.update(OVModelForCausalLM=Exported, OVWeightQuantizationConfig=lambda bits: f"{bits} bits")
        self.enterContext(mock.patch.dict(sys.modules, {"optimum": ModuleType("optimum"), "optimum.intel": intel}))
        self.enterContext(mock.patch.object(module, "keep_last_token", lambda model: given.append(("last token", model))))
        for dtype, choice in ((("--dtype", "int8"), {"quantization_config": "8 bits"}), ((), {"load_in_8bit": False})):
            given.clear()
            with mock.patch.object(sys, "argv", ["program", "--convert", "from", "to", *dtype]):
                module.main()
            exported = Path("to/exported/openvino_model.xml")
            self.assertEqual(given, [("from", {"export": True, "compile": False, **choice}), Path("to/exported"), ("last token", exported),
                                     (exported, Path("to/openvino_model.xml"), False)])

    def test_every_speed_is_that_of_the_tokens_after_the_first(self):
        def generate(rows, count):
            return [rows[0][0] + n for n in range(count)], 3.0, 0.25 * len(rows) * (count - 1)

        prompts = {"decode": [5], "prefill": [7, 8], "batch": [[1], [2], [3]]}
        self.assertEqual(peer_runs.measured(generate, prompts, 9), {
            "prompt_ms": 3000.0, "decode_tokens_per_s": 4.0, "token_ids": list(range(5, 14)), "prefill_ms": [3000.0] * 3, "prefill_token": 7,
            "batch_tokens_per_s": 4.0})


if __name__ == "__main__":
    unittest.main()
