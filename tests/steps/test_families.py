"""Every step continues texts by every family of models: greedy texts of transformers, from safetensors and from
GGUF."""

import functools
import gzip
import json
import shutil
import tempfile
import unittest
from pathlib import Path

from support import BUILD, ROOT, STEPS, call

FAMILIES = ROOT / "tests/reference/families"
FILES = ROOT / "tests/reference/gguf-families"
OTHERS = {"66-http-server", "67-cancellation", "68-graceful-shutdown", "69-capacity", "93-conversation", "94-continued-cache",
          "95-kept-answers", "96-dropped-turns", "97-chat-server", "122-urgent-requests", "123-draft-models", "143-saved-cache"}  # whose program does something other than continue a text
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
    def program(self, step, model, text, *options, status=0):
        done = call(BUILD / "steps" / step, "--model", model, "--device", "cpu", "--json", "--prompt", text, *options)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def sequence(self, *arguments):
        return json.loads(self.program(*arguments).stdout)["sequences"][0]

    def check(self, step, model, text, ids, greedy, *options):
        done = self.program(step, model, text, "--max-new-tokens", len(greedy),
                            *(["--ignore-eos"] if int(step.partition("-")[0]) > 1 else []), *options)
        sequence = json.loads(done.stdout)["sequences"][0]
        self.assertEqual((sequence["prompt_token_ids"], sequence["token_ids"]), (ids, greedy))
        return done

    def test_each_step_runs_a_llama_with_shared_key_heads(self):
        config = json.loads((FAMILIES / "llama-3/config.json").read_text())
        one_text = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        one_text *= config["max_position_embeddings"]
        for step in STEPS:
            if step.name in OTHERS:
                continue
            for case in cases("llama-3")[:2]:
                with self.subTest(step.name, text=case[0]):
                    done = self.check(step.name, FAMILIES / "llama-3", *case)
                    self.assertNotIn(" does nothing", done.stderr)
                    if int(step.number) != 13:  # whose cache grows
                        cache = json.loads(done.stdout)["stats"]["cache_allocated_bytes"]
                        self.assertEqual(cache, one_text if int(step.number) > 13 else 0, "the cache has one text")

    def test_a_cache_of_blocks_holds_as_many_whole_texts_as_there_are_at_a_time(self):
        """Unless an option says otherwise. Texts of 4, 12 and 8 tokens take 12 passes, with two slots or three."""
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "requests.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt, "max_new_tokens": length}) + "\n"
                                for prompt, length in (("The wolf", 4), ("A fox", 12), ("The king", 8))))
        for step in STEPS:
            if step.number not in ("54", "60", "61", "62", "63", "64", "65"):
                continue
            for most, slots in ((2, 2), (8, 3)):
                with self.subTest(step.name, most=most):
                    done = call(BUILD / "steps" / step.name, "--model", ROOT / "models/tales-1m", "--device", "cpu",
                                "--ignore-eos", "--max-batch-size", most, "--requests", file)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn(" tokens/s, 2.0 rows a pass;", done.stderr)
                    if step.number > "60":
                        self.assertIn(f"at most {slots} of {32 * slots} blocks taken", done.stderr)

    def test_any_of_several_tokens_ends_a_text(self):
        """Here the fourth of the greedy text; where the shortest length is above, neither comes."""
        text, ids, greedy = cases("llama-3")[0]
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            shutil.copytree(FAMILIES / "llama-3", model)
            config = json.loads((model / "generation_config.json").read_text())
            (model / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [4095, greedy[3]]}))
            for step in STEPS[1:]:
                if step.name in OTHERS:
                    continue
                with self.subTest(step.name):
                    sequence = self.sequence(step.name, model, text, "--max-new-tokens", "9")
                    self.assertEqual((sequence["token_ids"], sequence["finish_reason"]), (greedy[:4], "eos"))
                    if step.number in ("35", "46", "64"):
                        sequence = self.sequence(step.name, model, text, "--max-new-tokens", "9", "--min-new-tokens", "9")
                        self.assertEqual((len(sequence["token_ids"]), sequence["finish_reason"]), (9, "length"))
                        self.assertNotIn(greedy[3], sequence["token_ids"][:8])

    def test_a_long_context_is_cut_to_what_is_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            shutil.copytree(FAMILIES / "llama-3", model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 131072}))
            position = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
            for options, positions in (((), 4096), (("--context", 64), 64), (("--context", 5000), 5000)):
                done = self.program("14-kv-cache-static", model, "A fox", "--max-new-tokens", 3, *options)
                self.assertEqual(json.loads(done.stdout)["stats"]["cache_allocated_bytes"], positions * position)
                self.assertEqual("texts are limited to 4096 tokens; --context allows up to 131072" in done.stderr, not options)
            done = self.program("14-kv-cache-static", model, "A fox", "--context", 131073, status=2)
            self.assertRegex(done.stderr, "error: --context is 131073, but .* supports at most 131072 positions")
            beyond = self.sequence("03-context-window", model, "A fox and a crow", "--context", 3, "--max-new-tokens", 9)
            self.assertEqual(len(beyond["token_ids"]), 9)

    def test_each_family_gives_the_texts_of_transformers(self):
        families = sorted(path.name for path in FAMILIES.iterdir())
        self.assertEqual(len(families), 15)
        for family in families:
            self.assertGreater(sum(len(greedy) for _, _, greedy in cases(family)), 30, family)
            for case in cases(family):
                with self.subTest(family, text=case[0]):
                    self.check("14-kv-cache-static", FAMILIES / family, *case)

    def test_windows_and_experts_with_every_kind_of_cache(self):
        """None, growing, whole, for several texts, with drafts, of blocks. Each text grows beyond the windows."""
        for step in ("03-context-window", "13-kv-cache-dynamic", "16-variable-batching", "17-speculative-decoding", "30-leaving-rows",
                     "60-paged-kv-cache", "64-prefix-caching", "110-window-layers"):
            for family in ("mistral-window", "qwen2-window", "gemma3", "qwen3-moe"):
                case = max(cases(family), key=lambda case: len(case[1]) + len(case[2]))
                self.assertGreater(len(case[1]) + len(case[2]), 40)
                with self.subTest(step, family=family):
                    draft = ["--draft-model", FAMILIES / "qwen2-window"] if step.startswith("17") else []
                    self.check(step, FAMILIES / family, *case, *draft)

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
