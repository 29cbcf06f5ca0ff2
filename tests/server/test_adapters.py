"""Adapters as clients see them: chosen by their names as models, in one batch with others, refused where they cannot be
used, and a reason not to start if they are broken."""

import concurrent.futures
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import CHATS, ROOT, Server

FOLDER = ROOT / "models/adapters"
PROMPTS = ["Once upon a time there was a king", "A Fox and a Lion", "The Sultan said to the merchant, and the merchant"]


def adapters(*more):
    return Server("--adapter", f"fables={FOLDER / 'aesop'}", "--adapter", "nights=arabian-nights", *more, program=CHATS)


class Adapters(unittest.TestCase):
    def test_each_is_a_model_of_its_own_and_in_a_busy_batch_each_text_is_what_it_is_alone(self):
        with adapters("--max-batch-size", 8) as server:
            models = server.ask("GET", "/v1/models")[2]["data"]
            self.assertEqual([(model["id"], model.get("parent")) for model in models],
                             [("tales-6m", None), ("fables", "tales-6m"), ("nights", "tales-6m")])
            self.assertEqual(server.ask("GET", "/v1/models/nights")[2]["id"], "nights")
            keys = [{"prompt": prompt, "model": model["id"], "max_tokens": 30, "temperature": 0}
                    for prompt in PROMPTS for model in models]
            alone = [server.post(body)[2] for body in keys]
            self.assertEqual([one["model"] for one in alone], [body["model"] for body in keys])
            texts = [one["choices"][0]["text"] for one in alone]
            self.assertGreater(len(set(texts)), 6)
            self.assertEqual(server.texts(PROMPTS[0], max_tokens=30, temperature=0), [texts[0]])
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                together = pool.map(lambda body: server.post(body)[2]["choices"][0]["text"], 4 * keys)
                self.assertEqual(list(together), 4 * texts)

    def test_unknown_names_and_scores_of_prompts_are_refused(self):
        with adapters() as server:
            status, _, answer = server.post({"prompt": "A", "model": "aesop"})
            self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"))
            self.assertIn('no model "aesop", but one named "tales-6m", with the adapters that /v1/models lists',
                          answer["error"]["message"])
            self.assertEqual(server.ask("GET", "/v1/models/aesop")[0], 404)
            body = {"prompt": "A Fox", "echo": True, "logprobs": 1, "max_tokens": 0}
            self.assertEqual(server.post({**body, "model": "fables"})[0], 400)
            self.assertEqual(server.post({**body, "model": "fables", "logprobs": None})[0], 200)
            server.complete("A Fox", model="fables", max_tokens=2)  # its keys must not be used
            self.assertEqual(server.post(body)[2]["choices"][0]["logprobs"],
                             Plain.answer(body)["choices"][0]["logprobs"])

    def test_a_server_does_not_start_with_an_adapter_that_it_could_not_use(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / "broken"
            broken.mkdir()
            (broken / "adapter_config.json").write_text("{}")
            for values, status, words in [
                    (["fables"], 2, "it must be NAME=DIR"), (["=x"], 2, "it must be NAME=DIR"),
                    (["a="], 2, "it must be NAME=DIR"), (["a=nowhere"], 1, "no such adapter"),
                    (["a=aesop", "a=aesop"], 2, "another adapter already has this name"),
                    (["tales-6m=aesop"], 2, "the model's own name"), ([f"a={broken}"], 1, "peft_type"),
                    ([f"a={ROOT / 'tests/reference/adapters/llama-3'}"], 1, "target_modules names"),
                    (["a=aesop"] * 1025, 2, "at most 1024 adapters")]:
                with self.subTest(words=words):
                    options = [option for value in values for option in ("--adapter", value)]
                    done = subprocess.run([CHATS, "--model", "tales-6m", "--device", "cpu", "--port", "0", *options],
                                          capture_output=True, text=True, timeout=60, cwd=ROOT)
                    self.assertEqual((done.returncode, done.stdout), (status, ""))
                    self.assertIn(words, done.stderr)
                    self.assertEqual(done.stderr.count("error"), 1)


class Plain:
    @staticmethod
    def answer(body):
        with Server(program=CHATS) as server:
            return json.loads(json.dumps(server.post(body)[2]))


if __name__ == "__main__":
    unittest.main()
