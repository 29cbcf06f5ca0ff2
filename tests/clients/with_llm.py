"""The command llm asks the server, as a person at a shell does: https://llm.datasette.io"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

URL, MODEL, KEY = (os.environ[f"STAIRCASE_{name}"] for name in ("URL", "MODEL", "KEY"))
PROGRAM = Path(sys.executable).parent / "llm"


def wanted(*messages):
    """What the server answers to this conversation."""
    body = {"messages": [{"role": role, "content": text} for role, text in messages], "temperature": 0, "max_tokens": 8}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


class Llm(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "extra-openai-models.yaml").write_text(
            f"- model_id: staircase\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  api_key_name: staircase\n")
        (self.folder / "keys.json").write_text(json.dumps({"staircase": KEY}))

    def ask(self, *words, status=0):
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
                              env={**os.environ, "LLM_USER_PATH": str(self.folder)})
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.rstrip("\n") if status == 0 else done.stderr

    def test_a_question_a_stream_and_a_conversation(self):
        options = ["-m", "staircase", "-o", "temperature", "0", "-o", "max_tokens", "8"]
        first = wanted(("user", "Once upon a time"))
        self.assertEqual(self.ask("prompt", *options, "--no-stream", "Once upon a time"), first.rstrip("\n"))
        self.assertEqual(self.ask("prompt", *options, "Once upon a time"), first.rstrip("\n"))
        second = wanted(("user", "Once upon a time"), ("assistant", first), ("user", "And then?"))
        self.assertEqual(self.ask("prompt", "-c", *options, "And then?"), second.rstrip("\n"))

    def test_an_error_is_said(self):
        said = self.ask("prompt", "-m", "staircase", "-o", "max_tokens", "100000", "Once upon a time", status=1)
        self.assertIn("100000", said)


if __name__ == "__main__":
    sys.exit(unittest.main())
