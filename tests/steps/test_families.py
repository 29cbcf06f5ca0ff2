"""Every step continues texts by every family of models: greedy texts of transformers, from safetensors and from GGUF."""

import functools
import gzip
import json
import tempfile
import unittest
from pathlib import Path

from support import BUILD, ROOT, STEPS, call

FAMILIES = ROOT / "tests/reference/families"
FILES = ROOT / "tests/reference/gguf-families"
OTHERS = {"66-http-server", "69-capacity"}  # whose program does something else than to continue a text
NEAR = 0.002  # of two logits that are this close either may be the larger one


@functools.lru_cache(maxsize=None)
def cases(family):
    """[(text, its ids, the tokens that follow)], these up to the first that is a near tie."""
    found = []
    for case in json.loads((FAMILIES / family / "reference.json").read_text())["cases"]:
        sure = next((i for i, gap in enumerate(case["gaps"]) if gap < NEAR), len(case["gaps"]))
        if case.get("text") and sure:
            found.append((case["text"], case["ids"], case["greedy"][:sure]))
    return found


class Families(unittest.TestCase):
    def check(self, step, model, text, ids, greedy, *options):
        done = call(BUILD / "steps" / step, "--model", model, "--device", "cpu", "--json", "--prompt", text,
                    "--max-new-tokens", str(len(greedy)), *(["--ignore-eos"] if step[:2] > "01" else []), *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        sequence = json.loads(done.stdout)["sequences"][0]
        self.assertEqual((sequence["prompt_token_ids"], sequence["token_ids"]), (ids, greedy))

    def test_each_step_runs_a_llama_with_shared_key_heads(self):
        for step in STEPS:
            if step.name in OTHERS:
                continue
            for case in cases("llama-3")[:2]:
                with self.subTest(step.name, text=case[0]):
                    self.check(step.name, FAMILIES / "llama-3", *case)

    def test_each_family_gives_the_texts_of_transformers(self):
        families = sorted(path.name for path in FAMILIES.iterdir())
        self.assertEqual(len(families), 9)
        for family in families:
            self.assertGreater(sum(len(greedy) for _, _, greedy in cases(family)), 30, family)
            for case in cases(family):
                with self.subTest(family, text=case[0]):
                    self.check("14-kv-cache-static", FAMILIES / family, *case)

    def test_files_of_llama_cpp_give_the_texts_of_transformers(self):
        """Of a llama the converter reorders queries and keys, of a qwen3 it does not."""
        for family in ("llama-3", "qwen3"):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "model.gguf"
                file.write_bytes(gzip.decompress((FILES / f"{family}-f32.gguf.gz").read_bytes()))
                for case in cases(family):
                    with self.subTest(family, text=case[0]):
                        self.check("14-kv-cache-static", file, *case)


if __name__ == "__main__":
    unittest.main()
