"""tools/verify on copies of the small embedded model, each spoilt in one way."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import struct
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import ROOT, Limited, load, run

BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
GOLDEN = json.loads((ROOT / "tools/known_models.json").read_text())["tales-1m"]["golden"]


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    data = content[8 + length:]
    header = json.loads(content[8:8 + length])
    return {name: (tensor["dtype"], tensor["shape"], data[slice(*tensor["data_offsets"])])
            for name, tensor in header.items() if name != "__metadata__"}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Verify(Limited):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "tales-1m"
        shutil.copytree(ROOT / "models/tales-1m", self.folder)
        self.weights = self.folder / "model.safetensors"
        self.program = Path(folder.name) / "program"  # not there unless a test writes it

    def verify(self, *arguments):
        """(exit status, {check: line})"""
        done = run("tools/verify", self.folder, "--program", self.program, *arguments)
        self.assertEqual(done.stderr, "")
        return done.returncode, {line[6:].split(":")[0]: line for line in done.stdout.splitlines()}

    def assert_fails(self, check, *words):
        status, lines = self.verify()
        self.assertEqual(status, 1, lines)
        self.assertTrue(lines[check].startswith("FAIL"), lines)
        for word in words:
            self.assertIn(word, lines[check])

    def rewrite(self, change):
        tensors = read_safetensors(self.weights)
        change(tensors)
        write_safetensors(self.weights, tensors)

    def replace(self, name, old, new):
        path = self.folder / name
        content = path.read_bytes()
        self.assertIn(old, content)
        path.write_bytes(content.replace(old, new, 1))

    def test_a_good_folder(self):
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertEqual([line[:4] for line in lines.values()], ["ok  "] * 8 + ["skip"])

    def test_it_says_which_unicode_words_are_cut_by(self):
        _, lines = self.verify()
        self.assertRegex(lines["tokenizer"], r"; PCRE2 uses Unicode \d+\.\d+\.\d+$")

    def test_the_step_that_goes_on_beyond_the_context_is_the_usual_program(self):
        said = "".join(run("tools/verify", "--help").stdout.split())
        self.assertIn(f"(default:{ROOT}/build/steps/03-context-window)", said)

    def test_the_larger_model_is_good_too(self):
        done = run("tools/verify", "models/tales-6m", "--program", self.program, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_prefix_masks_and_a_tied_head_are_fine(self):
        def change(tensors):
            for name in list(tensors):
                tensors["transformer." + name] = tensors.pop(name)
            tensors["transformer.h.0.attn.bias"] = ("U8", [1, 1, 2, 2], b"\1\0\1\1")
            tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
        self.rewrite(change)
        status, lines = self.verify("--as", "something-else")
        self.assertEqual(status, 0, lines)
        self.assertNotIn("ignored", lines["tensors"])

    def test_float_formats(self):
        for dtype, pack in {"F32": lambda value: struct.pack("<f", value),
                            "BF16": lambda value: struct.pack("<f", value)[2:]}.items():
            with self.subTest(dtype):
                def change(tensors):
                    for name, (old, shape, data) in tensors.items():
                        values = (value for value, in struct.iter_unpack("<e", data))
                        if old == "F16":
                            tensors[name] = (dtype, shape, b"".join(map(pack, values)))
                shutil.copy(ROOT / "models/tales-1m/model.safetensors", self.weights)
                self.rewrite(change)
                _, lines = self.verify()
                for check in ("tensors", "numbers", "sums"):
                    self.assertTrue(lines[check].startswith("ok"), lines[check])
                self.assertIn(dtype, lines["tensors"])

    def test_a_missing_file(self):
        (self.folder / "merges.txt").unlink()
        self.assert_fails("files", "merges.txt", "tools/download")

    def test_a_folder_that_is_not_there(self):
        shutil.rmtree(self.folder)
        self.assert_fails("files", "config.json")

    def test_config_of_another_model(self):
        self.replace("config.json", b'"n_layer": 2', b'"n_layer": 3')
        self.assert_fails("tensors", "h.2.", "config.json")

    def test_a_width_of_the_mlp_of_its_own(self):
        self.replace("config.json", b'"n_layer": 2', b'"n_layer": 2, "n_inner": 500')
        self.assert_fails("tensors", "mlp.c_fc", "[128, 512]", "[128, 500]")

    def test_the_engine_itself_refuses_a_setting(self):
        self.program = BUILD / "steps/03-context-window"
        if not self.program.exists():
            self.skipTest("step 03 is not built")
        self.replace("config.json", b"gelu_new", b"relu")
        self.assert_fails("continuation", "activation_function", '"relu"', '"gelu_new"')

    def test_a_quantized_model(self):
        self.replace("config.json", b'"n_layer": 2', b'"n_layer": 2, "quantization_config": {"bits": 4}')
        self.assert_fails("config", "quantization_config")

    def test_a_missing_tensor(self):
        self.rewrite(lambda tensors: tensors.pop("h.1.mlp.c_fc.bias"))
        self.assert_fails("tensors", "1 of 28", "h.1.mlp.c_fc.bias")

    def test_a_transposed_matrix(self):
        def change(tensors):
            dtype, shape, data = tensors["h.0.attn.c_attn.weight"]
            tensors["h.0.attn.c_attn.weight"] = (dtype, shape[::-1], data)
        self.rewrite(change)
        self.assert_fails("tensors", "h.0.attn.c_attn.weight", "transposed", "[128, 384]")

    def test_a_matrix_of_another_size(self):
        def change(tensors):
            dtype, _, data = tensors["wpe.weight"]
            tensors["wpe.weight"] = (dtype, [511, 128], data[:511 * 256])
        self.rewrite(change)
        self.assert_fails("tensors", "wpe.weight", "[511, 128]", "[512, 128]")

    def test_an_untied_head(self):
        def change(tensors):
            dtype, shape, data = tensors["wte.weight"]
            tensors["lm_head.weight"] = (dtype, shape, data[256:] + data[:256])  # rows of 128 numbers, one further
        self.rewrite(change)
        status, lines = self.verify("--as", "something-else")
        self.assertEqual(status, 0, lines)
        self.assertIn("29 tensors", lines["tensors"])
        self.assertIn("an output layer of its own", lines["tensors"])

    def test_an_untied_head_of_another_shape(self):
        self.rewrite(lambda tensors: tensors.update({"lm_head.weight": ("BF16", [2, 128], bytes(512))}))
        self.assert_fails("tensors", "lm_head.weight", "[2, 128]", "[4096, 128]")

    def test_an_untied_head_that_is_not_there(self):
        self.replace("config.json", b'"tie_word_embeddings": true', b'"tie_word_embeddings": false')
        self.assert_fails("tensors", "1 of 29", "lm_head.weight")

    def spoil(self, name, index, value):
        def change(tensors):
            dtype, shape, data = tensors[name]
            tensors[name] = (dtype, shape, data[:2 * index] + struct.pack("<e", value) + data[2 * index + 2:])
        self.rewrite(change)

    def test_nan(self):
        self.spoil("h.1.mlp.c_fc.weight", 17, float("nan"))
        self.assert_fails("numbers", "h.1.mlp.c_fc.weight", "nan", "element 17")

    def test_an_embedding_whose_last_part_is_zero_is_fine_and_all_zeros_are_not(self):
        for kept, words in ((2000, "ok  "), (0, "FAIL")):
            def change(tensors):
                dtype, shape, data = tensors["wte.weight"]
                tensors["wte.weight"] = (dtype, shape, data[:kept] + bytes(len(data) - kept))
            self.rewrite(change)
            with mock.patch.object(VERIFY, "CHUNK", 1 << 16):  # of 2^19 numbers
                _, lines = verify_here(self.folder)
            self.assertTrue(lines["numbers"].startswith(words), lines)

    def test_a_tensor_that_is_read_in_parts_is_judged_as_a_whole(self):
        size = len(read_safetensors(self.weights)["wte.weight"][2]) // 2
        for part in (1 << 10, 1 << 16, size - 1, size, size + 1):
            with mock.patch.object(VERIFY, "CHUNK", part):
                status, lines = verify_here(self.folder)
                self.assertEqual(status, 0, lines)
                self.assertTrue(lines["sums"].startswith("ok"), lines)  # of the first part alone they would be others
        for index in (12345, size - 1):
            self.spoil("wte.weight", index, float("inf"))
            with mock.patch.object(VERIFY, "CHUNK", 1 << 16):
                self.assertIn(f"wte.weight has inf at element {index};", verify_here(self.folder)[1]["numbers"])
            self.spoil("wte.weight", index, 0.0)

    def test_infinity(self):
        self.spoil("h.0.ln_1.bias", 3, float("-inf"))
        self.assert_fails("numbers", "h.0.ln_1.bias", "inf", "element 3")

    def test_a_layer_norm_of_zeros(self):
        def change(tensors):
            dtype, shape, data = tensors["h.1.ln_2.weight"]
            tensors["h.1.ln_2.weight"] = (dtype, shape, bytes(len(data)))
        self.rewrite(change)
        self.assert_fails("numbers", "h.1.ln_2.weight", "mean of 0")

    def test_other_weights_of_the_same_shape(self):
        def change(tensors):
            dtype, shape, data = tensors["ln_f.weight"]
            tensors["ln_f.weight"] = (dtype, shape, struct.pack("<e", 1) * 128)
        self.rewrite(change)
        self.assert_fails("sums", "ln_f.weight", "128.000")

    def test_a_truncated_file(self):
        self.weights.write_bytes(self.weights.read_bytes()[:-1000])
        self.assert_fails("header", "truncated", str(self.weights.stat().st_size))

    def test_a_pointer_in_place_of_the_weights(self):
        self.weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1975584\n")
        self.assert_fails("header", "Git LFS pointer")

    def test_headers_that_make_no_sense(self):
        for header in (b"", b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b"{", b"\xff\xff"):
            with self.subTest(header):
                self.weights.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
                self.assert_fails("header", "download it again")
        self.weights.write_bytes(b"")
        self.assert_fails("header", "0 bytes")

    def test_a_vocabulary_of_another_model(self):
        shutil.copy(ROOT / "tests/reference/gpt2-tokenizer/vocab.json", self.folder)
        self.assert_fails("tokenizer", "50257", "4096", "another model")

    def test_one_token_more_than_the_model_has(self):
        path = self.folder / "vocab.json"
        vocab = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(vocab | {"zzz": len(vocab)}), encoding="utf-8")
        status, lines = self.verify("--as", "something-else")
        self.assertEqual(status, 1)
        self.assertIn("vocab.json has 4097 tokens, but the model 4096", lines["tokenizer"])

    def test_flipped_bytes_in_the_vocabulary(self):
        path = self.folder / "vocab.json"
        content = bytearray(path.read_bytes())
        content[30_000:30_002] = bytes(byte ^ 1 for byte in content[30_000:30_002])
        path.write_bytes(content)
        self.assert_fails("hashes", "vocab.json", "SHA-256")

    def test_a_changed_token_is_seen_without_a_hash(self):
        self.replace("vocab.json", '"Ġthe"'.encode(), '"Ġthx"'.encode())
        status, lines = self.verify("--as", "something-else")
        self.assertEqual(status, 1)
        self.assertTrue(lines["tokenizer"].startswith("FAIL"), lines)

    def test_merges_of_another_model(self):
        shutil.copy(ROOT / "tests/reference/gpt2-tokenizer/merges.txt", self.folder)
        self.assert_fails("tokenizer", "merge ")

    def test_another_end_of_text(self):
        self.replace("config.json", b'"eos_token_id": 4095', b'"eos_token_id": 0')
        self.assert_fails("tokenizer", "<|endoftext|>", "4095")

    def write_program(self, prompt_ids, ids, status=0):
        answer = json.dumps({"sequences": [{"prompt_token_ids": prompt_ids, "token_ids": ids}]})
        self.program.write_text(f"#!/bin/sh\necho '{answer}'\necho broken >&2\nexit {status}\n")
        self.program.chmod(0o755)

    def test_the_known_continuation(self):
        self.write_program(GOLDEN["prompt_ids"], GOLDEN["ids"])
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertIn("24 greedy tokens", lines["continuation"])

    def test_a_program_continues_a_model_of_which_no_text_is_known(self):
        self.write_program([1], [2])
        status, lines = self.verify("--as", "about")
        self.assertEqual(status, 0, lines)
        self.assertTrue(lines["continuation"].startswith("ok"), lines)
        self.assertIn("not known", lines["continuation"])

    def test_another_continuation(self):
        self.write_program(GOLDEN["prompt_ids"], GOLDEN["ids"][:5] + [7] + GOLDEN["ids"][6:])
        self.assert_fails("continuation", "new token 5 is [7]", "weights or the computation")

    def test_a_short_continuation(self):
        self.write_program(GOLDEN["prompt_ids"], GOLDEN["ids"][:-1])
        self.assert_fails("continuation", "new token 23 is []")

    def test_another_encoding_of_the_prompt(self):
        self.write_program([1], GOLDEN["ids"])
        self.assert_fails("continuation", "tokenizer is wrong", f"{GOLDEN['prompt']!r} became the tokens [1], not {GOLDEN['prompt_ids']}:")

    def test_a_program_that_fails(self):
        self.write_program([], [], status=1)
        self.assert_fails("continuation", "program failed: broken")

    def test_the_reference_tokenizer_is_known(self):
        """The hashes of GPT-2's tokenizer are those of the copy that the other tests use."""
        known = load("verify").json.loads((ROOT / "tools/known_models.json").read_text())["gpt2"]["sha256"]
        for name in ("vocab.json", "merges.txt"):
            content = (ROOT / "tests/reference/gpt2-tokenizer" / name).read_bytes()
            self.assertIn(load("verify").hashlib.sha256(content).hexdigest(), known[name])


VERIFY = load("verify")


def verify_here(path):
    """(exit status, {check: line}), without a process of its own."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        status = VERIFY.main([str(path), "--program", str(path / "none")])
    return status, {line[6:].split(":")[0]: line for line in shown.getvalue().splitlines()}


SHAPE = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 4, "intermediate_size": 6,
         "max_position_embeddings": 8, "vocab_size": 5}
LLAMA = {"model.embed_tokens.weight": [5, 4], "model.norm.weight": [4], "lm_head.weight": [5, 4],
         "model.layers.0.input_layernorm.weight": [4], "model.layers.0.post_attention_layernorm.weight": [4],
         "model.layers.0.self_attn.q_proj.weight": [4, 4], "model.layers.0.self_attn.k_proj.weight": [2, 4],
         "model.layers.0.self_attn.v_proj.weight": [2, 4], "model.layers.0.self_attn.o_proj.weight": [4, 4],
         "model.layers.0.mlp.gate_proj.weight": [6, 4], "model.layers.0.mlp.up_proj.weight": [6, 4],
         "model.layers.0.mlp.down_proj.weight": [4, 6]}
ATTENTION = "model.layers.0.self_attn."
NEOX = {"gpt_neox.embed_in.weight": [5, 4], "embed_out.weight": [5, 4],
        **{f"gpt_neox.{name}.{kind}": [4] for kind in ("weight", "bias")
           for name in ("final_layer_norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm")},
        "gpt_neox.layers.0.attention.query_key_value.weight": [12, 4], "gpt_neox.layers.0.attention.query_key_value.bias": [12],
        "gpt_neox.layers.0.attention.dense.weight": [4, 4], "gpt_neox.layers.0.attention.dense.bias": [4],
        "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": [6, 4], "gpt_neox.layers.0.mlp.dense_h_to_4h.bias": [6],
        "gpt_neox.layers.0.mlp.dense_4h_to_h.weight": [4, 6], "gpt_neox.layers.0.mlp.dense_4h_to_h.bias": [4]}
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "olmo": {name: shape for name, shape in LLAMA.items() if "norm" not in name},
    "qwen2": {**LLAMA, ATTENTION + "q_proj.bias": [4], ATTENTION + "k_proj.bias": [2], ATTENTION + "v_proj.bias": [2]},
    "qwen3": {**LLAMA, ATTENTION + "q_norm.weight": [2], ATTENTION + "k_norm.weight": [2]},
    "gemma3_text": {**LLAMA, ATTENTION + "q_norm.weight": [2], ATTENTION + "k_norm.weight": [2],
                    "model.layers.0.pre_feedforward_layernorm.weight": [4], "model.layers.0.post_feedforward_layernorm.weight": [4]},
    "gpt_neox": NEOX,
}
MLP = "model.layers.0.mlp."
DENSE = {name: shape for name, shape in LLAMA.items() if ".mlp." not in name}
EXPERTS = {MLP + "gate.weight": [3, 4], **{f"{MLP}experts.{expert}.{name}.weight": shape for expert in range(3) for name, shape in
                                           (("gate_proj", [6, 4]), ("up_proj", [6, 4]), ("down_proj", [4, 6]))}}
MIXTURES = {
    "olmoe": {**DENSE, **EXPERTS, ATTENTION + "q_norm.weight": [4], ATTENTION + "k_norm.weight": [2]},
    "qwen3_moe": {**DENSE, **EXPERTS, ATTENTION + "q_norm.weight": [2], ATTENTION + "k_norm.weight": [2]},
    "mixtral": {**DENSE, **{name.replace("gate_proj", "w1").replace("up_proj", "w3").replace("down_proj", "w2").replace(
        "mlp", "block_sparse_moe"): shape for name, shape in EXPERTS.items()}},
}


def filled(shapes):
    """Tensors of ones, the output layer of twos."""
    return {name: ("F32", shape, struct.pack("<f", 2 if "head" in name or "out." in name else 1) * math.prod(shape))
            for name, shape in shapes.items()}


class VerifyFamilies(Limited):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.config = {"model_type": "llama", **SHAPE, "eos_token_id": 4}
        self.tokens = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]},
                       "added_tokens": [{"id": 4, "content": "<|end|>"}]}
        self.files = {}  # name: content of other JSON files
        self.tensors = filled(LLAMA)

    def verify(self):
        """(exit status, {check: line})"""
        for name, content in {"config.json": self.config, "tokenizer.json": self.tokens, **self.files}.items():
            (self.folder / name).write_text(json.dumps(content))
        if "model.safetensors.index.json" not in self.files:
            write_safetensors(self.folder / "model.safetensors", self.tensors)
        return verify_here(self.folder)

    def assert_fails(self, check, *words):
        status, lines = self.verify()
        self.assertEqual(status, 1, lines)
        self.assertTrue(lines[check].startswith("FAIL"), lines)
        for word in words:
            self.assertIn(word, lines[check])

    def test_every_family(self):
        for family, shapes in FAMILIES.items():
            with self.subTest(family):
                self.config = {"model_type": family, **SHAPE, "eos_token_id": [4]}
                if family == "gpt_neox":
                    del self.config["num_key_value_heads"]
                if family == "gemma3_text":  # whose heads have 256 features and whose head is tied, if nothing is said
                    self.config.update(head_dim=2, tie_word_embeddings=False)
                self.tensors = filled(shapes)
                status, lines = self.verify()
                self.assertEqual(status, 0, lines)
                self.assertIn(f"{len(shapes)} tensors of the right shape, F32; an output layer of its own", lines["tensors"])
                for name in shapes:
                    self.tensors = filled({other: shape for other, shape in shapes.items() if other != name})
                    self.assert_fails("tensors", "1 of", name)

    def test_a_mixture_with_matrices_of_each_expert_or_tensors_of_all(self):
        for family, shapes in MIXTURES.items():
            fused = {**{name: shape for name, shape in shapes.items() if "experts" not in name and "moe" not in name},
                     MLP + "gate.weight": [3, 4], MLP + "experts.gate_up_proj": [3, 12, 4], MLP + "experts.down_proj": [3, 4, 6]}
            for form in (shapes, fused):
                with self.subTest(family, tensors=len(form)):
                    self.config = {"model_type": family, **SHAPE, "eos_token_id": 4, "num_experts": 3, "num_experts_per_tok": 2,
                                   "moe_intermediate_size": 6}
                    self.tensors = filled(form)
                    status, lines = self.verify()
                    self.assertEqual(status, 0, lines)
                    self.assertIn(f"{len(form)} tensors of the right shape", lines["tensors"])
                    for name in form:
                        self.tensors = filled({other: shape for other, shape in form.items() if other != name})
                        # Without the tensor by which a form is known, those of another form are missing.
                        self.assert_fails("tensors", " tensors missing")

    def test_what_a_mixture_says_of_its_experts(self):
        self.config = {"model_type": "qwen3_moe", **SHAPE, "eos_token_id": 4, "num_local_experts": 3, "num_experts_per_tok": 2,
                       "moe_intermediate_size": 6}
        self.tensors = filled(MIXTURES["qwen3_moe"])
        self.assertEqual(self.verify()[0], 0)
        for value in (0, 4, -1, "two"):
            self.config["num_experts_per_tok"] = value
            self.assert_fails("config", f"num_experts_per_tok is {value!r}", "from 1 to 3")
        self.config["num_experts_per_tok"] = 2
        for key, value in (("mlp_only_layers", [0]), ("decoder_sparse_step", 2)):  # the layer has one MLP
            self.config[key] = value
            self.assert_fails("tensors", "mlp.gate_proj.weight")
            self.tensors = filled({**DENSE, **{name: LLAMA[name] for name in LLAMA if ".mlp." in name},
                                   ATTENTION + "q_norm.weight": [2], ATTENTION + "k_norm.weight": [2]})
            self.assertEqual(self.verify()[0], 0)
            del self.config[key]
            self.tensors = filled(MIXTURES["qwen3_moe"])
        self.config["num_local_experts"] = 2
        self.assert_fails("tensors", "gate.weight is [3, 4], not [2, 4]")

    def test_buffers_of_older_files_are_fine_and_other_tensors_are_named(self):
        self.tensors = filled({**LLAMA, "model.layers.0.self_attn.rotary_emb.inv_freq": [1], "odd.weight": [1]})
        _, lines = self.verify()
        self.assertTrue(lines["tensors"].endswith("ignored: odd.weight"), lines)

    def test_a_tied_output_layer_need_not_be_there(self):
        self.config["tie_word_embeddings"] = True
        del self.tensors["lm_head.weight"]
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)

    def test_a_family_that_is_not_computed(self):
        self.config["model_type"] = "mamba"
        self.assert_fails("config", "'mamba'", "llama")

    def test_settings_are_left_to_the_engine(self):
        """It computes windows that no text exceeds, whatever their switch says."""
        self.config = {"model_type": "qwen2", **SHAPE, "eos_token_id": 4, "use_sliding_window": True}
        self.tensors = filled(FAMILIES["qwen2"])
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)

    def test_a_setting_of_another_type_or_size_ends_in_a_sentence(self):
        others = ("x", ["x"], [1], {"a": 1}, -1, 1.5, True, 1 << 31)
        for family in ("llama", "gpt2", "qwen3_moe"):
            base = {"model_type": family, **SHAPE, "eos_token_id": 4, "n_layer": 1, "n_head": 2, "n_embd": 4, "n_positions": 8,
                    "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
            for key in (*base, "head_dim", "n_inner", "decoder_sparse_step", "mlp_only_layers", "tie_word_embeddings"):
                for value in others:
                    with self.subTest(family, key=key, value=value):
                        self.config = {**base, key: value}
                        self.assertIn(self.verify()[0], (0, 1))
        for key, words in (("num_hidden_layers", "no model has more than 1000 layers"), ("num_attention_heads", "not a multiple of"),
                           ("head_dim", "head_dim is 0.5, not a positive integer"),
                           ("num_key_value_heads", "num_key_value_heads is -1, not a positive integer")):
            self.config = {"model_type": "llama", **SHAPE, key: {"num_hidden_layers": 1001, "num_attention_heads": 3, "head_dim": 0.5,
                                                                 "num_key_value_heads": -1}[key]}
            self.assert_fails("config", words)
        self.config = {"model_type": "llama", **SHAPE, "num_hidden_layers": 1000}
        self.assert_fails("tensors", "8991 of 9003 tensors missing")
        for key, words in (("num_experts", "num_experts is 1001, not an integer from 1 to 1000"), ("decoder_sparse_step", "step is 1001 and"),
                           ("mlp_only_layers", "mlp_only_layers 1001, not")):
            self.config = {"model_type": "qwen3_moe", **SHAPE, key: 1001}
            if key == "decoder_sparse_step":
                self.config[key], words = "1", "decoder_sparse_step is '1' and mlp_only_layers []"
            self.assert_fails("config", words)

    def test_a_tokenizer_of_another_form_ends_in_a_sentence(self):
        model = self.tokens["model"]
        for change, words in [({"model": value}, "holds a model of the type") for value in ("x", [], None)] + [
                ({"added_tokens": value}, "lacks a vocabulary or merges") for value in ("x", {"a": 1})] + [
                ({"added_tokens": value}, 'an added token without "content"') for value in ([1], [{}], [{"id": 4, "content": [1]}])] + [
                ({"model": {**model, "vocab": value}}, "lacks a vocabulary or merges") for value in ("x", [], None)] + [
                ({"model": {**model, "vocab": {"a": value}}}, f"gives 'a' the id {value!r}") for value in ("x", -1, 5, True)] + [
                ({"model": {**model, "merges": value}}, "lacks a vocabulary or merges") for value in ("x", {}, None)] + [
                ({"model": {**model, "merges": ["a b", value]}}, "merge 1 in tokenizer.json, ")
                for value in (1, None, [1, 2], ["a"], ["a", "b", "c"], "", "a", "b a", ["b", "a"], ["c", "x"])]:
            with self.subTest(change):
                tokens, self.tokens = self.tokens, {**self.tokens, **change}
                self.assert_fails("tokenizer", words)
                self.tokens = tokens

    def test_norms_that_no_training_gives(self):
        for name in ("input_layernorm", "post_attention_layernorm"):
            for mean, fine in ((0.0, False), (0.002, True), (99.0, True), (101.0, False), (-1.0, False)):
                self.tensors = filled(LLAMA)
                tensor = f"model.layers.0.{name}.weight"
                self.tensors[tensor] = ("F32", [4], struct.pack("<4f", *[mean] * 4))
                if fine:
                    self.assertEqual(self.verify()[0], 0)
                else:
                    self.assert_fails("numbers", f"{tensor} has a mean of {mean:.4g};")

    def test_bytes_after_the_last_tensor(self):
        self.verify()
        path = self.folder / "model.safetensors"
        path.write_bytes(path.read_bytes() + bytes(3))
        status, lines = verify_here(self.folder)
        self.assertIn("model.safetensors has 3 bytes after its last tensor", lines["header"])

    def test_a_size_is_a_positive_whole_number(self):
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "intermediate_size", "vocab_size"):
            right = self.config[name]
            for wrong in (0, -1, True, 1.0, "4", None):
                with self.subTest(name, wrong=wrong):
                    self.config[name] = wrong
                    self.assert_fails("config", f"{name} is {wrong!r}, not a positive integer")
            self.config[name] = right
        self.assertEqual(self.verify()[0], 0)

    def test_heads_that_do_not_divide(self):
        self.config["num_key_value_heads"] = 3
        self.assert_fails("config", "num_attention_heads 2", "num_key_value_heads 3")

    def test_a_head_size_of_its_own(self):
        self.config["head_dim"] = 8
        self.assert_fails("tensors", ATTENTION, "[4, 4]", "[16, 4]")

    def with_shards(self, weight_map):
        names = sorted(self.tensors)
        write_safetensors(self.folder / "one.safetensors", {name: self.tensors[name] for name in names[:6]})
        write_safetensors(self.folder / "two.safetensors", {name: self.tensors[name] for name in names[6:]})
        whole = {name: "one.safetensors" if name in names[:6] else "two.safetensors" for name in names}
        self.files["model.safetensors.index.json"] = {"weight_map": {**whole, **weight_map}}

    def test_shards(self):
        self.with_shards({})
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertIn("12 tensors in 2 shards", lines["header"])

    def test_a_shard_that_is_missing(self):
        self.with_shards({"model.norm.weight": "three.safetensors"})
        self.assert_fails("header", "1 of 3 shards", "three.safetensors")

    def test_an_index_that_names_the_wrong_shard(self):
        self.with_shards({"lm_head.weight": "two.safetensors"})
        self.assert_fails("header", "lm_head.weight", "two.safetensors")

    def test_an_index_that_is_none(self):
        self.files["model.safetensors.index.json"] = {"weights": 1}
        self.assert_fails("header", "no weight_map")

    def test_a_shard_that_is_cut_off(self):
        self.with_shards({})
        path = self.folder / "two.safetensors"
        path.write_bytes(path.read_bytes()[:-4])
        self.assert_fails("header", "two.safetensors is truncated")

    def test_tokenizers_that_do_not_fit(self):
        self.config["eos_token_id"] = 9
        self.assert_fails("tokenizer", "eos_token_id 9")
        self.config["eos_token_id"] = 4
        self.tokens["added_tokens"][0]["id"] = 5
        self.assert_fails("tokenizer", "'<|end|>'", "5", "0 to 4")
        self.tokens["added_tokens"][0]["id"] = 4
        self.tokens["added_tokens"].append({"id": 7, "content": "a"})  # what is added counts, not the vocabulary's id
        self.assert_fails("tokenizer", "'a'", "the id 7", "0 to 4")
        del self.tokens["added_tokens"][1]
        for none in (None, []):
            with mock.patch.dict(self.tokens, added_tokens=none), mock.patch.dict(self.config, eos_token_id=3):
                self.assertEqual(self.verify()[0], 0)
        self.tokens["model"]["merges"] = ["a c"]
        self.assert_fails("tokenizer", "merge 0", "'a c'")
        self.tokens["model"]["merges"] = [["a", "b"]]
        self.assertEqual(self.verify()[0], 0)
        # A piece may have a blank: the first one in a line of the older form parts the two.
        self.config["vocab_size"], self.tokens["model"]["vocab"] = 5, {"a": 0, "b c": 1, "ab c": 2, "c": 3}
        for merge in ("a b c", ["a", "b c"]):
            self.tokens["model"]["merges"] = [merge]
            self.assertEqual(self.verify()[0], 0, merge)
        self.tokens["model"]["type"] = "WordPiece"
        self.assert_fails("tokenizer", "'WordPiece'", "BPE")

    def test_ids_beyond_the_vocabulary_in_other_files(self):
        for file, form in (("generation_config.json", lambda number: {"eos_token_id": [4, number]}),
                           ("generation_config.json", lambda number: {"bos_token_id": number, "eos_token_id": None}),
                           ("added_tokens.json", lambda number: {"<x>": number})):
            for number in (0, 4, 5, -1, "x", 1.5, True):
                with self.subTest(file, number=number):
                    self.files = {file: form(number)}
                    if number in (0, 4):
                        self.assertEqual(self.verify()[0], 0)
                    else:
                        self.assert_fails("tokenizer", file, f"the id {number!r}", "0 to 4")
                    (self.folder / file).unlink()


def gguf_text(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


class VerifyGguf(Limited):
    """On a small llama that is written here."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "small.gguf"
        self.metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 8,
                         "llama.embedding_length": 32, "llama.feed_forward_length": 32, "llama.attention.head_count": 2,
                         "llama.attention.head_count_kv": 1, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
                         "tokenizer.ggml.tokens": ["a", "b", "ab", "Ġ", "<|end|>"], "tokenizer.ggml.merges": ["a b"],
                         "tokenizer.ggml.eos_token_id": 4}
        self.tensors = {"token_embd.weight": [5, 32], "output_norm.weight": [32], "blk.0.attn_norm.weight": [32],
                        "blk.0.ffn_norm.weight": [32], "blk.0.attn_q.weight": [32, 32], "blk.0.attn_k.weight": [16, 32],
                        "blk.0.attn_v.weight": [16, 32], "blk.0.attn_output.weight": [32, 32], "blk.0.ffn_gate.weight": [32, 32],
                        "blk.0.ffn_up.weight": [32, 32], "blk.0.ffn_down.weight": [32, 32]}
        self.type = 3  # of matrices: Q4_1
        self.block = struct.pack("<ee", 1, 0) + bytes(16)
        self.numbers = 32  # in a block
        self.version = 3

    def content(self, metadata, tensors):
        pairs, entries, data = b"", b"", b""
        for key, value in metadata.items():
            pairs += gguf_text(key)
            if isinstance(value, str):
                pairs += struct.pack("<I", 8) + gguf_text(value)
            elif isinstance(value, list):
                pairs += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_text, value))
            else:
                pairs += struct.pack("<II", 4, value)
        for name, shape in tensors.items():
            is_matrix = len(shape) > 1
            entries += gguf_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
            entries += struct.pack("<IQ", self.type if is_matrix else 0, len(data))
            data += self.block * (math.prod(shape) // self.numbers) if is_matrix else struct.pack("<f", 1) * shape[0]
            data += bytes(-len(data) % 32)
        header = b"GGUF" + struct.pack("<IQQ", self.version, len(tensors), len(metadata)) + pairs + entries
        return header + bytes(-len(header) % 32) + data

    def verify(self, file=None):
        if file is None:
            self.file.write_bytes(self.content(self.metadata, self.tensors))
        return verify_here(file or self.file)

    def assert_fails(self, check, *words, file=None):
        status, lines = self.verify(file)
        self.assertEqual(status, 1, lines)
        self.assertTrue(lines[check].startswith("FAIL"), lines)
        for word in words:
            self.assertIn(word, lines[check])

    def test_a_good_file(self):
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertIn("11 tensors of the right shape, F32/Q4_1", lines["tensors"])
        self.assertIn("1 layers, width 32, 2 heads, 8 positions, 5 tokens", lines["config"])

    def test_a_tensor_has_one_to_four_dimensions(self):
        self.tensors["blk.0.attn_q.weight"] = [1, 1, 32, 32]
        self.assert_fails("tensors", "blk.0.attn_q.weight is [1, 1, 32, 32], not [32, 32]")
        self.tensors["blk.0.attn_q.weight"] = [1, 1, 1, 32, 32]
        self.assert_fails("files", "has a broken header")
        content = self.content(self.metadata, {"output_norm.weight": [32]})
        end_of_name = content.index(b"output_norm.weight") + len("output_norm.weight")
        self.file.write_bytes(content[:end_of_name] + struct.pack("<I", 0) + content[end_of_name + 12:])  # without its size
        self.assert_fails("files", "has a broken header", file=self.file)

    def test_an_output_layer_of_its_own_has_the_shape_of_the_embedding(self):
        self.tensors["output.weight"] = [5, 32]
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertTrue(lines["tensors"].endswith("12 tensors of the right shape, F32/Q4_1"), lines)
        self.tensors["output.weight"] = [4, 32]
        self.assert_fails("tensors", "output.weight is [4, 32], not [5, 32]")

    def test_a_folder_with_a_gguf_file_alone_is_that_file(self):
        self.verify()
        status, lines = self.verify(self.file.parent)
        self.assertEqual(status, 0, lines)
        self.assertIn("11 tensors of the right shape", lines["tensors"])
        (self.file.parent / "mmproj-small.gguf").write_bytes(b"not a language model")
        (self.file.parent / "README.md").write_text("about it")
        self.assertEqual(self.verify(self.file.parent)[0], 0)
        self.file.rename(self.file.with_name("SMALL.GGUF"))
        self.assertEqual(self.verify(self.file.parent)[0], 0)
        (self.file.parent / "other.gguf").write_bytes(b"GGUF")
        self.assert_fails("files", "has 2 models, so name one of them: SMALL.GGUF, other.gguf", file=self.file.parent)

    def test_a_folder_with_the_parts_of_a_gguf_file_is_its_model(self):
        parts = self.file.parent / "parts"
        parts.mkdir()
        for number in (1, 2):
            (parts / f"small-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
        self.assertEqual(VERIFY.model_in(parts).name, "small-00001-of-00002.gguf")

    def test_a_file_that_is_cut_off_anywhere(self):
        whole = self.content(self.metadata, self.tensors)
        for length in [*range(0, 900, 37), len(whole) - 1000, len(whole) - 1]:
            self.file.write_bytes(whole[:length])
            status, lines = self.verify(self.file)
            self.assertEqual(status, 1, (length, lines))

    def test_other_files(self):
        self.version = 1
        self.assert_fails("files", "version 1")
        self.file.write_bytes(b"<!DOCTYPE html>" * 10)
        self.assert_fails("files", "does not begin with GGUF", file=self.file)

    def test_a_family_that_is_not_computed(self):
        self.metadata["general.architecture"] = "mamba"
        self.assert_fails("config", "'mamba'", "llama")

    def test_a_gemma(self):
        def renamed(name):
            return name.replace("llama.", "gemma3.", 1) if name.startswith("llama.") else name
        self.metadata = {renamed(name): value for name, value in self.metadata.items()}
        self.metadata["general.architecture"] = "gemma3"
        self.metadata["gemma3.attention.key_length"] = 16
        for name, size in (("attn_q_norm", 16), ("attn_k_norm", 16), ("post_attention_norm", 32), ("post_ffw_norm", 32)):
            self.tensors[f"blk.0.{name}.weight"] = [size]
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertIn("15 tensors of the right shape", lines["tensors"])
        for name in [name for name in self.tensors if "norm" in name]:
            shape = self.tensors.pop(name)
            self.assert_fails("tensors", "1 of 15", name)
            self.tensors[name] = shape

    def test_experts(self):
        self.metadata.update({"llama.expert_count": 8, "llama.expert_used_count": 9})
        self.assert_fails("config", "expert_used_count is 9", "from 1 to 8")
        self.metadata["llama.expert_used_count"] = 2
        for part in ("gate", "up", "down"):
            self.tensors[f"blk.0.ffn_{part}_exps.weight"] = [8, *self.tensors.pop(f"blk.0.ffn_{part}.weight")]
        self.tensors["blk.0.ffn_gate_inp.weight"] = [8, 32]
        status, lines = self.verify()
        self.assertEqual(status, 0, lines)
        self.assertIn("12 tensors of the right shape", lines["tensors"])
        for name in [name for name in self.tensors if "exps" in name]:
            shape = self.tensors.pop(name)
            self.assert_fails("tensors", "1 of 12", name)
            self.tensors[name] = shape
        self.metadata = {name.replace("llama.", "qwen2."): value for name, value in self.metadata.items()}
        self.metadata["general.architecture"] = "qwen2"
        self.assert_fails("config", "qwen2.expert_count is 8")

    def test_a_value_of_another_type_ends_in_a_sentence(self):
        base = dict(self.metadata)
        for key in (*base, "general.alignment", "split.count", "llama.attention.key_length", "llama.expert_count",
                    "llama.expert_used_count", "llama.expert_feed_forward_length"):
            for value in ("x", "", [""], 0, 1, (1 << 32) - 1):
                with self.subTest(key, value=value):
                    self.metadata = {"llama.expert_count": 2, "llama.expert_used_count": 1, **base, key: value}
                    self.assertIn(self.verify()[0], (0, 1))
        for key, value, check, words in (
                ("llama.block_count", 1001, "config", "no model has more than 1000 layers"),
                ("llama.attention.key_length", "x", "config", "key_length is 'x', not a positive integer"),
                ("llama.attention.head_count_kv", 3, "config", "not a multiple of head_count_kv 3"),
                ("llama.expert_count", "x", "config", "expert_count is 'x', not an integer"),
                ("tokenizer.ggml.merges", 1, "tokenizer", "not lists of texts"),
                ("tokenizer.ggml.merges", ["a b", "ab"], "tokenizer", "has 'ab' at 1, which makes no token"),
                ("tokenizer.ggml.tokens", ["a"] * 6, "tokenizer", "the tokenizer has 6 tokens, but the model 5"),
                ("tokenizer.ggml.model", "bert", "tokenizer", "model is 'bert', and the engine reads 'gpt2' and 'llama'"),
                ("tokenizer.ggml.eos_token_id", "x", "tokenizer", "eos_token_id is 'x', but there are 5"),
                ("split.count", 2, "files", "is one of 2 parts"), ("general.alignment", 0, "files", "broken header")):
            self.metadata = {**base, key: value}
            self.assert_fails(check, words)

    def test_the_tool_knows_what_the_engine_reads(self):
        def quoted(file, pattern):
            return re.findall(r'"([^"]+)"', "".join(re.findall(pattern, (ROOT / file).read_text(), re.S)))
        self.assertEqual(sorted(VERIFY.GGUF_PRES), sorted(
            quoted("common/text/pre_types.cpp", r"if \(is\((.*?)\)\)") + quoted("common/text/pre_types.cpp", r"name == (\S+)\)")))
        rows = re.findall(r'^    \{"(\w+)", "(\w+)", "', (ROOT / "common/model/gguf_names.cpp").read_text(), re.M)
        self.assertEqual(sorted(VERIFY.GGUF_FAMILIES.items()), sorted(row for row in rows if row[1] != "mixtral"))

    def test_numbers_that_are_not_finite(self):
        for name in ("output_norm.weight", "blk.0.attn_q.weight"):
            for value in (float("nan"), float("-inf")):
                self.type, self.block, self.numbers = 30, struct.pack("<f", value if "attn_q" in name else 1)[2:], 1
                content = self.content(self.metadata, {name: self.tensors[name], **self.tensors})
                if "norm" in name:
                    at = content.index(struct.pack("<f", 1) * 32)
                    content = content[:at + 8] + struct.pack("<f", value) + content[at + 12:]
                self.file.write_bytes(content)
                self.assert_fails("numbers", "NaN or infinite in the million from 0 on", file=self.file)
                for part, begin in ((3, 0), (2, 2), (1, 2)) if "norm" in name else ():
                    with mock.patch.object(VERIFY, "CHUNK", part):
                        self.assertIn(f"{name} has a number that is NaN or infinite in the million from {begin} on;", verify_here(self.file)[1]["numbers"])

    def test_tensors_that_are_missing_or_of_another_shape(self):
        del self.tensors["blk.0.ffn_up.weight"]
        self.assert_fails("tensors", "1 of 11", "blk.0.ffn_up.weight")
        self.tensors["blk.0.ffn_up.weight"] = [16, 32]
        self.assert_fails("tensors", "blk.0.ffn_up.weight", "[16, 32]", "[32, 32]")

    def test_a_type_that_is_not_read(self):
        self.type = 10
        self.assert_fails("tensors", "of the type 10", "Q4_1")

    def test_a_scale_that_is_no_number(self):
        self.tensors = {name: [8 * size if size > 5 else size for size in shape] for name, shape in self.tensors.items()}
        self.metadata |= {"llama.embedding_length": 256, "llama.feed_forward_length": 256}
        # The bytes of a block, and where ggml-common.h has a scale or a minimum in it.
        for self.type, self.numbers, size, places in (
                (1, 1, 2, [0]), (2, 32, 18, [0]), (3, 32, 20, [0, 2]), (6, 32, 22, [0]), (7, 32, 24, [0, 2]), (8, 32, 34, [0]),
                (12, 256, 144, [0, 2]), (13, 256, 176, [0, 2]), (14, 256, 210, [208]), (20, 32, 18, [0])):
            self.block = bytes(size)
            status, lines = self.verify()
            self.assertEqual(status, 0, lines)
            for place in places:
                with self.subTest(type=self.type, place=place):
                    self.block = bytes(place) + struct.pack("<e", float("inf")) + bytes(size - place - 2)
                    self.assert_fails("numbers", "scale")

    def test_tokenizers_that_do_not_fit(self):
        self.metadata["tokenizer.ggml.pre"] = "tekken"
        self.assert_fails("tokenizer", "'tekken'", "smollm")
        self.metadata["tokenizer.ggml.pre"] = "gpt-2"
        self.metadata["tokenizer.ggml.merges"] = ["a Ġ"]
        self.assert_fails("tokenizer", "'a Ġ'")
        self.metadata["tokenizer.ggml.merges"] = ["a b"]
        self.metadata["tokenizer.ggml.eos_token_id"] = 5
        self.assert_fails("tokenizer", "eos_token_id is 5")

    def test_parts(self):
        names = list(self.tensors)
        for number, part in enumerate((names[:4], names[4:])):
            split = {"split.count": 2, "split.no": number}
            content = self.content({**(self.metadata if number == 0 else {}), **split}, {name: self.tensors[name] for name in part})
            (self.file.parent / f"small-0000{number + 1}-of-00002.gguf").write_bytes(content)
        for number in (1, 2):
            status, lines = self.verify(self.file.parent / f"small-0000{number}-of-00002.gguf")
            self.assertEqual(status, 0, lines)
            self.assertIn("11 tensors in 2 parts", lines["header"])
        (self.file.parent / "small-00002-of-00002.gguf").unlink()
        self.assert_fails("files", "small-00002-of-00002.gguf is missing", file=self.file.parent / "small-00001-of-00002.gguf")


if __name__ == "__main__":
    unittest.main()
