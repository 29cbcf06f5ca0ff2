"""tools/verify on copies of the small embedded model, each spoilt in one way."""

import json
import shutil
import struct
import tempfile
import unittest
from pathlib import Path

from support import ROOT, Limited, load, run

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
        self.assertRegex(lines["tokenizer"], r"; PCRE2 knows Unicode \d+\.\d+\.\d+$")

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

    def test_config_with_a_setting_that_is_not_computed(self):
        self.replace("config.json", b"gelu_new", b"relu")
        self.assert_fails("config", "'relu'", "'gelu_new'")

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

    def test_infinity(self):
        self.spoil("h.0.ln_1.bias", 3, float("-inf"))
        self.assert_fails("numbers", "h.0.ln_1.bias", "inf", "element 3")

    def test_a_layer_norm_of_zeros(self):
        def change(tensors):
            dtype, shape, data = tensors["h.1.ln_2.weight"]
            tensors["h.1.ln_2.weight"] = (dtype, shape, bytes(len(data)))
        self.rewrite(change)
        self.assert_fails("numbers", "h.1.ln_2.weight", "mean 0")

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

    def test_another_continuation(self):
        self.write_program(GOLDEN["prompt_ids"], GOLDEN["ids"][:5] + [7] + GOLDEN["ids"][6:])
        self.assert_fails("continuation", "new token 5 is [7]", "weights or the computation")

    def test_a_short_continuation(self):
        self.write_program(GOLDEN["prompt_ids"], GOLDEN["ids"][:-1])
        self.assert_fails("continuation", "new token 23 is []")

    def test_another_encoding_of_the_prompt(self):
        self.write_program([1], GOLDEN["ids"])
        self.assert_fails("continuation", "tokenizer is wrong")

    def test_a_program_that_fails(self):
        self.write_program([], [], status=1)
        self.assert_fails("continuation", "program failed: broken")

    def test_the_reference_tokenizer_is_known(self):
        """The hashes of GPT-2's tokenizer are those of the copy that the other tests use."""
        known = load("verify").json.loads((ROOT / "tools/known_models.json").read_text())["gpt2"]["sha256"]
        for name in ("vocab.json", "merges.txt"):
            content = (ROOT / "tests/reference/gpt2-tokenizer" / name).read_bytes()
            self.assertIn(load("verify").hashlib.sha256(content).hexdigest(), known[name])


if __name__ == "__main__":
    unittest.main()
